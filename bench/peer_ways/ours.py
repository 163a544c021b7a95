"""Floatscope and transformers' own `output_attentions`, side by side in one process."""

from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from measure import work
from task import (
    PAD,
    REAL,
    Fact,
    Found,
    Step,
    Task,
    Way,
    attempt,
    decoding,
    padded_batch,
    padding_facts,
)
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers.utils import logging

import floatscope as fs


def network(folder: Path, attention: str) -> Any:
    """The checkpoint as the Llama or Qwen2 it is; transformers has no class of its own for it."""
    net = fs.load(folder, check=False, device="cpu").net
    net.set_attn_implementation(attention)
    return net


def ways(folder: Path) -> dict[str, Way]:
    model = fs.load(folder, check=False, device="cpu")
    stock, eager = network(folder, "sdpa"), network(folder, "eager")
    options: dict[str, Any] = {"use_cache": False, "is_causal": False}

    def floor(canvas: Tensor, rows: Tensor) -> Step:
        return stock(canvas, logits_to_keep=rows, **options).logits, None, None

    def attentions(canvas: Tensor, rows: Tensor) -> tuple[Tensor, Tensor, Any]:
        out = eager(canvas, logits_to_keep=rows, output_attentions=True, **options)
        return out.logits, torch.stack([a[0].sum(-2) for a in out.attentions]), out.attentions

    def reduced(canvas: Tensor, rows: Tensor) -> Step:
        logits, sums, _ = attentions(canvas, rows)
        return logits, sums, sums

    def ours(keep: set[str] | None) -> Way:
        def run(task: Task) -> Found:
            canvas, logits = task.canvas[0], []
            hook = model.net.lm_head.register_forward_hook(
                lambda *call: logits.append(call[2].clone())
            )
            prompt = [int(i) for i in canvas[: -task.answer]]
            sampler = fs.Confidence(length=task.answer, steps=task.steps, stop_at_eos=False)
            try:
                if keep is None:
                    states = model.generate(prompt, sampler).canvas
                    sums, kept = [], 0
                else:
                    trace = model.trace(prompt, sampler, keep=keep)
                    states = trace.canvas.values
                    sums = list(torch.tensor(trace.mass.values) * task.size)
                    kept = int(trace.data.nbytes)
            finally:
                hook.remove()
            canvases = [torch.tensor(state)[None] for state in states[:-1]]
            return Found(canvases, logits, sums, kept)

        return run

    return {
        "plain": decoding(floor),
        "Floatscope: generate, untraced": ours(None),
        "Floatscope: trace, mass": ours({"mass"}),
        "Floatscope: trace, all statistics": ours(set(fs.statistics.STATISTICS)),
        "transformers: output_attentions, reduced": decoding(reduced),
        "transformers: output_attentions, kept": decoding(attentions),
    }


@torch.inference_mode()
def facts(folder: Path) -> Fact:
    logging.set_verbosity_error()  # it warns where it gives no attentions, as we are about to see
    ids, mask, places = padded_batch()
    options: dict[str, Any] = {"output_attentions": True, "use_cache": False, "is_causal": False}
    stock, eager = network(folder, "sdpa"), network(folder, "eager")
    alone = eager(torch.arange(REAL)[None], **options).attentions
    both = eager(ids, attention_mask=mask, position_ids=places, **options).attentions
    theirs = {
        "loads the checkpoint without its code": attempt(
            lambda: AutoModelForCausalLM.from_pretrained(folder)
        ),
        "attentions under SDPA": f"{len(stock(ids[:1], **options).attentions)} layers",
        **padding_facts(list(alone), list(both)),
    }
    model = fs.load(folder, device="cpu")
    sampler = fs.Confidence(length=8, steps=2, stop_at_eos=False)
    prompts = [list(range(PAD + REAL)), list(range(REAL))]
    single, batched = model.trace(prompts[1], sampler), model.trace(prompts, sampler)[1]
    error = float(abs(batched.mass - single.mass).max()) * (REAL + 8)  # S: prompt and answer
    ours = {
        "loads the checkpoint without its code": "works",
        "padded batch: error of the sums": f"{error:.1e}",
        "padded batch: same tokens": str(bool((batched.canvas == single.canvas).all())),
    }
    return {f"transformers: {k}": v for k, v in theirs.items()} | {
        f"Floatscope: {k}": v for k, v in ours.items()
    }


if __name__ == "__main__":
    work(ways, facts, {name: version(name) for name in ("floatscope", "transformers")})
