"""Logit lens: in which layer and at which step the final token first appears."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import xarray as xr

from ...plots import POSITIVE, SHARE, Figure, lines
from ...stats.reveals import last_reveal
from ...trace import Trace
from ..base import Measure
from ..result import Result


@dataclass(frozen=True)
class LogitLens(Measure):
    """Layer and step from which on the final token is the arg-max (commitment layer and step).

    The logit lens (nostalgebraist, 2020; see 2303.08112) is read at masked positions, at every kept step.
    Positions that are never decided are left out.

    - `agree`: by layer, share of masked positions and steps at which the arg-max is the final token of the
      position; null: a final token of the same answer, drawn at random
    - `committed`: by layer, share of reveals whose token is the arg-max from this layer on, at the step of
      the reveal
    - `entropy`: by layer, entropy of the lens's distribution, in nats
    - `commit_layer`: first layer from which on a revealed token remains the arg-max, at the step of the
      reveal
    - `commit_step`: first step from which on a revealed token remains the arg-max in the last kept layer; NaN
      for a causal model, which predicts each position once
    - `lead`: number of steps between `commit_step` and the reveal; NaN for a causal model
    """

    needs: ClassVar[tuple[str, ...]] = ("lens",)
    windows: ClassVar[bool] = True
    own_tokens: ClassVar[bool] = True
    units: ClassVar[dict[str, str]] = {
        "agree": "share",
        "committed": "share",
        "entropy": "nats",
        "commit_layer": "layer",
        "commit_step": "step",
        "lead": "steps",
    }

    def compute(self, trace: Trace) -> xr.Dataset:
        lens = trace.lens.transpose("step", "layer", "key")
        token, nats = lens["token"].values, lens["entropy"].values
        final = trace.canvas.values[-1]
        # Positions with a token in the result, not a mask left by an early end.
        answer = trace.data["region"].values == "answer"
        decided = answer & (final != int(trace.info.get("mask_id", -1)))
        masked = (token >= 0) & decided
        right = masked & (token == final)
        # Frequency of each token in the finished answer, the probability of a match by chance.
        share = pd.Series(final[decided]).value_counts(normalize=True)
        by_chance = share.reindex(token.ravel(), fill_value=0).to_numpy().reshape(token.shape)
        counts = masked.sum((0, 2))

        def mean(values: np.ndarray) -> np.ndarray:
            total = np.where(masked, np.nan_to_num(values), 0).sum((0, 2))
            return np.asarray(total / np.where(counts > 0, counts, np.nan))

        values: dict[str, Any] = {
            "agree": ("layer", mean(right)),
            "agree_null": ("layer", mean(by_chance)),
            "committed": ("layer", np.full(token.shape[1], np.nan)),
            "entropy": ("layer", mean(nats)),
        }
        values |= dict.fromkeys(("commit_layer", "commit_step", "lead"), np.nan)
        if reveals := _reveals(trace, masked[:, -1]):
            values |= _commitment(trace, right, masked, reveals)
        layer, step = (float(trace.data[dim].values[-1]) for dim in ("layer", "step"))
        limits = {"commit_layer": layer, "commit_step": step, "lead": step}
        return xr.Dataset(values, attrs={"most": limits})

    def plot(self, result: Result) -> Figure:
        return lines(
            result,
            ("arg-max is the final token", "agree", SHARE),
            ("committed at the reveal", "committed", SHARE),
            ("entropy (nats)", "entropy", POSITIVE),
            note=": logit lens (dotted: null)",
            width=2.5,
        )


def _reveals(trace: Trace, masked: np.ndarray) -> list[tuple[int, int]]:
    """Return (index of the kept step, position) for each reveal of a token that stays until the end."""
    index_of_step = {int(t): i for i, t in enumerate(trace.data["step"].values)}
    canvas, last = trace.canvas.values, last_reveal(trace.change.values)
    reveals = [(int(last[p]), int(p)) for p in np.flatnonzero(~np.isnan(last))]
    stays = [(t, p) for t, p in reveals if t in index_of_step and canvas[t + 1, p] == canvas[-1, p]]
    return [(index_of_step[t], p) for t, p in stays if masked[index_of_step[t], p]]


def _commitment(
    trace: Trace, right: np.ndarray, masked: np.ndarray, reveals: list[tuple[int, int]]
) -> dict[str, Any]:
    """Return `committed`, `commit_layer`, `commit_step` and `lead`, as `LogitLens` describes them.

    A reveal whose arg-max in the last kept layer is another token is left out of all but `committed`.
    """
    steps = trace.data["step"].values
    settled = np.stack([_holds_from(right[t, :, p]) for t, p in reveals])  # (reveal, layer)
    values: dict[str, Any] = {"committed": ("layer", settled.mean(0))}
    final = settled[:, -1]
    if not final.any():
        return values
    values["commit_layer"] = trace.data["layer"].values[settled[final].argmax(1)].mean()
    if trace.info["direction"] == "causal":
        return values
    spans = []  # (first step, step of the reveal)
    for (t, p), commits in zip(reveals, final, strict=True):
        if commits:
            # steps at which the position was masked
            before = np.flatnonzero(masked[: t + 1, -1, p])
            start = before[_holds_from(right[before, -1, p]).argmax()]
            spans.append((steps[start], steps[t]))
    first, reveal = np.mean(spans, axis=0)
    return values | {"commit_step": first, "lead": reveal - first}


def _holds_from(right: np.ndarray) -> np.ndarray:
    """Return, for each entry, whether it and all later entries are true."""
    return np.logical_and.accumulate(right[::-1])[::-1]
