"""Decoding order: which positions and which tokens a sampler reveals first.

Only what was revealed when; no attention is read, so traces kept without any statistic will do.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import xarray as xr
from jaxtyping import Int, Int8

from ...errors import UsageError
from ...stats.frequencies import read_frequencies
from ...trace import Trace
from ..base import Measure
from ..result import Result, summarise
from ..style import SHARE_MAP, Axes, Figure, panels

_BINS = 10
Decoded = Any  # a Decoding; its class is not imported, for that would take torch


@dataclass(frozen=True)
class DecodingOrder(Measure):
    """When each answer position is revealed: a map, a bias to the ends, left to right, trivial first.

    `map`: P(revealed by a relative step), by tenths of the answer. `boundary`: mean reveal rank of the
    outer fifths minus that of the rest, over the length; negative = ends first. `left_to_right`:
    Spearman correlation of position and reveal step. `trivial`: share of the first quarter of reveals
    whose token is more frequent than the median revealed token (PC-Sampler, 2508.13021); it needs
    `frequencies`, a .npy file with one share per token, and is NaN without. A position revealed more
    than once counts at its last reveal; one that ends masked counts nowhere. Null: a random order
    within the blocks that the sampler imposed (exact expectation: 0 and 0 with one block; the value
    itself where each block is one token, as for an autoregressive model); for `trivial` the share
    among all reveals, at most 1/2.
    """

    frequencies: str | Path | None = None
    units: ClassVar[dict[str, str]] = {
        "map": "probability",
        "boundary": "ranks / length",
        "left_to_right": "correlation",
        "trivial": "share",
    }

    def one(self, trace: Trace) -> xr.Dataset:
        start = int(trace.info["prompt_length"])
        return self._order(
            trace.change.values[:, start:],
            trace.data["block"].values[:, 0],
            trace.canvas.values[-1, start:],
        )

    def of_decodings(self, decodings: Sequence[Decoded], model: str) -> Result:
        """The same of decodings that were not traced (what `generate` returns)."""
        examples = []
        for one in decodings:
            start = len(one.prompt.ids)
            examples.append(
                self._order(one.change[:, start:], one.block[:, 0], one.canvas[-1, start:])
            )
        return summarise(examples, self, model, self.units)

    def _order(
        self,
        change: Int8[np.ndarray, "t n"],
        block_start: Int[np.ndarray, " t"],
        final: Int[np.ndarray, " n"],
    ) -> xr.Dataset:
        ticks, size = change.shape
        when = _last_reveal(change)
        position = np.flatnonzero(~np.isnan(when))
        tick = when[position].astype(int)
        rank = _ranks(tick)
        # A random order within blocks: every position has the mean rank of its block.
        block = block_start[tick] if len(tick) else tick
        shuffled = np.array([rank[block == b].mean() for b in block])
        values: dict[str, Any] = {
            "boundary": _boundary(position, rank, size),
            "boundary_null": _boundary(position, shuffled, size),
            "left_to_right": _correlation(position, rank, rank),
            "left_to_right_null": _correlation(position, shuffled, rank),
        }
        token = final[position]
        values["trivial"], values["trivial_null"] = self._trivial(token, tick)
        time = np.arange(_BINS + 1) / _BINS
        by = (when[None] + 1 <= time[:, None] * ticks + 1e-9).astype(float)  # (time, position)
        by[:, np.isnan(when)] = 0.0
        edges = np.arange(_BINS + 1) / _BINS
        cells = np.arange(size + 1) / max(size, 1)
        overlap = (
            np.minimum(edges[1:, None], cells[None, 1:])
            - np.maximum(edges[:-1, None], cells[None, :-1])
        ).clip(0)  # (tenth, position): a short answer spreads over the tenths
        grid = by @ overlap.T * _BINS
        coords = {"time": time, "place": (edges[1:] + edges[:-1]) / 2}
        values["map"] = (("time", "place"), grid)
        values["map_null"] = ("time", by.mean(-1) if size else np.full(len(time), np.nan))
        return xr.Dataset(values, coords=coords)

    def _trivial(self, token: np.ndarray, tick: np.ndarray) -> tuple[float, float]:
        if self.frequencies is None or len(token) < 4:
            return float("nan"), float("nan")
        table = read_frequencies(str(self.frequencies))
        if token.max() >= len(table):
            raise UsageError(
                f"{self.frequencies} holds {len(table)} frequencies, token {token.max()} has none",
                "Count them with this model's tokenizer.",
            )
        rarity = -np.log(table[token] + 1e-9)
        frequent = (rarity < np.median(rarity)).astype(float)
        if not frequent.any():  # half or more are one token: nothing is below the median
            return float("nan"), float("nan")
        quarter = int(np.ceil(len(token) / 4))
        last = np.sort(tick)[quarter - 1]
        before, tied = tick < last, tick == last
        weight = before + tied * (quarter - before.sum()) / tied.sum()
        return float((weight * frequent).sum() / quarter), float(frequent.mean())

    def plot(self, result: Result) -> Figure:
        with panels(1, 2) as (figure, axes):
            left, right = axes[0]
            data = result.data
            image = _map(left, data)
            left.set(xlabel="position in the answer", ylabel="share of steps done")
            figure.colorbar(image, ax=left, label="P(revealed)")
            names = ["left_to_right", "boundary", "trivial"]
            for y, name in enumerate(names):
                value, low, high = (float(data[name + end]) for end in ("", "_low", "_high"))
                right.plot([low, high], [y, y], color="0.25")
                right.plot(value, y, "o", color="0.1", markersize=4)
                right.plot(
                    float(data[f"{name}_null"]), y, "D", color="0.5", mfc="white", ms=6, zorder=1
                )
            right.axvline(0, color="0.7", linewidth=0.6)
            labels = ["left to right", "ends last (−: first)", "trivial first"]
            right.set_yticks(range(len(names)), labels)
            right.set(ylim=(2.5, -0.5), xlim=(-1.08, 1.08), xlabel="value (diamond: null)")
            if np.isnan(data["trivial"]):
                right.text(
                    0, 2, "no frequencies, or no median", ha="center", va="bottom", color="0.4"
                )
            figure.suptitle(f"{result.model}, n = {result.n}", fontsize=8, x=0.01, ha="left")
        return figure


def maps(orders: Mapping[str, Result]) -> Figure:
    """The map of every order, by its title: when is each part of the answer revealed?"""
    columns = min(5, len(orders))
    rows = -(-len(orders) // columns)
    with panels(rows, columns, width=1.6, height=1.7) as (figure, axes):
        for axis in axes.flat[len(orders) :]:
            axis.set_visible(False)
        for axis, (title, order) in zip(axes.flat, orders.items(), strict=False):
            image = _map(axis, order.data)
            axis.set_title(title, fontsize=7)
        for axis in axes[:, 0]:
            axis.set_ylabel("steps done")
        for axis in axes[-1]:
            axis.set_xlabel("place in the answer")
        figure.colorbar(image, ax=axes, label="P(revealed)", shrink=0.8)
    return figure


def _map(axis: Axes, data: xr.Dataset) -> Any:
    image = axis.pcolormesh(
        data["place"], data["time"], data["map"], cmap=SHARE_MAP, vmin=0, vmax=1
    )
    image.set_edgecolor("face")
    return image


def _last_reveal(change: np.ndarray) -> np.ndarray:
    """The tick of each position's last reveal; NaN if never, or if it was masked again for good."""
    when = np.full(change.shape[1], np.nan)
    for t, done in enumerate(change):
        when[done == 1] = t
        when[done == 2] = np.nan
    return when


def _ranks(values: np.ndarray) -> np.ndarray:
    """From 1; equal values share their mean rank."""
    _, which, count = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(count) - (count - 1) / 2)[which]


def _boundary(position: np.ndarray, rank: np.ndarray, size: int) -> float:
    fifth = size // 5
    outer = (position < fifth) | (position >= size - fifth)
    if not outer.any() or outer.all():
        return float("nan")
    return float((rank[outer].mean() - rank[~outer].mean()) / size)


def _correlation(position: np.ndarray, rank: np.ndarray, spread: np.ndarray) -> float:
    """Covariance of positions and ranks over their spreads; NaN if all at once or fewer than three."""
    if len(position) < 3 or np.ptp(spread) == 0:
        return float("nan")
    place = _ranks(position)
    together = ((place - place.mean()) * (rank - rank.mean())).mean()
    return float(together / (place.std() * spread.std()))
