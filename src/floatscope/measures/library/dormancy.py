"""Dormancy: which heads attend mostly to anchors, in which domain, and which heads switch between domains."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations
from typing import Any, ClassVar

import numpy as np
import xarray as xr

from ...errors import UsageError
from ...plots import Figure, grid, headline, lines, mark, panels
from ...stats.anchors import Rule, ZScore
from ...stats.crossing import crossing
from ...stats.discoveries import at_least, benjamini_hochberg
from ...trace import Trace
from ..base import Measure, by_layer
from ..result import Result

LEVEL = 0.05  # share of errors in a list of heads; 1 − the confidence of a count
_ZERO = 1e-6  # smaller differences are rounding errors


@dataclass(frozen=True)
class Dormancy(Measure):
    """Share of attention on anchors by layer and head, for traces of one domain. After Guo et al. 2410.13835.

    - `mass`: the head's share of attention on anchors, mean over steps; 0 if the head has no anchors. Null:
      uniform attention on the same keys
    - `dormant`: share of examples in which `mass` exceeds `threshold`. Null: share of examples in which the
      null of `mass` exceeds `threshold`

    Args:
        threshold (float): Share of attention on anchors above which a head counts as dormant; 0.3 by
            default.
        rule (Rule): Decides which keys are anchors; `ZScore(per_head=True)` by default. A rule on the mean
            over heads would miss the anchors of a single head.
    """

    threshold: float = 0.3
    rule: Rule = field(default_factory=lambda: ZScore(per_head=True))
    needs: ClassVar[tuple[str, ...]] = ("mass",)  # by head, even if the rule uses the head mean
    layerwise: ClassVar[bool] = True
    windows: ClassVar[bool] = True
    units: ClassVar[dict[str, str]] = {"mass": "share", "dormant": "share of examples"}

    def compute(self, trace: Trace) -> xr.Dataset:
        mass, null, anchor = trace.mass, trace.null, self.rule(trace)
        maps = {
            "mass": mass.where(anchor, 0).sum("key"),
            "mass_null": null.where(anchor, 0).sum("key") + 0 * mass.isel(key=0),
        }
        values = {k: by_layer(v, keep=("layer", "head")) for k, v in maps.items()}
        for end in ("", "_null"):
            values[f"dormant{end}"] = (values[f"mass{end}"] > self.threshold).astype(float)
        return xr.Dataset(values)

    def plot(self, result: Result) -> Figure:
        above = f"share of examples above {self.threshold:g}"
        mass = partial(grid, values=result["mass"], label="share of attention on anchors")
        dormant = partial(grid, values=result["dormant"], label=above)
        return lines(result, partial(mass, vmin=0, vmax=1), partial(dormant, vmin=0, vmax=1))


def switching(results: Mapping[str, Result], *, threshold: float | None = None) -> xr.Dataset:
    """Find the heads that are dormant in one domain and active in another, for every pair of domains.

    A head crosses if its mean share of attention on anchors is above the threshold in one domain and below
    it in the other. Values by pair, layer and head:

    - `crosses`: heads that cross, with an expected share of false entries of 5 % (intersection–union
      t tests, `p_crosses`, with Benjamini–Hochberg)
    - `stays`: heads on the same side in both domains, by the same kind of test (`p_stays`)
    - `differs`: heads whose means differ (Welch's test, `p_differs`). This statement is weaker than
      `crosses`: a head with the means 0.05 and 0.15 is active in both domains
    - `difference`: mean of the first domain minus that of the second, with `low` and `high` (95 % for each
      head)
    - `null_difference`: the difference under uniform attention, which the lengths of the texts alone cause

    Attributes: `tested` (number of heads), `switching` (number of heads that cross), and the bounds
    `at_least` and `at_most` of that number, which hold together with 95 % confidence.

    Args:
        results (mapping of str to Result): A result of `Dormancy` for each of two or more domains, by the
            domain's name. All are of one model, with two or more examples each.
        threshold (float): Share of attention on anchors; by default that of the measure.

    Returns:
        The values with their attributes, as a dataset.
    """
    if len(results) < 2:
        raise UsageError("switching needs at least two domains", "Give {name: result, ...}.")
    first = next(iter(results.values()))
    for name, result in results.items():
        if not isinstance(result.measure, Dormancy) or result.measure != first.measure:
            problem = f"{name!r} was measured by {result.measure!r}, not {first.measure!r}"
            raise UsageError(problem, "Measure every domain with the same Dormancy.")
        if result.model != first.model or result.mass.shape != first.mass.shape:
            expected = f"{first.model}, {first.mass.shape}"
            problem = f"{name!r} is of {result.model}, {result.mass.shape}, not of {expected}"
            raise UsageError(
                problem, "Compare domains of one model, with the same layers and heads."
            )
        if result.n < 2:
            raise UsageError(f"{name!r} has one example: no interval", "Give at least two.")
    threshold = first.measure.threshold if threshold is None else threshold
    pairs = list(combinations(results, 2))
    compared = [_pair(results[a], results[b], threshold) for a, b in pairs]
    joined = xr.concat(compared, dim="pair").assign_coords(pair=[f"{a} − {b}" for a, b in pairs])
    p = {name: joined[f"p_{name}"].values for name in ("crosses", "stays", "differs")}
    for name, values in p.items():
        joined[name] = (joined["difference"].dims, benjamini_hochberg(values, LEVEL))
    joined.attrs = {
        "model": first.model,
        "measure": repr(first.measure),
        "threshold": threshold,
        "tested": p["crosses"].size,
        "switching": int(joined["crosses"].sum()),
        "at_least": at_least(p["crosses"], LEVEL / 2),
        "at_most": p["stays"].size - at_least(p["stays"], LEVEL / 2),
    }
    return joined


def _pair(a: Result, b: Result, threshold: float) -> xr.Dataset:
    from scipy import stats

    order = ("layer", "head")
    mass, other = (r.examples["mass"].transpose("example", *order).values for r in (a, b))
    tested = crossing(mass.astype(float), other.astype(float), threshold)
    difference = mass.mean(0) - other.mean(0)
    varies = sum(x.var(0, ddof=1) / len(x) for x in (mass, other)) > _ZERO**2
    with np.errstate(divide="ignore", invalid="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # scipy's warnings about equal values
        welch = stats.ttest_ind(mass, other, equal_var=False)
        low, high = welch.confidence_interval(1 - LEVEL)
    null = (a.data["mass_null"] - b.data["mass_null"]).transpose(*order).values
    values = {
        "difference": difference,
        "low": np.where(varies, low, np.nan),
        "high": np.where(varies, high, np.nan),
        "p_crosses": tested.crosses,
        "p_stays": tested.stays,
        "p_differs": np.where(varies, welch.pvalue, 1.0),
        "null_difference": null,
    }
    template = a.data["mass"].transpose(*order)
    return xr.Dataset({name: template.copy(data=array) for name, array in values.items()})


def draw_switching(compared: xr.Dataset) -> Figure:
    """Draw a map per pair of domains, with + or − on heads that cross and a dot on heads that differ only."""
    with panels(1, compared.sizes["pair"], width=3.8, height=2.6) as (figure, axes):
        limit = max(float(abs(compared["difference"]).max()), 0.05)
        for axis, name in zip(axes[0], compared["pair"].values, strict=True):
            heads = compared.sel(pair=name).transpose("layer", "head")
            style: Any = {"vmin": -limit, "vmax": limit, "cmap": "PuOr_r"}
            grid(axis, heads["difference"], "difference of mass on anchors", **style)
            axis.set_title(str(name))
            higher, crosses = heads["difference"] > 0, heads["crosses"]
            style = {"mec": "black", "mfc": "black", "mew": 0.7}
            mark(axis, crosses & higher, marker="+", ms=5, **style)
            mark(axis, crosses & ~higher, marker="_", ms=5, **style)
            mark(axis, heads["differs"] & ~crosses, marker=".", ms=1.5, **style)
        title = (
            "{model}: {switching} of {tested} heads switch (+ −), {at_least} to {at_most}\n"
            "with 95 % confidence; others differ (·)"
        )
        headline(figure, title.format(**compared.attrs))
    return figure
