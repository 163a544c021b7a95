"""Coverage: how few keys hold most of the attention of masked rows."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import xarray as xr

from ...plots import COLOURS, Axes, Figure, legend_above, lines
from ...trace import Trace
from ..base import Measure
from ..result import Result
from ..reused_keys import check_shares, deciding_mass, present_keys

QUANTILES = (0.5, 0.8, 0.9, 0.95, 0.99)


@dataclass(frozen=True)
class Coverage(Measure):
    """The least share of the keys that holds a given share of the attention, by layer and head.

    The attention is that of the rows still masked or, in a causal model, that of the newest row. The values
    are means over steps.

    - `keys`: share of the present keys that are needed, (layer, head, held)
    - `keys_mean`: the same share for the mean over heads, (layer, held)

    The null is attention spread evenly over the present keys: a share of the attention is then held by the
    same share of the keys.

    Args:
        held (tuple of float): Shares of the attention to be held, each above 0 and up to 1.
    """

    held: tuple[float, ...] = QUANTILES
    needs: ClassVar[tuple[str, ...]] = ("groups",)
    units: ClassVar[dict[str, str]] = dict.fromkeys(("keys", "keys_mean"), "share")
    layerwise: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_shares("Coverage: held", self.held)

    def compute(self, trace: Trace) -> xr.Dataset:
        mass, present = deciding_mass(trace).values, present_keys(trace)  # (step, layer, head, key)
        count = present.sum(-1)
        values = {
            "keys": (("layer", "head", "held"), self._needed(mass, count)),
            "keys_mean": (("layer", "held"), self._needed(mass.mean(2), count)),
        }
        even = np.ceil(np.outer(count, self.held) - 1e-9) / count[:, None]
        nulls = {f"{name}_null": ("held", even.mean(0)) for name in values}
        return xr.Dataset(values | nulls, {"held": list(self.held)})

    def _needed(self, mass: np.ndarray, count: np.ndarray) -> np.ndarray:
        ordered = np.sort(mass, axis=-1)[..., ::-1].cumsum(-1, dtype=np.float64)
        total = ordered[..., -1:]
        keys = [(ordered < share * total * (1 - 1e-6)).sum(-1) + 1 for share in self.held]
        shares = np.stack(keys, -1) / count.reshape(-1, *[1] * (mass.ndim - 1))
        return np.asarray(shares.mean(0))

    def plot(self, result: Result) -> Figure:
        def draw(axis: Axes) -> None:
            layers = result.data["layer"].values
            for colour, share in zip(COLOURS, self.held, strict=False):
                at = result.data.sel(held=share)
                axis.plot(layers, at["keys_mean"], color=colour, label=f"{share:.0%}")
                axis.fill_between(
                    layers, at["keys_mean_low"], at["keys_mean_high"], color=colour, alpha=0.2
                )
            axis.set(xlabel="layer", ylabel="keys that hold this share", ylim=(0, 1))
            legend_above(axis, handlelength=1)

        return lines(result, draw)
