"""Dormancy: which heads rest on anchors, in which domain, and which of them switch.

A head is called dormant by its attention alone: one that reads a single key for good reason looks
the same. It is not shown here that a dormant head could be removed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations
from typing import ClassVar

import numpy as np
import xarray as xr

from ...errors import UsageError
from ...stats.anchors import Rule, ZScore
from ...stats.intervals import independent
from ...trace import Trace
from ..base import Measure
from ..contrast import by_layer
from ..result import Result
from ..style import SHARE_MAP, Axes, Figure, panels

LEVEL = 0.05
_ZERO = 1e-6  # differences below are rounding


@dataclass(frozen=True)
class Dormancy(Measure):
    """Mass on anchors by layer and head, for traces of one domain. After Guo et al. 2410.13835.

    - `mass`: the head's share of attention on anchors, mean over steps; 0 where it has none; null:
      what uniform attention would give the same keys
    - `dormant`: share of examples where that exceeds `threshold`; null: where uniform would

    The rule looks at each head by itself: on the head mean, the others would hide one head's sink.
    """

    threshold: float = 0.3
    rule: Rule = field(default_factory=lambda: ZScore(per_head=True))
    units: ClassVar[dict[str, str]] = {"mass": "share", "dormant": "share of examples"}

    def one(self, trace: Trace) -> xr.Dataset:
        mass, null, anchor = trace.mass, trace.null, self.rule(trace)
        maps = {
            "mass": mass.where(anchor, 0).sum("key"),
            "mass_null": null.where(anchor, 0).sum("key") + 0 * mass.isel(key=0),
        }
        values = {k: by_layer(v, keep=("layer", "head")) for k, v in maps.items()}
        values["dormant"] = (values["mass"] > self.threshold).astype(float)
        values["dormant_null"] = (values["mass_null"] > self.threshold).astype(float)
        return xr.Dataset(values)

    def plot(self, result: Result) -> Figure:
        with panels(1, 2) as (figure, axes):
            left, right = axes[0]
            _map(left, result.data["mass"], "share of attention on anchors")
            _map(right, result.data["dormant"], f"share of examples above {self.threshold:g}")
            figure.suptitle(f"{result.model}, n = {result.n}", fontsize=8, x=0.01, ha="left")
        return figure


def switching(results: Mapping[str, Result]) -> xr.Dataset:
    """Heads whose mass on anchors differs between domains, for every pair of domains.

    The examples of two domains are other examples: two samples of their own.
    `difference` = first − second with `low` and `high` (95 %, head by head); `switches`: the interval
    leaves out 0; `joint`: so does one that holds for all heads of the pair at once (its level is
    1 − 5 % / heads, Bonferroni). A head without mass on anchors anywhere is not tested.
    `null_difference`: what the domains' lengths alone do under uniform attention. Attributes: how
    many heads were tested, how many switch, and how many would by chance alone.
    """
    if len(results) < 2:
        raise UsageError("switching needs at least two domains", "Give {name: result, ...}.")
    first = next(iter(results.values()))
    for name, result in results.items():
        if not isinstance(result.measure, Dormancy) or result.measure != first.measure:
            raise UsageError(
                f"{name!r} was measured by {result.measure!r}, not {first.measure!r}",
                "Measure every domain with the same Dormancy.",
            )
        if result.model != first.model or result.mass.shape != first.mass.shape:
            raise UsageError(
                f"{name!r} is of {result.model}, {result.mass.shape}, not of {first.model}, "
                f"{first.mass.shape}",
                "Compare domains of one model, with the same layers and heads.",
            )
        if result.n < 2:
            raise UsageError(f"{name!r} has one example: no interval", "Give at least two.")
    pairs = list(combinations(results, 2))
    compared = [_pair(results[a], results[b]) for a, b in pairs]
    together = xr.concat(compared, dim="pair").assign_coords(pair=[f"{a} − {b}" for a, b in pairs])
    tested = int(together["tested"].sum())
    together.attrs = {
        "model": first.model,
        "measure": repr(first.measure),
        "tested": tested,
        "expected_by_chance": LEVEL * tested,
        "switching": int(together["switches"].sum()),
        "joint": int(together["joint"].sum()),
    }
    return together


def _pair(a: Result, b: Result) -> xr.Dataset:
    one, two = (
        r.examples["mass"].transpose("example", "layer", "head").values.astype(float)
        for r in (a, b)
    )
    heads = one[0].size
    difference, low, high = independent(one, two, level=1 - LEVEL, bounds=(0, 1))
    _, least, most = independent(one, two, level=1 - LEVEL / heads, bounds=(0, 1))
    real = abs(difference) > _ZERO
    moves = real | (np.ptp(one, axis=0) > _ZERO) | (np.ptp(two, axis=0) > _ZERO)
    values = {
        "difference": difference,
        "low": low,
        "high": high,
        "switches": ((low > 0) | (high < 0)) & real,
        "joint": ((least > 0) | (most < 0)) & real,
        "null_difference": (a.data["mass_null"] - b.data["mass_null"])
        .transpose("layer", "head")
        .values,
        "tested": moves,
    }
    like = a.data["mass"].transpose("layer", "head")
    return xr.Dataset({k: like.copy(data=v) for k, v in values.items()})


def draw_switching(compared: xr.Dataset) -> Figure:
    """One map per pair: + or − on heads that switch, boxed where that holds for all heads at once."""
    with panels(1, compared.sizes["pair"], width=3.8, height=2.6) as (figure, axes):
        limit = max(float(abs(compared["difference"]).max()), 0.05)
        for axis, name in zip(axes[0], compared["pair"].values, strict=True):
            one = compared.sel(pair=name).transpose("layer", "head")
            _map(axis, one["difference"], "difference of mass on anchors", limit=limit)
            axis.set_title(str(name))
            more, switches = one["difference"].values > 0, one["switches"].values
            marks = {"+": switches & more, "_": switches & ~more, "s": one["joint"].values}
            for marker, there in marks.items():
                layer, head = np.nonzero(there)
                at = one["layer"].values[layer], one["head"].values[head]
                face = "none" if marker == "s" else "black"
                size = 40 if marker == "s" else 16
                axis.plot(*at, ls="", marker=marker, ms=size**0.5, mec="black", mfc=face, mew=0.7)
        facts = compared.attrs
        title = (
            f"{facts['model']}: {facts['switching']} of {facts['tested']} heads switch (+ −),\n"
            f"{facts['expected_by_chance']:.1f} expected by chance; "
            f"{facts['joint']} over all heads at once (□)"
        )
        figure.suptitle(title, fontsize=8, x=0.01, ha="left")
    return figure


def _map(axis: Axes, values: xr.DataArray, label: str, *, limit: float | None = None) -> None:
    from matplotlib.ticker import MaxNLocator

    grid = values.transpose("head", "layer")
    low, high, colours = (0, 1, SHARE_MAP) if limit is None else (-limit, limit, "PuOr_r")
    x, y = grid["layer"].values, grid["head"].values
    drawn = axis.pcolormesh(x, y, grid.values, vmin=low, vmax=high, cmap=colours)
    axis.set_xlabel("layer")
    axis.set_ylabel("head")
    for side in (axis.xaxis, axis.yaxis):
        side.set_major_locator(MaxNLocator(integer=True))
    figure = axis.figure
    figure.colorbar(drawn, ax=axis, label=label)
