"""Overlap: how far the sets of strongest keys of two steps agree."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import xarray as xr

from ...plots import COLOURS, Axes, Figure, legend_above, lines
from ...stats.chance import exact_jaccard
from ...trace import Trace
from ..base import Measure
from ..result import Result
from ..reused_keys import (
    BUDGETS,
    LAGS,
    by_lag,
    check_shares,
    deciding_mass,
    later,
    present_keys,
    set_sizes,
    top_sets,
)


@dataclass(frozen=True)
class Overlap(Measure):
    """Jaccard index of the strongest keys of two steps, by layer and head.

    The attention is that of the rows still masked or, in a causal model, that of the newest row. A budget is
    a share of the present keys.

    - `jaccard`: index of a reference step and a later step, (reference, step, layer, head, budget); NaN for
      steps before the reference; only with `matrix`
    - `lagged`: mean index of all pairs of steps that are `lag` kept steps apart, (lag, layer, head, budget)

    The null is the exact expectation for two random sets of the same sizes among the present keys.

    Args:
        budgets (tuple of float): Sizes of the sets as shares of the present keys, each above 0 and up to 1.
        lags (tuple of int): Distances in kept steps.
        matrix (bool): Whether to keep the values by reference and step, which are steps² values per head.
    """

    budgets: tuple[float, ...] = BUDGETS
    lags: tuple[int, ...] = LAGS
    matrix: bool = False
    needs: ClassVar[tuple[str, ...]] = ("groups",)
    units: ClassVar[dict[str, str]] = dict.fromkeys(("jaccard", "lagged"), "Jaccard")
    layerwise: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_shares("Overlap: budgets", self.budgets)

    def compute(self, trace: Trace) -> xr.Dataset:
        mass, present = deciding_mass(trace), present_keys(trace)
        sizes = set_sizes(present, self.budgets)
        layers = []
        for layer in range(mass.sizes["layer"]):
            heads = mass.isel(layer=layer).transpose("head", "step", "key").values
            sets = np.moveaxis(top_sets(heads, present, sizes), 2, 1).astype(np.float32)
            shared = np.moveaxis(
                sets @ sets.swapaxes(-1, -2), 1, -1
            )  # (head, reference, step, budget)
            layers.append(shared / (sizes[:, None] + sizes[None] - shared))
        jaccard, null = np.stack(layers), _by_chance(present.sum(-1), sizes)
        dims = ("layer", "head", "reference", "step", "budget")
        values: dict[str, Any] = {
            "lagged": (("layer", "head", "lag", "budget"), by_lag(jaccard, self.lags)),
            "lagged_null": (("lag", "budget"), by_lag(null, self.lags)),
        }
        coords: dict[str, Any] = {"budget": list(self.budgets), "lag": list(self.lags)}
        if self.matrix:
            values["jaccard"] = dims, later(jaccard)
            values["jaccard_null"] = dims[2:], later(null)
            coords |= {"reference": trace.data["step"].values, "step": trace.data["step"].values}
        order = ("lag", "reference", "step", "layer", "head", "budget")
        return xr.Dataset(values, coords).transpose(*order, missing_dims="ignore")

    def plot(self, result: Result) -> Figure:
        def draw(axis: Axes) -> None:
            budget = min(self.budgets, key=lambda share: abs(share - 0.1))
            at = result.data.sel(budget=budget)
            for colour, lag in zip(COLOURS, self.lags, strict=False):
                mean = at["lagged"].sel(lag=lag).mean("head")
                axis.plot(at["layer"], mean, color=colour, label=f"{lag}")
            axis.axhline(
                float(at["lagged_null"].mean()), color="0.4", linestyle=":", label="random"
            )
            axis.set(xlabel="layer", ylabel=f"Jaccard of {budget:.0%} of the keys", ylim=(0, 1))
            legend_above(axis, title="steps apart", handlelength=1)

        return lines(result, draw)


def _by_chance(present: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Return the expected Jaccard index of random sets at each pair of steps: (reference, step, budget)."""
    pairs = [
        [
            [exact_jaccard(int(a), int(b), int(max(n, m))) for a, b in zip(one, two, strict=True)]
            for two, m in zip(sizes, present, strict=True)
        ]
        for one, n in zip(sizes, present, strict=True)
    ]
    return np.array(pairs)
