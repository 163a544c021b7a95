"""Reuse: how much attention a set of keys receives at steps after the one at which it was chosen."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import xarray as xr
from jaxtyping import Bool, Float

from ...errors import UsageError
from ...plots import COLOURS, Axes, Figure, legend_above, lines
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
    retained_by,
    set_sizes,
    top_sets,
    window_sets,
)

MATRIX = ("reference", "step", "layer", "head", "budget")
KINDS = ("retained", "head_mean")
EACH_STEP = ("oracle", "window")


@dataclass(frozen=True)
class Reuse(Measure):
    """Share of attention at step t on the strongest keys of an earlier step t₀, by layer and head.

    Caches and sparse attention rely on a high share (SparseD, 2509.24014; Sparse-dLLM, 2508.02558). The
    attention is that of the rows still masked or, in a causal model, that of the newest row. A budget is a
    share of the keys present at t₀.

    Values by reference t₀ and step t ≥ t₀ (NaN for earlier steps), only with `matrix`:

    - `retained`: share of attention on the head's own strongest keys of t₀, (reference, step, layer, head,
      budget)
    - `head_mean`: share of attention on the keys that are strongest in the mean over heads at t₀

    Values by step, only with `matrix`, (step, layer, head, budget):

    - `oracle`: share of attention on the strongest keys of the same step, which is the most that any set of
      this size can receive
    - `window`: share of attention on the first 4 keys and the keys nearest to a deciding row

    Means over all pairs of steps that are `lag` kept steps apart, (lag, layer, head, budget): `lagged`,
    `lagged_head_mean`, `lagged_oracle` and `lagged_window`.

    `horizon`, (layer, head, budget): mean number of kept steps for which a set receives at least `keeps`
    times the oracle's attention. The horizon cannot exceed the number of steps, so compare it with the number
    of steps.

    The null is a random set of the same number of keys; its share of attention is its share of the present
    keys.

    Args:
        budgets (tuple of float): Sizes of the sets as shares of the present keys, each above 0 and up to 1.
        lags (tuple of int): Distances in kept steps.
        keeps (float): Share of the oracle's attention below which a set has expired.
        matrix (bool): Whether to keep the values by reference and step, which are steps² values per head.
    """

    budgets: tuple[float, ...] = BUDGETS
    lags: tuple[int, ...] = LAGS
    keeps: float = 0.9
    matrix: bool = True
    needs: ClassVar[tuple[str, ...]] = ("groups",)
    units: ClassVar[dict[str, str]] = {
        **dict.fromkeys((*KINDS, *EACH_STEP), "share"),
        **dict.fromkeys(("lagged", "lagged_head_mean", "lagged_oracle", "lagged_window"), "share"),
        "horizon": "steps",
    }
    layerwise: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_shares("Reuse: budgets", self.budgets)
        check_shares("Reuse: keeps", (self.keeps,))
        if not self.lags or min(self.lags) < 1:
            raise UsageError(f"Reuse: lags = {self.lags}", "Use numbers of steps from 1.")

    def compute(self, trace: Trace) -> xr.Dataset:
        mass, present = deciding_mass(trace), present_keys(trace)
        sizes = set_sizes(present, self.budgets)
        window = window_sets(trace, sizes)
        layers = []
        for layer in range(mass.sizes["layer"]):
            heads = mass.isel(layer=layer).transpose("head", "step", "key").values
            layers.append(self._of_layer(heads, present, sizes, window))
        values = {name: np.stack([one[name] for one in layers]) for name in layers[0]}
        share = sizes / present.sum(-1)[:, None]  # (step, budget)
        return self._labelled(trace, values, share)

    def _of_layer(
        self, mass: np.ndarray, present: np.ndarray, sizes: np.ndarray, window: np.ndarray
    ) -> dict[str, np.ndarray]:
        """Compute the values of one layer by name; `mass` is (head, step, key)."""
        retained = retained_by(
            top_sets(mass, present, sizes), mass
        )  # (head, reference, step, budget)
        shared = top_sets(mass.mean(0), present, sizes)[None]
        values = {
            "retained": retained,
            "head_mean": retained_by(np.repeat(shared, len(mass), 0), mass),
        }
        values["oracle"] = np.diagonal(retained, axis1=1, axis2=2).swapaxes(1, 2)
        in_window = np.einsum("tbk,htk->htb", window.astype(mass.dtype), mass)
        values["window"] = in_window / mass.sum(-1)[..., None]
        values["lagged"] = by_lag(retained, self.lags)
        values["lagged_head_mean"] = by_lag(values["head_mean"], self.lags)
        for name in EACH_STEP:
            every = np.broadcast_to(values[name][:, None], retained.shape)
            values[f"lagged_{name}"] = by_lag(every, self.lags)
        values["horizon"] = _horizon(retained >= self.keeps * values["oracle"][:, None])
        return values | {name: later(values[name]) for name in KINDS}

    def _labelled(
        self, trace: Trace, values: dict[str, np.ndarray], share: np.ndarray
    ) -> xr.Dataset:
        step = trace.data["step"].values
        dims: dict[str, tuple[str, ...]] = {
            **dict.fromkeys(KINDS, ("layer", "head", "reference", "step", "budget")),
            **dict.fromkeys(EACH_STEP, ("layer", "head", "step", "budget")),
            "horizon": ("layer", "head", "budget"),
        }
        arrays: dict[str, Any] = {}
        for name, array in values.items():
            if name in (*KINDS, *EACH_STEP) and not self.matrix:
                continue
            arrays[name] = dims.get(name, ("layer", "head", "lag", "budget")), array
        data = xr.Dataset(arrays, {"budget": list(self.budgets), "lag": list(self.lags)})
        mean = ("budget", share.mean(0))
        nulls: dict[str, Any] = {f"{name}_null": mean for name in arrays if "lagged" in name}
        if self.matrix:
            data = data.assign_coords(reference=step, step=step)
            nulls |= {f"{name}_null": (("reference", "budget"), share) for name in KINDS}
            nulls |= {f"{name}_null": (("step", "budget"), share) for name in EACH_STEP}
        data = data.assign(nulls).transpose(*(d for d in ("lag", *MATRIX) if d in data.dims), ...)
        return data.assign_attrs(most={"horizon": len(step)})

    def plot(self, result: Result) -> Figure:
        """Draw the retained attention over the distance in steps, and the horizon by layer."""

        def draw_kept(axis: Axes) -> None:
            budget = min(self.budgets, key=lambda share: abs(share - 0.1))
            at = result.data.sel(budget=budget)
            labels = {
                "lagged_oracle": "oracle",
                "lagged": "reused",
                "lagged_head_mean": "head mean",
                "lagged_window": "window",
            }
            for colour, (name, label) in zip(COLOURS, labels.items(), strict=False):
                axis.plot(
                    self.lags,
                    at[name].mean(["layer", "head"]),
                    "o-",
                    color=colour,
                    ms=3,
                    label=label,
                )
            axis.axhline(float(at["lagged_null"]), color="0.4", linestyle=":", label="random")
            axis.set(xlabel="steps later", ylabel=f"attention on {budget:.0%} of keys", ylim=(0, 1))
            axis.set_xscale("log", base=2)
            axis.set_xticks(self.lags, [str(lag) for lag in self.lags])
            legend_above(axis, handlelength=1)

        def draw_horizon(axis: Axes) -> None:
            layers = result.data["layer"].values
            for colour, budget in zip(COLOURS, self.budgets, strict=False):
                mean = result["horizon"].sel(budget=budget).mean("head")
                axis.plot(layers, mean, color=colour, label=f"{budget:.0%}")
            axis.set(xlabel="layer", ylabel=f"steps above {self.keeps:.0%} of oracle")
            axis.set_ylim(0, None)
            legend_above(axis, handlelength=1)

        return lines(result, draw_kept, draw_horizon)


def _horizon(holds: Bool[np.ndarray, "h s t b"]) -> Float[np.ndarray, "h b"]:
    """Return the mean number of steps until a set of keys first receives too little attention.

    `holds` says whether the set of reference s receives enough attention at step t. For every n, the share of
    sets that last n steps or longer is computed over the references that at least n steps follow. The result
    is the sum of these shares over n.
    """
    steps = holds.shape[1]
    lasting = np.ones((holds.shape[0], steps, holds.shape[-1]), bool)
    total = np.zeros((holds.shape[0], holds.shape[-1]))
    for lag in range(1, steps):
        references = np.arange(steps - lag)
        lasting = lasting[:, : steps - lag] & holds[:, references, references + lag]
        total += lasting.mean(1)
    return total
