"""Logit lens: in which layer, and at which step, does the token that is decoded in the end appear?

It reads each layer's output with the final norm and head. It does not say that a layer below the last
was meant to be read so, nor what made the token appear.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import xarray as xr

from ...plots import POSITIVE, SHARE, Figure, lines
from ...trace import Trace
from ..base import Measure
from ..result import Result


@dataclass(frozen=True)
class LogitLens(Measure):
    """When the final token becomes and stays the arg-max: its commitment layer and commitment step.

    The logit lens (nostalgebraist, 2020; see 2303.08112) at masked positions, at every kept step. A
    position that is never decided says nothing.

    - `agree`: by layer, share of masked positions and steps where the arg-max is the token decoded
      there in the end; null: a final token of the same answer, drawn at random, instead of its own
    - `committed`: by layer, share of reveals whose token is the arg-max from this layer on, at the step
      that revealed it
    - `entropy`: by layer, of the lens's distribution, in nats
    - `commit_layer`: first layer from which on a revealed token is the arg-max, at its step
    - `commit_step`: first step from which on it is, in the last kept layer, and `lead`: how many steps
      before the reveal that was; NaN for a causal model, which predicts a position once
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
        lens = trace.lens
        order = ("step", "layer", "key")
        token = lens["token"].transpose(*order).values
        final, decided = trace.canvas.values[-1], _decided(trace)
        there = (token >= 0) & decided
        right = there & (token == final)
        counts = there.sum((0, 2))
        # How often each token stands in the finished answer: what a match is worth by chance.
        kinds, of_kind = np.unique(final[decided], return_counts=True)
        by_chance = np.zeros(token.shape)
        for kind, n in zip(kinds, of_kind, strict=True):
            by_chance[token == kind] = n / of_kind.sum()
        nats = lens["entropy"].transpose(*order).values
        with np.errstate(invalid="ignore", divide="ignore"):
            by_layer = {
                "agree": right.sum((0, 2)) / counts,
                "agree_null": np.where(there, by_chance, 0).sum((0, 2)) / counts,
                "committed": np.full(token.shape[1], np.nan),
                "entropy": np.where(there, np.nan_to_num(nats), 0).sum((0, 2)) / counts,
            }
        scalars = dict.fromkeys(("commit_layer", "commit_step", "lead"), np.nan)
        reveals = _reveals(trace, there[:, -1])
        if reveals:
            scalars |= _commitment(trace, right, there, reveals, by_layer["committed"])
        coords = {"layer": trace.data["layer"].values}
        values = {name: ("layer", array) for name, array in by_layer.items()}
        last = float(trace.data["step"].values[-1])
        most = {"commit_layer": float(coords["layer"][-1]), "commit_step": last, "lead": last}
        named = {**values, **{name: ((), x) for name, x in scalars.items()}}
        return xr.Dataset(named, coords, {"most": most})

    def plot(self, result: Result) -> Figure:
        return lines(
            result,
            ("arg-max is the final token", "agree", SHARE),
            ("committed at the reveal", "committed", SHARE),
            ("entropy (nats)", "entropy", POSITIVE),
            note=": logit lens (dotted: null)",
            width=2.5,
        )


def _decided(trace: Trace) -> np.ndarray:
    """Answer positions that hold a token in the end, not a mask that an early end left over."""
    answer = trace.data["region"].values == "answer"
    return answer & (trace.canvas.values[-1] != int(trace.info.get("mask_id", -1)))


def _reveals(trace: Trace, there: np.ndarray) -> list[tuple[int, int]]:
    """(place among the kept steps, position) of each reveal that gave the final token."""
    kept = {int(t): i for i, t in enumerate(trace.data["step"].values)}
    change, canvas = trace.change.values, trace.canvas.values
    found = []
    for position in np.flatnonzero((change == 1).any(0)):
        step = int(np.flatnonzero(change[:, position] == 1)[-1])
        stays = canvas[step + 1, position] == canvas[-1, position]
        if step in kept and stays and there[kept[step], position]:
            found.append((kept[step], int(position)))
    return found


def _commitment(
    trace: Trace,
    right: np.ndarray,
    there: np.ndarray,
    reveals: list[tuple[int, int]],
    committed: np.ndarray,
) -> dict[str, float]:
    """Fills `committed` (layer), and gives the means over reveals; one that never commits has none."""
    layers, steps = trace.data["layer"].values, trace.data["step"].values
    settled = np.stack([_stays(right[t, :, p]) for t, p in reveals])  # (reveal, layer)
    committed[:] = settled.mean(0)
    final = settled[:, -1]
    means = dict.fromkeys(("commit_layer", "commit_step", "lead"), np.nan)
    if not final.any():
        return means
    means["commit_layer"] = float(layers[settled[final].argmax(1)].mean())
    if trace.info["direction"] == "causal":
        return means
    first, lead = [], []
    for (t, p), fine in zip(reveals, final, strict=True):
        if fine:
            masked = np.flatnonzero(there[: t + 1, -1, p])  # steps at which it was masked
            begun = masked[int(_stays(right[masked, -1, p]).argmax())]
            first.append(steps[begun])
            lead.append(steps[t] - steps[begun])
    return means | {"commit_step": float(np.mean(first)), "lead": float(np.mean(lead))}


def _stays(right: np.ndarray) -> np.ndarray:
    """True from where on all are."""
    return np.logical_and.accumulate(right[::-1])[::-1]
