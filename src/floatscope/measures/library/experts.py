"""Expert routing: whether masked, revealed, prompt and anchor positions are routed to different experts."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import xarray as xr
from jaxtyping import Bool, Float, Int

from ...errors import UsageError
from ...trace import Trace
from ..base import AnchorMeasure

Kind = Bool[np.ndarray, "t s"]  # where positions are of one kind
PAIRS = ("masked–revealed", "masked–prompt", "revealed–prompt", "anchor–other")


@dataclass(frozen=True)
class ExpertRouting(AnchorMeasure):
    """Total variation between the experts that two kinds of position choose, by layer.

    - `difference` = ½ Σ_e |p_e − q_e| by layer and pair of kinds. p_e and q_e are the shares of expert e in
      the choices of the two kinds, over all steps. The value is 0 if both kinds choose each expert equally
      often, and 1 if the kinds share no expert

    The pairs are masked–revealed, masked–prompt, revealed–prompt and anchor–other, with anchors by `rule`
    (which must not be a rule per head). Every choice counts once, regardless of its weight. The null is the
    mean over `draws` permutations of positions among the two kinds. All choices that a position makes while
    it is of one kind are moved together, because a step mostly repeats the choices of the previous step. The
    value is NaN if a kind has no positions, and in layers without experts.

    Args:
        draws (int): Number of permutations for the null, 1 or more; 100 by default.
        seed (int): Seed of the permutations; 0 by default.
    """

    draws: int = 100
    seed: int = 0
    extra_statistics: ClassVar[tuple[str, ...]] = ("experts",)
    windows: ClassVar[bool] = True
    units: ClassVar[dict[str, str]] = {"difference": "total variation"}

    def __post_init__(self) -> None:
        if self.draws < 1:
            raise UsageError(f"draws = {self.draws}", "Use at least one permutation.")
        if self.rule.per_head:
            raise UsageError("a rule per head", "A position has one set of experts for all heads.")

    def compute(self, trace: Trace) -> xr.Dataset:
        experts = trace.experts["expert"].transpose("layer", "step", "key", "choice").values
        masked = trace.data["masked"].values  # (step, key)
        answer = trace.data["region"].values == "answer"
        anchors = self.rule(trace).transpose("layer", "step", "key").values
        measured, chance = np.full((2, len(experts), len(PAIRS)), np.nan)
        for layer, chosen in enumerate(experts):
            routed = chosen[..., 0] >= 0  # (step, key)
            kinds = {"masked": masked, "revealed": ~masked & answer, "prompt": ~answer}
            kinds |= {"anchor": anchors[layer], "other": ~anchors[layer]}
            used = _used(chosen)
            for place, pair in enumerate(PAIRS):
                a, b = (kinds[name] & routed for name in pair.split("–"))
                if a.any() and b.any():
                    measured[layer, place], *drawn = self._differences(used, a, b)
                    chance[layer, place] = np.mean(drawn)
        dims = ("layer", "pair")
        values = {"difference": (dims, measured), "difference_null": (dims, chance)}
        return xr.Dataset(values, {"pair": list(PAIRS)})

    def _differences(self, used: Float[np.ndarray, "t s e"], a: Kind, b: Kind) -> np.ndarray:
        """Return the total variation between two kinds of position: as observed, then per permutation."""
        steps = np.concatenate([a.sum(0), b.sum(0)])  # (2·s,)
        chose = np.concatenate([np.einsum("ts,tse->se", kind, used) for kind in (a, b)])
        units = np.flatnonzero(steps)
        rate = chose[units] / steps[units, None]
        first = units < a.shape[1]
        rng = np.random.default_rng(self.seed)
        dealt = [rng.permutation(len(units)) for _ in range(self.draws)]
        order = np.array([np.arange(len(units)), *dealt])
        shares = []
        for side in (first, ~first):
            weight = np.zeros(order.shape)
            np.put_along_axis(weight, order, np.where(side, steps[units], 0.0)[None], 1)
            shares.append(weight @ rate / weight.sum(1, keepdims=True))
        difference: np.ndarray = np.abs(shares[0] - shares[1]).sum(1) / 2
        return difference


def _used(chosen: Int[np.ndarray, "t s c"]) -> Float[np.ndarray, "t s e"]:
    """Return the share of each expert among the choices of each position."""
    experts = np.arange(chosen.max(initial=0) + 1)
    return (chosen[..., None] == experts).mean(2, dtype=np.float32)
