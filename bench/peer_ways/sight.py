"""nnsight on Dream: attention read inside a trace, and the sums by hand from q and k."""

from importlib.metadata import version
from pathlib import Path

import dream_net
import nnsight
import torch
from measure import work
from nnsight import NNsight, TransformersModel
from task import REAL, Fact, Step, Way, attempt, decoding, padded_batch, padding_facts
from torch import Tensor

BLOCK = 128  # queries at a time, where the sums are made by hand


def by_hand(q: Tensor, k: Tensor, scale: float) -> Tensor:
    """Column sums (head, key) from q and k, some queries at a time."""
    k = k[0].repeat_interleave(q.shape[1] // k.shape[1], 0)
    sums = torch.zeros(k.shape[:2])
    for block in q[0].split(BLOCK, 1):
        sums += (block @ k.mT * scale).softmax(-1).sum(1)
    return sums


def ways(folder: Path) -> dict[str, Way]:
    plain = dream_net.load(folder, "sdpa")
    stock, eager = NNsight(dream_net.load(folder, "sdpa")), NNsight(dream_net.load(folder, "eager"))
    scale = plain.model.layers[0].self_attn.scaling

    def floor(canvas: Tensor, rows: Tensor) -> Step:
        return plain(canvas, use_cache=False, logits_to_keep=rows).logits, None, None

    def nothing(canvas: Tensor, rows: Tensor) -> Step:
        with stock.trace(canvas, use_cache=False, logits_to_keep=rows):
            logits = stock.output.logits.save()
        return logits, None, None

    def reduced(canvas: Tensor, rows: Tensor) -> Step:
        with eager.trace(canvas, use_cache=False, logits_to_keep=rows):
            sums = nnsight.save([])
            for layer in eager.model.layers:
                sums.append(layer.self_attn.output[1][0].sum(-2))
            logits = eager.output.logits.save()
        found = torch.stack(list(sums))
        return logits, found, found

    def kept(canvas: Tensor, rows: Tensor) -> Step:
        with eager.trace(canvas, use_cache=False, logits_to_keep=rows):
            attentions = nnsight.save([])
            for layer in eager.model.layers:
                attentions.append(layer.self_attn.output[1])
            logits = eager.output.logits.save()
        return logits, torch.stack([a[0].sum(-2) for a in attentions]), list(attentions)

    def from_queries(canvas: Tensor, rows: Tensor) -> Step:
        with stock.trace(canvas, use_cache=False, logits_to_keep=rows):
            sums = nnsight.save([])
            for layer in stock.model.layers:
                _, q, k, *_ = layer.self_attn.source.attention_interface_1.inputs[0]
                sums.append(by_hand(q, k, scale))
            logits = stock.output.logits.save()
        found = torch.stack(list(sums))
        return logits, found, found

    return {
        "plain": decoding(floor),
        "trace, nothing read": decoding(nothing),
        "eager attention, reduced in the trace": decoding(reduced),
        "eager attention, kept": decoding(kept),
        "q and k under SDPA, sums by hand": decoding(from_queries),
    }


@torch.inference_mode()
def facts(folder: Path) -> Fact:
    ids, mask, places = padded_batch()
    stock = NNsight(dream_net.load(folder, "sdpa"))
    eager = NNsight(dream_net.load(folder, "eager"))
    with stock.trace(ids[:1], use_cache=False):
        given = nnsight.save(stock.model.layers[0].self_attn.output)
    with eager.trace(torch.arange(REAL)[None], use_cache=False):
        alone = nnsight.save([])
        for layer in eager.model.layers:
            alone.append(layer.self_attn.output[1])
    with eager.trace(ids, attention_mask=mask, position_ids=places, use_cache=False):
        both = nnsight.save([])
        for layer in eager.model.layers:
            both.append(layer.self_attn.output[1])
    return {
        "loads the checkpoint without its code": attempt(
            lambda: TransformersModel(str(folder), task="text-generation", dispatch=True)
        ),
        "attention under SDPA": "none" if given[1] is None else "there",
        **padding_facts(list(alone), list(both)),
    }


if __name__ == "__main__":
    work(ways, facts, {name: version(name) for name in ("nnsight", "transformers")})
