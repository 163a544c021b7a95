"""TransformerLens: `run_with_cache` of everything, of the patterns, and hooks that reduce.

LLaDA is `llada_net`, since the published code is in no package; Dream is a Qwen2 under
TransformerLens's Dream adapter, with eager attention, without which it shows no pattern.
"""

from importlib.metadata import version
from pathlib import Path
from typing import Any

import dream_net
import llada_net
import torch
from measure import work
from task import REAL, Fact, Step, Way, attempt, decoding, padded_batch, padding_facts
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge
from transformer_lens.model_bridge.sources import build_bridge_from_module


def is_dream(folder: Path) -> bool:
    return '"Dream"' in (folder / "config.json").read_text()


def bridge_of(folder: Path, attention: str = "eager") -> Any:
    net = dream_net.load(folder, attention) if is_dream(folder) else llada_net.load(folder)
    kind = "DreamModel" if is_dream(folder) else "LLaDAModelLM"
    return build_bridge_from_module(net, kind, hf_config=net.config, model_name=kind)


def is_pattern(name: str) -> bool:
    return name.endswith("attn.hook_pattern")


def patterns_of(cache: Any) -> list[Tensor]:
    return [cache[name] for name in cache if is_pattern(name)]


def columns(cache: Any) -> Tensor:
    return torch.stack([pattern[0].sum(-2) for pattern in patterns_of(cache)])


def ways(folder: Path) -> dict[str, Way]:
    plain = dream_net.load(folder, "sdpa") if is_dream(folder) else llada_net.load(folder)
    bridge = bridge_of(folder)

    def floor(canvas: Tensor, rows: Tensor) -> Step:
        return plain(canvas, use_cache=False).logits[:, rows], None, None

    def wrapped(canvas: Tensor, rows: Tensor) -> Step:
        return bridge(canvas)[:, rows], None, None

    def hooks(canvas: Tensor, rows: Tensor) -> Step:
        sums: list[Tensor] = []

        def reduce(pattern: Tensor, hook: Any) -> None:
            sums.append(pattern[0].sum(-2))

        options: dict[str, Any] = {"output_attentions": True} if is_dream(folder) else {}
        logits = bridge.run_with_hooks(canvas, fwd_hooks=[(is_pattern, reduce)], **options)
        found = torch.stack(sums)
        return logits[:, rows], found, found

    def patterns(canvas: Tensor, rows: Tensor) -> Step:
        logits, cache = bridge.run_with_cache(canvas, names_filter=is_pattern)
        found = columns(cache)
        return logits[:, rows], found, found

    def everything(canvas: Tensor, rows: Tensor) -> Step:
        logits, cache = bridge.run_with_cache(canvas)
        return logits[:, rows], columns(cache), cache

    return {
        "plain": decoding(floor),
        "wrapped, nothing read": decoding(wrapped),
        "run_with_hooks, reduced": decoding(hooks),
        "run_with_cache of patterns, reduced": decoding(patterns),
        "run_with_cache, cache kept": decoding(everything),
    }


@torch.inference_mode()
def facts(folder: Path) -> Fact:
    bridge = bridge_of(folder)
    ids, mask, _ = padded_batch()
    alone = bridge.run_with_cache(torch.arange(REAL)[None], names_filter=is_pattern)[1]
    both = bridge.run_with_cache(ids, attention_mask=mask, names_filter=is_pattern)[1]
    if is_dream(folder):
        stock = bridge_of(folder, "sdpa").run_with_cache(ids[:1])[1]
        sdpa = f"{len(patterns_of(stock))} layers"
    else:
        sdpa = "does not apply: the adapter computes LLaDA's attention itself"
    return {
        "loads the checkpoint without its code": attempt(
            lambda: TransformerBridge.boot_transformers(str(folder))
        ),
        "decodes: generate": attempt(
            lambda: bridge.generate(ids[:1], max_new_tokens=4, verbose=False)
        ),
        "decodes: diffusion_generate": attempt(
            lambda: bridge.diffusion_generate(ids[:1], max_new_tokens=4)
        ),
        "patterns under SDPA": sdpa,
        **padding_facts(patterns_of(alone), patterns_of(both)),
    }


if __name__ == "__main__":
    work(ways, facts, {name: version(name) for name in ("transformer-lens", "transformers")})
