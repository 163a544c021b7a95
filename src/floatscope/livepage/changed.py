"""Compare two runs of one prompt from their traces: tokens, order, answer, attention."""

from typing import Any

import numpy as np
from jaxtyping import Float

from ..errors import UsageError
from ..scenes.codec import pack_log
from ..sequences.decoding import Change
from ..trace import Trace


def changed(before: Trace, after: Trace, run: str, step: int) -> dict[str, Any]:
    """Compare `after` with `before`, which is called `run`; attention is compared from `step` on."""
    start = int(before.info["prompt_length"])
    was, now = before.canvas.values, after.canvas.values
    if start != int(after.info["prompt_length"]) or (was[0, :start] != now[0, :start]).any():
        raise UsageError(
            "the two runs have different prompts, or different tokens of them",
            "Compare runs of one prompt in models with one tokenizer.",
        )
    words = [[str(t) for t in trace.data["final_token"].values] for trace in (before, after)]
    size = max(was.shape[1], now.shape[1])
    ends = [_wide(ids[-1], size) for ids in (was, now)]
    orders = [_order(trace, size) for trace in (before, after)]
    return {
        "run": run,
        "step": step,
        "tokens": [
            {"position": p, **{n: _at(words[i], p) for i, n in enumerate(("was", "is"))}}
            for p in range(start, size)
            if ends[0][p] != ends[1][p]
        ],
        "order": [
            {"position": p, "was": orders[0][p], "is": orders[1][p]}
            for p in range(start, size)
            if orders[0][p] != orders[1][p]
        ],
        "answer": {"was": before.text, "is": after.text, "same": before.text == after.text},
        "first": _first(was, now),
        "attention": _attention(before, after, step),
    }


def _wide(ids: np.ndarray, size: int) -> np.ndarray:
    return np.pad(ids, (0, size - len(ids)), constant_values=-1)


def _at(words: list[str], position: int) -> str:
    return words[position] if position < len(words) else ""


def _order(trace: Trace, size: int) -> list[int | None]:
    """Return the step at which each position was last revealed."""
    last: list[int | None] = [None] * size
    for step, row in enumerate(trace.change.values):
        for position in np.flatnonzero(row == Change.REVEAL):
            last[int(position)] = step
    return last


def _first(was: np.ndarray, now: np.ndarray) -> int | None:
    """Return the first step at which the canvases differ."""
    size = max(was.shape[1], now.shape[1])
    for step in range(min(len(was), len(now))):
        if (_wide(was[step], size) != _wide(now[step], size)).any():
            return step
    return None if len(was) == len(now) else min(len(was), len(now))


def _attention(before: Trace, after: Trace, step: int) -> dict[str, Any] | None:
    """Return the distance between the shares of all keys: half the sum of differences, 0 … 1."""
    shapes = [trace.data["column_sum"].shape[2:4] for trace in (before, after)]
    common = range(step, min(before.n_steps, after.n_steps))
    if shapes[0] != shapes[1] or not len(common):
        return None
    parts = [_distance(before, after, t) for t in common]  # (layer, head) each
    return {
        "steps": list(common),
        "distance": [float(part.mean()) for part in parts],
        "heads": pack_log(np.mean(parts, axis=0)),
    }


def _distance(before: Trace, after: Trace, step: int) -> Float[np.ndarray, "layer head"]:
    one, other = (
        np.nan_to_num(
            Trace(trace.data.isel(step=[step]))
            .mass.transpose("step", "layer", "head", "key")[0]
            .values
        )
        for trace in (before, after)
    )
    size = max(one.shape[-1], other.shape[-1])
    one, other = (np.pad(x, ((0, 0), (0, 0), (0, size - x.shape[-1]))) for x in (one, other))
    return np.abs(one - other).sum(-1) / 2
