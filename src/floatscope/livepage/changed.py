"""Compare the traces of two runs of one prompt: tokens, decoding order, answer and attention.

The comparison uses the attention that the traces store, which is not rounded for the page. The distance
between two runs, for a head at a step, is ½ Σ |share − share'| over keys, from 0 to 1. `share` is the share
of attention that a key receives in one run, and `share'` is the share that the same key receives in the other
run.
"""

from typing import Any

import numpy as np
from jaxtyping import Float

from ..errors import UsageError
from ..scenes.codec import pack_signed
from ..sequences.decoding import Change
from ..trace import Trace


def changed(before: Trace, after: Trace, run: str, step: int) -> dict[str, Any]:
    """Return the differences of `after` from `before`, the trace of `run`; attention from step `step` on."""
    start = int(before.info["prompt_length"])
    was, canvas_after = before.canvas.values, after.canvas.values
    _require_one_prompt(before, after)
    words = [[str(t) for t in trace.data["final_token"].values] for trace in (before, after)]
    size = max(was.shape[1], canvas_after.shape[1])
    ends = [_wide(ids[-1], size) for ids in (was, canvas_after)]
    orders = [_order(trace, size) for trace in (before, after)]
    tokens = [
        {"position": p, **{n: _at(words[i], p) for i, n in enumerate(("was", "is"))}}
        for p in range(start, size)
        if ends[0][p] != ends[1][p]
    ]
    order = [
        {"position": p, "was": orders[0][p], "is": orders[1][p]}
        for p in range(start, size)
        if orders[0][p] != orders[1][p]
    ]
    attention = _attention(before, after, step)
    moved = attention is not None and max(attention["distance"]) > attention["resolution"]
    first = _first(was, canvas_after)
    return {
        "run": run,
        "step": step,
        "tokens": tokens,
        "order": order,
        "answer": {"was": before.text, "is": after.text, "same": before.text == after.text},
        "first": first,
        "attention": attention,
        "same": first is None and not order and not moved and before.text == after.text,
    }


def attention_at(before: Trace, after: Trace, step: int, other: int) -> dict[str, Any]:
    """Compare the attention of `before` at step `step` with the attention of `after` at step `other`.

    In the result, `difference` is each key's share in `after` minus its share in `before`, averaged over
    heads. The array has a row per layer, and a last row with the mean over layers. If the models differ in
    size, the array has only the last row, and the result contains no distance.
    """
    _require_one_prompt(before, after)
    shares = _shares(before, step), _shares(after, other)
    means = [share.mean((0, 1))[None] for share in shares]
    alike = shares[0].shape[:2] == shares[1].shape[:2]
    if alike:
        by_layer = [share.mean(1) for share in shares]
        means = [np.concatenate(pair) for pair in zip(by_layer, means, strict=True)]
    answer: dict[str, Any] = {"steps": [step, other], "resolution": _resolution(before, after)}
    answer["difference"] = pack_signed(np.subtract(*_aligned(*means[::-1])))
    if alike:
        distance = _distance(*shares)
        layer, head = np.unravel_index(distance.argmax(), distance.shape)
        top = {"layer": int(layer), "head": int(head), "distance": float(distance.max())}
        answer["distance"] = float(distance.mean())
        answer["layers"] = [float(value) for value in distance.mean(1)]
        answer["top"] = top
    return answer


def head_difference(
    before: Trace, after: Trace, step: int, other: int, layer: int, head: int
) -> dict[str, Any]:
    """Return a head's share per key in `after` at step `other`, minus its share in `before` at `step`."""
    _require_one_prompt(before, after)
    was, share_after = (
        _shares(*position)[layer, head] for position in ((before, step), (after, other))
    )
    return {"difference": pack_signed(np.subtract(*_aligned(share_after[None], was[None])))}


def _require_one_prompt(before: Trace, after: Trace) -> None:
    start = int(before.info["prompt_length"])
    prompts = [trace.canvas.values[0, :start] for trace in (before, after)]
    if start != int(after.info["prompt_length"]) or (prompts[0] != prompts[1]).any():
        raise UsageError(
            "the two runs have different prompts, or different tokens of them",
            "Compare runs of one prompt in models with one tokenizer.",
        )


def _wide(ids: np.ndarray, size: int) -> np.ndarray:
    return np.pad(ids, (0, size - len(ids)), constant_values=-1)


def _at(words: list[str], position: int) -> str:
    return words[position] if position < len(words) else ""


def _order(trace: Trace, size: int) -> list[int | None]:
    """Return the step at which each position was last revealed; None if it never was."""
    last: list[int | None] = [None] * size
    for step, row in enumerate(trace.change.values):
        for position in np.flatnonzero(row == Change.REVEAL):
            last[int(position)] = step
    return last


def _first(was: np.ndarray, now: np.ndarray) -> int | None:
    """Return the first step at which the canvases differ; None if they are equal."""
    size = max(was.shape[1], now.shape[1])
    for step in range(min(len(was), len(now))):
        if (_wide(was[step], size) != _wide(now[step], size)).any():
            return step
    return None if len(was) == len(now) else min(len(was), len(now))


def _attention(before: Trace, after: Trace, step: int) -> dict[str, Any] | None:
    """Return the mean distance at each common step, and the largest change of a key's share.

    Return None if the models differ in size, or if the runs have no common step from `step` on.
    """
    shapes = [trace.data["column_sum"].shape[2:4] for trace in (before, after)]
    common = range(step, min(before.n_steps, after.n_steps))
    if shapes[0] != shapes[1] or not len(common):
        return None
    distances, largest = [], 0.0
    for number in common:
        shares = _shares(before, number), _shares(after, number)
        distances.append(float(_distance(*shares).mean()))
        means = _aligned(*(share.mean((0, 1)) for share in shares))
        largest = max(largest, float(np.abs(np.subtract(*means)).max()))
    return {
        "steps": list(common),
        "distance": distances,
        "most": largest,
        "resolution": _resolution(before, after),
    }


def _resolution(*traces: Trace) -> float:
    """Return the largest distance that rounding can cause: the coarser epsilon of the stored dtypes."""
    return max(float(np.finfo(trace.data["column_sum"].dtype).eps) for trace in traces)


def _shares(trace: Trace, step: int) -> Float[np.ndarray, "layer head key"]:
    """Return the share of attention per key at a step; 0 for a key that does not exist yet."""
    mass = Trace(trace.data.isel(step=[step])).mass.transpose("step", "layer", "head", "key")
    return np.nan_to_num(mass[0].values)


def _aligned(*shares: np.ndarray) -> list[np.ndarray]:
    """Pad the last dimension of every array with zeros to the same size."""
    size = max(share.shape[-1] for share in shares)
    return [
        np.pad(share, [(0, 0)] * (share.ndim - 1) + [(0, size - share.shape[-1])])
        for share in shares
    ]


def _distance(
    was: Float[np.ndarray, "layer head key"], now: Float[np.ndarray, "layer head _"]
) -> Float[np.ndarray, "layer head"]:
    return np.abs(np.subtract(*_aligned(now, was))).sum(-1) / 2
