"""Movement: does the key that masked rows look at most change while the answer is revealed?

Strength is another question: an anchor with 5 % of attention that moves and one with 40 % that stays are
both findings, so both are given. Whether a weak anchor is more than noise is for a study to say, which has
untrained networks to compare with.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import scipy
import xarray as xr
from jaxtyping import Float, Int

from ...errors import TraceError, UsageError
from ...plots import Figure, grid, headline, panels
from ...stats.discoveries import benjamini_hochberg
from ...stats.movement import FACTOR, HALF, UNTIL, follow
from ...trace import Trace
from ...trace.states import N_STATES
from ..base import Measure
from ..result import Result

Dims = tuple[str, ...]
_LAYER: Dims = ("layer",)
_HEADS: Dims = ("layer", "head")
_VALUES: dict[Dims, Dims] = {
    _LAYER: ("moved", "moved_late", "share", "frontier"),
    _HEADS: ("moved_heads", "share_heads", "frontier_heads"),
}


@dataclass(frozen=True)
class Movement(Measure):
    """Whether the reference key of masked rows changes over the states of a decoding.

    It is asked of `model.read_states(trace)`, which reads the canvas at the start, at ¼, ½ and ¾ of the
    content, and at the last step at which 8 rows are still masked. Neighbouring states are compared on the
    rows that are masked in both. The reference key is replaced only when another key receives at least
    `factor` times its share, so that near-ties do not count.

    - `moved`: by layer (mean over heads), 1 where the reference key changed at least once
    - `moved_late`: by layer, 1 where it changes from the start to the last state, on the rows masked in both
    - `share`: by layer, of the masked rows' attention on the reference key, mean over states
    - `frontier`: by layer, correlation of the reference key's place with the first position still masked
    - `moved_heads`, `share_heads`, `frontier_heads`: the same by layer and head
    - `content`: tokens of the answer

    NaN where the answer is too short to have five states.
    """

    factor: float = FACTOR
    needs: ClassVar[tuple[str, ...]] = ("groups",)
    units: ClassVar[dict[str, str]] = {
        **dict.fromkeys(("moved", "moved_late", "share", "moved_heads", "share_heads"), "share"),
        **dict.fromkeys(("frontier", "frontier_heads"), "correlation"),
        "content": "tokens",
    }

    def __post_init__(self) -> None:
        if not self.factor >= 1:
            raise UsageError(f"Movement(factor={self.factor})", "Use 1 or more.")

    def compute(self, trace: Trace) -> xr.Dataset:
        regions = trace.data["region"].values.astype(str)
        if not any(name.startswith(UNTIL) for name in regions):
            raise TraceError(
                "expected a trace of states, with rows grouped by how long they stay masked",
                "Give what model.read_states(trace) returns.",
            )
        last = np.array([int(r.rsplit(" ")[-1]) if r.startswith(UNTIL) else -2 for r in regions])
        empty = [int(trace.info["mask_id"]), *map(int, trace.info.get("end_ids", ()))]
        content = float((~np.isin(trace.canvas.values[-1][last > -2], empty)).sum())
        coords = {name: trace.data[name].values for name in ("layer", "head")}
        if trace.data.sizes["step"] < N_STATES:
            none = {d: np.full([len(coords[x]) for x in d], np.nan) for d in (_LAYER, _HEADS)}
            values = {name: (d, none[d]) for d, names in _VALUES.items() for name in names}
            return xr.Dataset(values, coords).assign(content=content)
        before, after = _pairs(trace)  # (pair, layer, head, key)
        mean = follow(before.mean(2), after.mean(2), self.factor)
        head = follow(before, after, self.factor)
        until = f"{UNTIL} {N_STATES - 1}"  # rows that are masked at the first and at the last state
        start, late = (_share(trace, s, until).mean(1)[None] for s in (0, -1))  # (1, layer, key)
        frontier = np.array([np.flatnonzero(last >= state).min() for state in range(N_STATES)])
        values = {
            "moved": (("layer",), mean.moved.astype(float)),
            "moved_late": (("layer",), follow(start, late, self.factor).moved.astype(float)),
            "share": (("layer",), mean.share.mean(0)),
            "frontier": (("layer",), _correlate(mean.key, frontier)),
            "moved_heads": (("layer", "head"), head.moved.astype(float)),
            "share_heads": (("layer", "head"), head.share.mean(0)),
            "frontier_heads": (("layer", "head"), _correlate(head.key, frontier)),
        }
        return xr.Dataset(values, coords).assign(content=content)

    def plot(self, result: Result) -> Figure:
        """Layer × head: strength, movement, and correlation with the frontier of revealed text."""
        with panels(1, 3) as (figure, axes):
            share, moved, along = axes[0]
            surely = benjamini_hochberg(_p_value(result.examples["moved_heads"]))
            grid(share, result["share_heads"], "share of attention", vmin=0)
            grid(moved, result["moved_heads"], "share of texts that move", vmin=0, vmax=1)
            label = "r with the frontier"
            grid(along, result["frontier_heads"], label, vmin=-1, vmax=1, cmap="RdBu_r")
            at = np.argwhere(surely)
            moved.scatter(
                at[:, 0], at[:, 1], s=5, color="white", edgecolors="black", linewidths=0.4
            )
            note = "dots: more than half of the texts (FDR 5 %)"
            headline(figure, f"{result.model}, n = {result.n}; {note}")
        return figure


def _pairs(trace: Trace) -> tuple[np.ndarray, np.ndarray]:
    """Shares by key (pair, layer, head, key) at a state and at the next, on the rows masked in both."""
    groups = [str(group) for group in trace.data["group"].values]
    pairs = []
    for state in range(N_STATES - 1):
        rows = [g for i in range(state + 1, N_STATES) if (g := f"{UNTIL} {i}") in groups]
        pairs.append([_share(trace, s, *rows) for s in (state, state + 1)])
    before, after = map(np.stack, zip(*pairs, strict=True))
    return before, after


def _share(trace: Trace, state: int, *rows: str) -> np.ndarray:
    """Return the shares (layer, head, key) of attention from these rows at one state."""
    share = trace.at_step(state).mass_from(*rows)
    return share.transpose("step", "layer", "head", "key").values[0]


def _correlate(
    key: Int[np.ndarray, "states *cells"], frontier: Int[np.ndarray, " states"]
) -> Float[np.ndarray, "*cells"]:
    """Correlate the reference key's place with the frontier over states; NaN where it never moves."""
    x = key - key.mean(0)
    y = frontier - frontier.mean()
    with np.errstate(invalid="ignore", divide="ignore"):
        r: np.ndarray = np.tensordot(y, x, 1) / np.sqrt((x**2).sum(0) * (y**2).sum())
    return r


def _p_value(moved: xr.DataArray) -> Float[np.ndarray, "layer head"]:
    """The probability of as many moving texts if each moved with probability one half."""
    each = moved.transpose("example", "layer", "head").values
    each = each[~np.isnan(each).all((1, 2))]
    p: np.ndarray = scipy.special.bdtrc(each.sum(0) - 1, len(each), HALF)  # P(X ≥ k)
    return p
