"""The strongest key: where it stands, how strong it is, and which rules would call it an anchor.

A strongest key there always is: noise has one, and it moves all the time. So its strength is kept
beside its place, and whoever counts places asks first whether it is strong enough to be an anchor
(`anchored` in the studies: stronger than in untrained weights).
"""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import xarray as xr

from ...errors import UsageError
from ...stats.anchors import RULES
from ...trace import Trace
from ..base import Measure
from ..nulls import last_visible

REVEALED = (
    0.0,
    0.25,
    0.5,
    0.75,
)  # shares of the answer's content, at which masked rows are looked at
NAMES = tuple(rule.__name__ for rule in RULES)
_UNITS = {"place": "position", "position": "share of length", "lift": "×", "share": "share"}


@dataclass(frozen=True)
class StrongestKey(Measure):
    """The prompt's key with the highest lift, layer by layer: its place, its lift, its share.

    Lift (mass over what uniform attention would give) makes keys comparable that different numbers of
    rows see. The last keys of a causal model are seen by a handful of rows and would win by noise:
    `viewers` is the least share of the rows that must see a key. `passes` says for each rule of
    `anchors` with its published setting whether it calls this key an anchor. `per_head` asks every
    head, else the mean over heads. `at` chooses the kept step, 0 the first and 1 the last.
    """

    at: float = 1.0
    per_head: bool = False
    viewers: float = 0.1
    units: ClassVar[dict[str, str]] = _UNITS | {"passes": "share"}

    def __post_init__(self) -> None:
        if not 0 <= self.at <= 1 or not 0 <= self.viewers <= 1:
            raise UsageError(
                f"{type(self).__name__}(at={self.at}, viewers={self.viewers})", "Use shares of 1."
            )

    def one(self, trace: Trace) -> xr.Dataset:
        at = {"step": round(self.at * (trace.data.sizes["step"] - 1))}
        mass, received = trace.mass.isel(at), trace.received.isel(at)
        null, visible = trace.null.isel(at), trace.data["visible"].isel(at)
        enough = visible >= self.viewers * trace.data["rows_counted"].isel(at).sum("group")
        prompt = xr.DataArray(
            np.arange(mass.sizes["key"]) < int(trace.info["prompt_length"]), dims="key"
        )
        return _strongest(mass, received, null, enough & prompt, self.per_head)


@dataclass(frozen=True)
class MaskedRows(Measure):
    """What rows that are still masked look at most, as the answer's content is revealed.

    At 0, a quarter, half and three quarters of the content tokens (end tokens and other special ones
    do not count), the key with the highest share of the attention of all masked rows, over uniform
    attention: `place`, `lift`, `share` and `passes` as in StrongestKey, over all keys, masks too.
    `content` is how many content tokens the answer has. A causal model has no masked rows: NaN.
    """

    per_head: bool = False
    units: ClassVar[dict[str, str]] = _UNITS | {"passes": "share", "content": "tokens"}

    def one(self, trace: Trace) -> xr.Dataset:
        content, steps = _checkpoints(trace)
        share = trace.mass_from("masked")
        made = {step: self._at(trace, share, max(step, 0)) for step in set(steps)}
        like = made[steps[0]]
        values: dict[Hashable, Any] = {}
        for name, one in like.data_vars.items():
            each = [made[s].variables[name].values * (1 if s >= 0 else np.nan) for s in steps]
            values[name] = ("revealed", *one.dims), np.stack(each)
        coords = {"revealed": list(REVEALED)} | {c: like.variables[c] for c in like.coords}
        return xr.Dataset(values, coords).assign(content=float(content))

    def _at(self, trace: Trace, share: xr.DataArray, step: int) -> xr.Dataset:
        share = share.isel(step=step)
        null = share.isel(layer=0, head=0, drop=True).copy(data=_null(trace, step))
        return _strongest(share, share, null, null > 0, self.per_head)


def _strongest(
    mass: xr.DataArray,
    received: xr.DataArray,
    null: xr.DataArray,
    allowed: xr.DataArray,
    per_head: bool,
) -> xr.Dataset:
    """Of arrays (layer, head, key) and (key,)."""
    if not per_head:
        mass, received = mass.mean("head"), received.mean("head")
    order: list[str] = [d for d in ("layer", "head", "key") if d in mass.dims]
    mass, received = mass.transpose(*order), received.transpose(*order)
    with np.errstate(divide="ignore", invalid="ignore"):
        lift = np.where(allowed.values & ~np.isnan(mass.values), mass.values / null.values, -1.0)
    top = lift.argmax(-1)[..., None]
    strength = np.take_along_axis(lift, top, -1)[..., 0]
    there = strength >= 0
    place = np.where(there, top[..., 0], np.nan)
    # The head mean is judged by the rules as a head would be.
    passes = [np.take_along_axis(rule().passes(received.values), top, -1)[..., 0] for rule in RULES]
    dims, size = order[:-1], mass.sizes["key"]
    values = {
        "place": place,
        "position": place / max(size - 1, 1),
        "lift": np.where(there, strength, np.nan),
        "share": np.where(there, np.take_along_axis(mass.values, top, -1)[..., 0], np.nan),
    }
    data = {name: (dims, array) for name, array in values.items()}
    data["passes"] = (["rule", *dims], np.where(there, np.array(passes, float), np.nan))
    coords = {d: mass[d].values for d in dims} | {"rule": list(NAMES)}
    return xr.Dataset(data, coords).assign(lift_null=(dims, np.ones_like(place)))


def _checkpoints(trace: Trace) -> tuple[int, list[int]]:
    """Content tokens of the answer, and the kept step at each share of them revealed; −1: none."""
    start, final = int(trace.info["prompt_length"]), trace.canvas.values[-1]
    masked = trace.data["masked"].values  # (step, key)
    known: dict[int, str] = {}
    classes = trace.data["token_class"].values
    for step, tick in enumerate(trace.data["step"].values):
        known |= dict(zip(trace.canvas.values[int(tick)].tolist(), classes[step], strict=True))
    mask = int(trace.info["mask_id"])
    is_content = np.array(
        [i >= 0 and i != mask and known.get(int(i), "") != "special" for i in final]
    )
    is_content[:start] = False
    content = int(is_content.sum())
    if not content or not masked.any():
        return content, [-1] * len(REVEALED)
    done = 1 - masked[:, is_content].mean(1)
    looking = masked.any(1)
    steps = [np.flatnonzero((done >= share - 1e-9) & looking) for share in REVEALED]
    return content, [int(s[0]) if len(s) else -1 for s in steps]


def _null(trace: Trace, step: int) -> np.ndarray:
    """What masked rows would give each key if they spread their attention evenly."""
    masked = trace.data["masked"].values[step]
    number = int(trace.data["step"].values[step])
    there = trace.canvas.values[number] >= 0
    last = last_visible(trace, len(masked), number)
    null = np.zeros(len(masked))
    for row in np.flatnonzero(masked):
        seen = there & (np.arange(len(masked)) <= last[row])
        null += seen / max(int(seen.sum()), 1)
    return null / max(int(masked.sum()), 1)
