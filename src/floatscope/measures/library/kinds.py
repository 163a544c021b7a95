"""Kinds of key: how much attention each kind of token receives, and its advantage by angle and norm.

In any model, a key that is chosen because it receives much attention also has a high score. `advantage`
therefore chooses a kind of token on some examples and measures the advantage of this kind on the other
examples.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import xarray as xr
from jaxtyping import Float

from ...stats.groups import groups
from ...trace import Trace
from ..base import Measure

CHOOSERS = 10  # examples on which an anchor is chosen
SPLITS = 32  # random divisions of the examples into groups
FIRST, REST = "first position", "content"


@dataclass(frozen=True)
class KindsOfKey(Measure):
    """Lift of each kind of token, and the angle and norm parts of its advantage, by layer and head.

    There is one kind for the first position, one for each structural token (by its text), and one for all
    content tokens together. The values are those of the last kept step:

    - `lift`: mean lift over uniform attention
    - `angle`, `norm`: the two parts of the kind's advantage in score over all other keys, as in `Geometry`
    """

    needs: ClassVar[tuple[str, ...]] = ("mass", "qk")
    windows: ClassVar[bool] = True
    units: ClassVar[dict[str, str]] = {"lift": "×", "angle": "q·k", "norm": "q·k"}

    def compute(self, trace: Trace) -> xr.Dataset:
        last, order = trace.at_step(-1), ("layer", "head", "key")
        lift, cosine, norms = (
            array.isel(step=0).transpose(*order).values
            for array in (last.lift, last.cosine, last.query_norm * last.key_norm)
        )
        kinds = _kinds(trace)
        names = [k for k in dict.fromkeys(kinds) if k]
        present = ~np.isnan(cosine[0, 0])
        inside = np.array([[k == name for k in kinds] for name in names], float) * present
        outside = present - inside  # (kind, key)

        def split(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            """Return the mean over the keys of each kind, and the mean over all other keys."""
            filled = np.nan_to_num(values)
            with np.errstate(divide="ignore", invalid="ignore"):
                inside_mean, outside_mean = (filled @ x.T / x.sum(-1) for x in (inside, outside))
            return inside_mean, outside_mean

        (c_a, c_o), (n_a, n_o) = split(cosine), split(norms)
        dims = ("layer", "head", "kind")
        data = {
            "lift": (dims, split(lift)[0]),
            "angle": (dims, (c_a - c_o) * (n_a + n_o) / 2),
            "norm": (dims, (n_a - n_o) * (c_a + c_o) / 2),
        }
        return xr.Dataset(data, {"kind": np.array(names, dtype=np.str_)})


def advantage(
    examples: xr.Dataset, ids: Sequence[str], splits: int = SPLITS
) -> tuple[Float[np.ndarray, "2 layer head"], Float[np.ndarray, "2 n layer head"]]:
    """Sum the angle and norm parts of each head's anchor kind over examples on which it was not chosen.

    A head's anchor is the kind with the highest mean lift over a group of ten examples, or over half of the
    examples if there are fewer than twenty. In an example without a kind, this kind has lift 0. The anchor is
    measured on all examples outside the group. A single choice depends on chance, because kinds of almost
    equal strength alternate. The sums therefore run over all groups of each of `splits` random divisions.

    Args:
        examples (xr.Dataset): Values of `KindsOfKey` by example.
        ids (sequence of str): The examples' ids, by which they are divided into groups.
        splits (int): Number of random divisions; 32 by default.

    Returns:
        The sums, (2, layer, head), angle first; and the sums without each example, (2, example, layer,
            head), for which the anchor of the example's group is chosen again from the rest of the group.
    """
    lift, *parts = (
        np.nan_to_num(examples[name].transpose("example", "layer", "head", "kind").values)
        for name in ("lift", "angle", "norm")
    )
    stacked = np.array(parts, float)  # (part, example, layer, head, kind)
    layers, heads = np.ogrid[: lift.shape[1], : lift.shape[2]]
    overall = np.zeros((2, *lift.shape[1:3]))
    without = np.zeros((2, *lift.shape[:3]))
    for seed in range(splits):
        for chosen in groups(ids, min(CHOOSERS, len(ids) // 2), seed):
            measured = np.setdiff1d(np.arange(len(ids)), chosen)
            total, sums = lift[chosen].sum(0), stacked[:, measured].sum(1)
            best = total.argmax(-1)  # (layer, head)
            won = sums[:, layers, heads, best]
            overall += won
            without[:, measured] += won[:, None] - stacked[:, measured][:, :, layers, heads, best]
            best_without = (total - lift[chosen]).argmax(-1)  # (example, layer, head)
            without[:, chosen] += sums[:, layers, heads, best_without]
    return overall, without


def _kinds(trace: Trace) -> list[str]:
    classes = trace.data["token_class"].isel(step=-1).values
    tokens = trace.data["token"].isel(step=-1).values
    kinds = [
        "" if kind in ("absent", "mask") else REST if kind == "content" else f"{kind} {token!s}"
        for kind, token in zip(classes.tolist(), tokens.tolist(), strict=True)
    ]
    if kinds:
        kinds[0] = FIRST
    return kinds
