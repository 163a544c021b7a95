"""Movement: whether the strongest key of masked rows changes while the answer is revealed.

The measure also contains the strength of the key. Whether a weak key is more than noise can be decided only
by a study that compares the strength with that in untrained networks.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import scipy
import xarray as xr
from jaxtyping import Float, Int

from ...errors import TraceError, UsageError
from ...plots import Axes, Figure, grid, lines, mark
from ...stats.discoveries import benjamini_hochberg
from ...stats.movement import FACTOR, HALF, UNTIL, follow
from ...trace import Trace
from ...trace.states import N_STATES
from ..base import Measure
from ..result import Result


@dataclass(frozen=True)
class Movement(Measure):
    """Movement of the reference key of masked rows during a decoding.

    The measure reads the trace returned by `model.read_states(trace)`: the canvas at the start, at ¼, ½ and
    ¾ of the content, and at the last step at which 8 rows are still masked. Neighbouring states are
    compared on the rows that are masked in both. Another key replaces the reference key only if the other key
    receives at least `factor` times the share of the reference key, so that near-ties do not count.

    - `moved`: by layer (mean over heads), 1 if the reference key changed at least once
    - `moved_late`: by layer, 1 if the reference key differs between the first and the last state, on the
      rows masked in both
    - `share`: by layer, share of the masked rows' attention on the reference key, mean over states
    - `frontier`: by layer, correlation of the reference key's position with the first position still masked
    - `moved_heads`, `share_heads`, `frontier_heads`: the same by layer and head
    - `content`: number of content tokens in the answer

    All values are NaN if the answer is too short for five states.

    Args:
        factor (float): How many times the reference key's share another key must receive to replace it; 1 or
            more.
    """

    factor: float = FACTOR
    needs: ClassVar[tuple[str, ...]] = ("groups",)
    units: ClassVar[dict[str, str]] = {
        **dict.fromkeys(("moved", "moved_late", "share"), "share"),
        "frontier": "correlation",
        **dict.fromkeys(("moved_heads", "share_heads"), "share"),
        "frontier_heads": "correlation",
        "content": "tokens",
    }

    def __post_init__(self) -> None:
        if not self.factor >= 1:
            raise UsageError(f"Movement(factor={self.factor})", "Use 1 or more.")

    def compute(self, trace: Trace) -> xr.Dataset:
        regions = trace.data["region"].values.astype(str)
        if not any(name.startswith(UNTIL) for name in regions):
            problem = "expected a trace of states, with rows grouped by how long they stay masked"
            raise TraceError(problem, "Give the trace returned by model.read_states(trace).")
        last = np.array([int(r.rsplit(" ")[-1]) if r.startswith(UNTIL) else -2 for r in regions])
        empty = [int(trace.info["mask_id"]), *map(int, trace.info.get("end_ids", ()))]
        content = float((~np.isin(trace.canvas.values[-1][last > -2], empty)).sum())
        values: Any = {name: np.nan for name in self.units if name != "content"}
        if trace.data.sizes["step"] >= N_STATES:
            values = self._follow(trace, last)
        data = {}
        for name, value in values.items():
            dims = ("layer", "head") if name.endswith("_heads") else ("layer",)
            shape = [trace.data.sizes[dim] for dim in dims]
            data[name] = dims, np.broadcast_to(value, shape).astype(float)
        return xr.Dataset(data | {"content": ((), content)})

    def _follow(self, trace: Trace, last: Int[np.ndarray, " keys"]) -> dict[str, np.ndarray]:
        """Compute all values except `content`; `last` is the last state in which each position is masked."""
        before, after = _pairs(trace)  # (pair, layer, head, key)
        mean = follow(before.mean(2), after.mean(2), self.factor)
        head = follow(before, after, self.factor)
        until = f"{UNTIL} {N_STATES - 1}"  # rows that are masked at the first and at the last state
        start, late = (_share(trace, s, until).mean(1)[None] for s in (0, -1))  # (1, layer, key)
        frontier = np.array([np.flatnonzero(last >= state).min() for state in range(N_STATES)])
        return {
            "moved": mean.moved,
            "moved_late": follow(start, late, self.factor).moved,
            "share": mean.share.mean(0),
            "frontier": _correlate(mean.key, frontier),
            "moved_heads": head.moved,
            "share_heads": head.share.mean(0),
            "frontier_heads": _correlate(head.key, frontier),
        }

    def plot(self, result: Result) -> Figure:
        """Draw maps (layer × head) of strength, movement, and correlation with the frontier."""

        def draw_moved(axis: Axes) -> None:
            moved = result["moved_heads"]
            grid(axis, moved, "share of texts that move", vmin=0, vmax=1)
            surely = benjamini_hochberg(_p_value(result.examples["moved_heads"]))
            style: Any = {"mfc": "white", "mec": "black", "mew": 0.4, "ms": 2.2}
            mark(axis, moved.transpose("layer", "head").copy(data=surely), marker="o", **style)

        share = partial(grid, values=result["share_heads"], label="share of attention", vmin=0)
        style: Any = {"vmin": -1, "vmax": 1, "cmap": "RdBu_r"}
        along = partial(grid, values=result["frontier_heads"], label="r with the frontier", **style)
        note = "; dots: more than half of the texts (FDR 5 %)"
        return lines(result, share, draw_moved, along, note=note)


def _pairs(trace: Trace) -> tuple[np.ndarray, np.ndarray]:
    """Return shares (pair, layer, head, key) for each state and for the next, from rows masked in both."""
    groups = [str(group) for group in trace.data["group"].values]
    pairs = []
    for state in range(N_STATES - 1):
        rows = [g for i in range(state + 1, N_STATES) if (g := f"{UNTIL} {i}") in groups]
        pairs.append([_share(trace, s, *rows) for s in (state, state + 1)])
    before, after = map(np.stack, zip(*pairs, strict=True))
    return before, after


def _share(trace: Trace, state: int, *rows: str) -> np.ndarray:
    """Return the shares (layer, head, key) of attention from these rows in one state."""
    share = trace.at_step(state).mass_from(*rows)
    return share.transpose("step", "layer", "head", "key").values[0]


def _correlate(key: Int[np.ndarray, "states *cells"], frontier: np.ndarray) -> np.ndarray:
    """Correlate the reference key's position with the frontier over states; NaN if it never moves."""
    x = key - key.mean(0)
    y = frontier - frontier.mean()
    with np.errstate(invalid="ignore", divide="ignore"):
        r: np.ndarray = np.tensordot(y, x, 1) / np.sqrt((x**2).sum(0) * (y**2).sum())
    return r


def _p_value(moved: xr.DataArray) -> Float[np.ndarray, "layer head"]:
    """Return the one-sided p-value of the number of texts whose reference key moved; null: ½ per text."""
    by_text = moved.transpose("example", "layer", "head").values
    by_text = by_text[~np.isnan(by_text).all((1, 2))]
    p: np.ndarray = scipy.special.bdtrc(by_text.sum(0) - 1, len(by_text), HALF)  # P(X ≥ k)
    return p
