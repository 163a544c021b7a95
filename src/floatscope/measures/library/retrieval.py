"""Retrieval heads: which heads copy the answer from the gold passage.

The measure contains two quantities. The strict copy score (Wu et al. 2404.15574) counts the answer tokens
that are the token of a head's strongest key at the step that reveals them. Evidence lift is a head's
attention on the gold passage, divided by that of uniform attention.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import xarray as xr
from jaxtyping import Float

from ...errors import UsageError
from ...plots import Axes, Figure, grid, lines, mark
from ...trace import Trace
from ..base import Measure
from ..nulls import members, row_null, rows_of_events, uniform_rows
from ..regions import gold_of, written
from ..result import Result


@dataclass(frozen=True)
class RetrievalHeads(Measure):
    """Strict copy score and attention on the gold passage, by head, and the number of copying heads.

    - `copy`: distinct tokens hit / distinct tokens of the answer that occur in the gold region. At the reveal
      of a token, a head hits if its strongest key is in the gold region and has the same token. The
      denominator counts only tokens that can be copied, because the gold region here is a whole passage,
      unlike the needle of Wu et al. NaN if the answer shares no token with the gold region. Null: the
      expectation for a random visible key instead of the strongest key
    - `evidence`: mean attention on the gold region from the rows that predicted the answer (up to its end
      token); null: uniform attention
    - `heads`: number of heads whose mean copy score over the examples is at least `threshold`; null: the
      number of heads that would reach it with random visible keys

    Args:
        threshold (float): Mean copy score from which on a head counts as copying; above 0, at most 1; 0.1 by
            default.
    """

    threshold: float = 0.1
    needs: ClassVar[tuple[str, ...]] = ("rows",)
    units: ClassVar[dict[str, str]] = {"copy": "share", "evidence": "share", "heads": "heads"}

    def __post_init__(self) -> None:
        if not 0 < self.threshold <= 1:
            raise UsageError(f"threshold = {self.threshold}", "Use a share above 0, at most 1.")

    def summarise(self, examples: Sequence[xr.Dataset], model: str) -> Result:
        """Combine the examples, and count the heads that reach the threshold."""
        result = super().summarise(examples, model)
        copy = result.examples["copy"].transpose("example", "layer", "head").values
        count, low, high = _count(copy.reshape(len(copy), -1), self.threshold)
        chances = [np.array(e.attrs["luck"]) for e in examples if e.attrs["luck"]]
        null = copy[0].size * _by_luck(chances, self.threshold)
        heads = {"": count, "_low": low, "_high": high, "_null": null}
        heads["_lift"] = count / null if null > 0 else np.nan
        for end, value in heads.items():
            unit = "×" if end == "_lift" else self.units["heads"]
            result.data[f"heads{end}"] = "threshold", [value], {"units": unit}
        result.data = result.data.assign_coords(threshold=[self.threshold])
        result.values.append("heads")
        usable = f"{len(chances)} of {len(examples)}"
        result.data.attrs["copy"] = f"{usable} answers share a token with their gold region"
        return result

    def compute(self, trace: Trace) -> xr.Dataset:
        rows, gold = trace.rows, gold_of(trace)
        key = rows["row_key"].isel(rank=0).transpose("event", "layer", "head")
        names = ("copy", "copy_null", "evidence", "evidence_null")
        values: dict[str, Any] = dict.fromkeys(names, np.nan)
        luck = np.zeros(0)
        if gold is not None and len(key):
            counted = written(trace)
            for end, flow in (("", rows["row_flow"]), ("_null", row_null(trace))):
                share = flow.sel(target=gold).isel(event=counted).mean("event")
                values[f"evidence{end}"] = share.transpose("layer", "head", missing_dims="ignore")
            # prompt tokens do not change
            token, ids = rows["event_token"].values, trace.canvas.values[0]
            inside = trace.data["region"].values == gold
            words = [w for w in np.unique(token) if (ids[inside] == w).any()]
            hit = inside[key.values] & (ids[key.values] == token[:, None, None])
            chance = _chance(trace, inside, ids)
            luck = np.array([1 - np.prod(1 - chance[token == w]) for w in words])
            if words:
                values["copy"] = np.mean([hit[token == w].any(0) for w in words], axis=0)
                values["copy_null"] = luck.mean()
        dims = ("layer", "head")
        full = {name: (dims, np.broadcast_to(x, key.shape[1:])) for name, x in values.items()}
        return xr.Dataset(full, attrs={"gold": gold is not None, "luck": luck.tolist()})

    def plot(self, result: Result) -> Figure:
        copy, lift = result["copy"], result["evidence_lift"]

        def draw_copy(axis: Axes) -> None:
            top = max(self.threshold, float(np.nan_to_num(copy.max(), nan=0)))
            grid(axis, copy, "strict copy score", vmin=0, vmax=top)
            style: Any = {"color": "white", "markeredgecolor": "black", "markersize": 3.5}
            mark(axis, copy >= self.threshold, marker="o", **style)
            count, null = result["heads"].item(), result["heads_null"].item()
            title = f"strict copy: {count:g} heads ≥ {self.threshold:g} (by chance {null:.2g})"
            axis.set_title(title if np.isfinite(count) else "strict copy: nothing to copy")

        def draw_lift(axis: Axes) -> None:
            ends = np.nan_to_num([float(lift.max()), 1 / max(float(lift.min()), 0.05)], nan=2)
            grid(axis, lift, "mass on gold / uniform", span=max(2.0, *ends))
            has_gold = np.isfinite(lift).any()
            axis.set_title("evidence lift" if has_gold else "evidence lift: no gold region")

        return lines(result, draw_copy, draw_lift)


def _chance(trace: Trace, inside: np.ndarray, ids: np.ndarray) -> Float[np.ndarray, " e"]:
    """Return, for each reveal, the probability that a random visible key is gold and holds the same token."""
    token, steps = trace.rows["event_token"].values, trace.rows["event_step"].values
    rows, chance = rows_of_events(trace), np.zeros(len(token))
    for step in np.unique(steps):
        events, size = np.flatnonzero(steps == step), len(members(trace, int(step)))
        holds = (inside[:size, None] & (ids[:size, None] == token[events])).astype(float)
        even = uniform_rows(trace, holds, int(step))
        chance[events] = even[rows[events], range(len(events))]
    return chance


def _count(copy: Float[np.ndarray, "n c"], threshold: float) -> tuple[float, float, float]:
    """Count heads whose mean copy score reaches the threshold, with a bootstrap interval (1,000 draws)."""
    copy = copy[~np.isnan(copy).all(1)]
    if not len(copy):
        return np.nan, np.nan, np.nan
    count = float((copy.mean(0) >= threshold).sum())
    if len(copy) == 1:
        return count, np.nan, np.nan
    draws = np.random.default_rng(0).integers(0, len(copy), (1_000, len(copy)))
    counts = [(copy[chosen].mean(0) >= threshold).sum() for chosen in draws]
    low, high = np.quantile(counts, (0.025, 0.975), method="inverted_cdf")
    return count, float(min(low, count)), float(max(high, count))


def _by_luck(chances: list[np.ndarray], threshold: float) -> float:
    """Return the probability that a head with random keys has a mean copy score ≥ threshold."""
    if not chances:
        return np.nan
    rng = np.random.default_rng(0)
    score = np.mean([(rng.random((10_000, len(c))) < c).mean(1) for c in chances], axis=0)
    return float((score >= threshold - 1e-12).mean())
