"""The strongest key: its position, its strength, and which rules classify it as an anchor.

Random attention also has a strongest key. `stats.existence` tests whether a strongest key is strong enough to
be an anchor.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import xarray as xr

from ...errors import UsageError
from ...stats.anchors import RULES
from ...trace import Trace
from ..base import Measure

NAMES = tuple(rule.__name__ for rule in RULES)


@dataclass(frozen=True)
class StrongestKey(Measure):
    """The key of the prompt that receives most attention, by layer: its position, share and lift.

    Keys are ranked by mass. If they were ranked by the mean over the rows that see a key, noise would rank
    the last keys of a causal model highest, because only a few rows see these keys.

    - `place`: index of the key
    - `position`: index of the key as a share of the length
    - `share`: share of attention on the key
    - `lift`: `share` divided by its value under uniform attention; null 1
    - `passes`: whether the key is an anchor by each rule of `fs.anchors` with its published setting

    Args:
        at (float): The kept step to read, as a share: 0 is the first, 1 (by default) the last.
        per_head (bool): Whether to find the strongest key of every head; by default, of the mean over heads.
    """

    at: float = 1.0
    per_head: bool = False
    units: ClassVar[dict[str, str]] = {
        "place": "position",
        "position": "share of length",
        "lift": "×",
        "share": "share",
        "passes": "share",
    }
    nulls: ClassVar[dict[str, float]] = {"lift": 1.0}

    def __post_init__(self) -> None:
        if not 0 <= self.at <= 1:
            raise UsageError(f"StrongestKey(at={self.at})", "Use a share between 0 and 1.")

    @property
    def needs(self) -> tuple[str, ...]:
        return ("mass",) if self.per_head else ("head_mean",)

    def compute(self, trace: Trace) -> xr.Dataset:
        snapshot = trace.at_step(round(self.at * (trace.data.sizes["step"] - 1)))
        arrays = (
            (snapshot.mass, snapshot.received)
            if self.per_head
            else (snapshot.mean_mass, snapshot.mean_received)
        )
        dims = ["layer", "head"] if self.per_head else ["layer"]
        mass, received = (array.transpose("step", *dims, "key").values[0] for array in arrays)
        prompt = int(trace.info["prompt_length"])
        top = np.nan_to_num(mass[..., :prompt], nan=-1).argmax(-1)[..., None]
        share = np.take_along_axis(mass, top, -1)[..., 0]
        # Rules are applied to the head mean as to a single head.
        passes = [np.take_along_axis(rule().passes(received), top, -1)[..., 0] for rule in RULES]
        place = top[..., 0].astype(float)
        values = {
            "place": place,
            "position": place / max(mass.shape[-1] - 1, 1),
            "share": share,
            "lift": share / snapshot.null.values[0][top[..., 0]],
        }
        data = {name: (dims, array) for name, array in values.items()}
        data["passes"] = (["rule", *dims], np.array(passes, float))
        return xr.Dataset(data, {"rule": list(NAMES)})
