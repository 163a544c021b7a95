"""Kinds of key: what each kind of token receives, and with which angle and norm it wins it.

A key that is chosen because it receives much has a high score to begin with, in any model. So the
choice and the measurement must use different examples; what examples have in common is not a place
but a kind of token. `advantage` does that: it chooses in one half and measures in the other.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import xarray as xr

from ...stats.halves import halves
from ...trace import Trace
from ..base import Measure

FIRST, REST = "first position", "content"


@dataclass(frozen=True)
class KindsOfKey(Measure):
    """By kind of token, layer and head: lift, cosine and norm product, and those of all other keys.

    A kind is the first position; each structural token by its text; and all content. `angle` and
    `norm` are the two parts of the kind's advantage in score over all other keys, as in Geometry.
    Looks at the last kept step.
    """

    windows: ClassVar[bool] = True
    units: ClassVar[dict[str, str]] = {"lift": "×", "angle": "q·k", "norm": "q·k"}

    def one(self, trace: Trace) -> xr.Dataset:
        at = {"step": -1}
        order = ("layer", "head", "key")
        lift = trace.lift.isel(at).transpose(*order).values
        cosine = trace.cosine.isel(at).transpose(*order).values
        norms = (trace.query_norm * trace.key_norm).isel(at).transpose(*order).values
        kinds = _kinds(trace)
        names = [k for k in dict.fromkeys(kinds) if k]
        of = np.array([[k == name for k in kinds] for name in names], float)  # (kind, key)
        there = ~np.isnan(cosine[0, 0])
        of, any_kind = of * there, there.astype(float)
        rest = any_kind - of

        def split(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            filled = np.nan_to_num(values)
            with np.errstate(divide="ignore", invalid="ignore"):
                mine = np.einsum("lhk,mk->lhm", filled, of) / of.sum(-1)
                other = np.einsum("lhk,mk->lhm", filled, rest) / rest.sum(-1)
            return mine, other

        (c_a, c_o), (n_a, n_o) = split(cosine), split(norms)
        dims = ("layer", "head", "kind")
        data = {
            "lift": (dims, split(lift)[0]),
            "angle": (dims, (c_a - c_o) * (n_a + n_o) / 2),
            "norm": (dims, (n_a - n_o) * (c_a + c_o) / 2),
        }
        coords = {"layer": trace.data["layer"].values, "head": trace.data["head"].values}
        return xr.Dataset(data, coords | {"kind": np.array(names, dtype=np.str_)})


def advantage(examples: xr.Dataset, ids: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Angle and norm of each head's anchor kind, chosen on the other half: (example, layer, head) each.

    A head's anchor is the kind with the highest mean lift over the examples of the other half, of
    those that at least half of them have. NaN where this example has no such token.
    """
    lift, angle, norm = (
        examples[name].transpose("example", "layer", "head", "kind").values
        for name in ("lift", "angle", "norm")
    )
    one, two = halves(ids)
    parts = [np.full(lift.shape[:3], np.nan) for _ in range(2)]
    for mine, others in ((one, two), (two, one)):
        if not len(others):
            continue
        common = (~np.isnan(lift[others])).mean(0) >= 0.5  # (layer, head, kind)
        total = np.nansum(lift[others], 0) / np.maximum((~np.isnan(lift[others])).sum(0), 1)
        best = np.where(common, total, -1.0).argmax(-1)[None, ..., None]
        for part, values in zip(parts, (angle, norm), strict=True):
            part[mine] = np.take_along_axis(values[mine], best, -1)[..., 0]
    return parts[0], parts[1]


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
