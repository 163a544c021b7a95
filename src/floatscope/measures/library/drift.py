"""Drift: whether anchors stay in place from step to step, or from layer to layer."""

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import numpy as np
import xarray as xr

from ...errors import UsageError
from ...plots import POSITIVE, SHARE, Figure, lines
from ...stats.chance import Chance
from ...trace import Trace
from ..base import AnchorMeasure, by_layer
from ..result import Result


@dataclass(frozen=True)
class Drift(AnchorMeasure):
    """Persistence and movement of anchors over kept steps or layers, compared with chance.

    Defined in Attention Floating (2601.07894), §3; chance levels are added here. A state is a step or a
    layer. The values are means over pairs of neighbouring states:

    - `persistence`: Jaccard index of the anchors of the two states; pairs of states without any anchor are
      left out
    - `floating`: 1 − persistence
    - `stay`: share of pairs in which the strongest key is the same
    - `displacement`: number of positions by which the strongest key moves
    - `lifetime`: mean number of consecutive states in which a key is an anchor
    - `centroid_variance`: variance of the anchors' mean position, weighted by mass
    - `frontier`: Pearson correlation of the strongest key's position with the mean answer position revealed
      so far; over steps only

    The null is two independent states of random attention with the same numbers of anchors (see
    `stats.chance`). With a single state, all values are NaN. Neighbouring steps of a causal model share all
    rows but one, so use `over="layer"` for such a model.

    Args:
        over (str): Compare neighbouring kept steps ("step", by default) or neighbouring layers ("layer").
    """

    over: str = "step"  # or "layer"
    units: ClassVar[dict[str, str]] = {
        "persistence": "Jaccard",
        "floating": "1 − Jaccard",
        "stay": "share",
        "displacement": "positions",
        "lifetime": "states",
        "centroid_variance": "positions²",
        "frontier": "correlation",
    }
    nulls: ClassVar[dict[str, float]] = {"frontier": 0.0}

    def __post_init__(self) -> None:
        if self.over not in ("step", "layer"):
            raise UsageError(f"Drift(over={self.over!r})", 'Use over="step" or over="layer".')

    @property
    def layerwise(self) -> bool:
        return self.rule.per_head and self.over == "step"

    def compute(self, trace: Trace) -> xr.Dataset:
        if self.rule.per_head:
            received, mass = trace.received, trace.mass
        else:
            received, mass = trace.mean_received, trace.mean_mass
        by = "layer" if self.over == "step" else "step"
        lead = [by, "head"] if self.rule.per_head else [by]
        order = (*lead, self.over, "key")
        visible = trace.data["visible"].variable.set_dims(received.sizes).transpose(*order).values
        c, anchor, weight = (a.transpose(*order).values for a in (received, self.rule(trace), mass))
        front = _frontier(trace) if self.over == "step" else np.full(c.shape[-2], np.nan)
        shape = c.shape[:-2]
        rows = [_row(c[i], anchor[i], weight[i], visible[i], front) for i in np.ndindex(shape)]
        values = {}
        for name in rows[0]:
            cells = xr.Variable(lead, np.reshape([row[name] for row in rows], shape))
            values[name] = by_layer(cells, keep=[by])
        limits = {"lifetime": c.shape[-2], "displacement": c.shape[-1]}
        return xr.Dataset(values, attrs={"most": limits})

    def plot(self, result: Result) -> Figure:
        labels = {"persistence": "anchors (Jaccard)", "stay": "strongest key"}
        return lines(
            result,
            ("stays where it is", labels, SHARE),
            ("displacement (positions)", "displacement", POSITIVE),
            (f"an anchor lasts ({self.over}s)", "lifetime", POSITIVE),
            note=f", over {self.over}s (dotted: chance)",
            width=2.6,
        )


def _row(
    c: np.ndarray, anchor: np.ndarray, weight: np.ndarray, visible: np.ndarray, front: np.ndarray
) -> dict[str, float]:
    """Compute all values for one layer over steps, or for one step over layers; arrays are (states, keys)."""
    names = ("persistence", "floating", "stay", "displacement", "lifetime")
    values = {n + end: np.nan for n in names for end in ("", "_null")}
    values |= {"centroid_variance": np.nan, "frontier": np.nan}
    if len(c) < 2:
        return values
    c = c.astype(np.float64)
    chance = Chance(visible[-1], c)
    sizes = anchor.sum(-1)
    shared = (anchor[:-1] & anchor[1:]).sum(-1)
    either = sizes[:-1] + sizes[1:] - shared
    pairs = [chance.pair(int(a), int(b)) for a, b in pairwise(sizes)]
    if either.any():
        jaccard, overlap = np.transpose(pairs)
        anchored = either > 0
        observed = shared[anchored] / either[anchored]
        persistence = {"": observed.mean(), "_null": np.nanmean(jaccard)}
        overlaps = {"": shared.sum(), "_null": overlap.sum()}
        for end in ("", "_null"):
            values[f"persistence{end}"] = persistence[end]
            values[f"floating{end}"] = 1 - persistence[end]
            values[f"lifetime{end}"] = sizes.sum() / (sizes.sum() - overlaps[end])
    top = np.where(np.isnan(c), -1, c).argmax(-1)
    step = abs(np.diff(top))
    values |= {"stay": (step == 0).mean(), "stay_null": chance.stay}
    values |= {"displacement": step.mean(), "displacement_null": chance.displacement}
    anchor_weight, anchored = np.where(anchor, weight, 0.0), sizes > 0
    if anchored.sum() > 1:
        centre = (anchor_weight[anchored] * np.arange(c.shape[-1])).sum(-1) / anchor_weight[
            anchored
        ].sum(-1)
        values["centroid_variance"] = centre.var()
    values["frontier"] = _correlation(top, front)
    return values


def _frontier(trace: Trace) -> np.ndarray:
    """Return the mean position of the tokens revealed before each kept step; NaN if there are none."""
    revealed = np.zeros(trace.data.sizes["key"], bool)
    mean = [np.nan]
    for change in trace.change.values:
        revealed = (revealed | (change == 1)) & (change != 2)
        mean.append(np.flatnonzero(revealed).mean() if revealed.any() else np.nan)
    return np.array(mean)[trace.data["step"].values]


def _correlation(x: np.ndarray, y: np.ndarray) -> float:
    """Return Pearson's correlation; NaN if either is constant or fewer than three states have both values."""
    defined = ~np.isnan(y)
    x, y = x[defined], y[defined]
    constant = len(x) < 3 or np.ptp(x) == 0 or np.ptp(y) == 0
    return np.nan if constant else float(np.corrcoef(x, y)[0, 1])
