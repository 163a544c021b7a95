"""Decoding order: which positions and tokens a sampler reveals first. The measure reads no attention."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import xarray as xr
from jaxtyping import Float, Int, Int8

from ...errors import UsageError
from ...plots import SHARE_MAP, Axes, Figure, dots, lines, panels, points
from ...stats import reveals
from ...stats.frequencies import read_frequencies
from ...trace import Trace
from ..base import Measure
from ..result import Result, summarise_joined

_BINS = 10
_EDGES = np.arange(_BINS + 1) / _BINS
_PLACES = {"time": _EDGES, "place": (_EDGES[1:] + _EDGES[:-1]) / 2}
# dimensions of values that are not single numbers
_DIMS = {"map": ("time", "place"), "map_null": ("time",)}
Decoded = Any  # a Decoding; importing the class would import torch
_SHOWN = {
    "left_to_right": "left to right",
    "boundary": "ends last (−: first)",
    "boundary_content": "…, content alone",
    "ends_first": "end tokens first",
    "trivial": "trivial first, content",
    "end_or_trivial": "end or trivial first",
}


@dataclass(frozen=True)
class DecodingOrder(Measure):
    """Order in which answer positions are revealed: ends first, left to right, or trivial tokens first.

    - `map`: probability of being revealed by a relative step, by tenths of the answer
    - `boundary`: mean reveal rank of the outer fifths of the answer minus the mean rank of the rest, divided
      by the length; negative if the ends are revealed first
    - `left_to_right`: Spearman correlation of position and reveal step
    - `boundary_content`, `left_to_right_content`: the same values over content tokens, which are not end
      tokens
    - `ends_first`: share of end tokens among the first quarter of reveals
    - `trivial`: share of trivial tokens among the first quarter of content reveals. A token is trivial if it
      is more frequent in a corpus than the answer's median content token (PC-Sampler, 2508.13021)
    - `end_or_trivial`: share of end tokens and trivial tokens among the first quarter of all reveals
    - `content`: number of content tokens revealed
    - `unseen`: share of content tokens that the corpus does not contain; they count as rare
    - `unrevealed`: share of positions that were never revealed

    `boundary` and `left_to_right` are NaN if a position was never revealed, because an early stop depends on
    the order; decode with stop_at_eos=False to avoid this. A position that was revealed more than once counts
    at its last reveal.

    The null is the exact expectation for a random order within the blocks that the sampler imposed. With one
    block, the null of `boundary` and `left_to_right` is 0. If each block is one token, as in an
    autoregressive model, the null is the value itself. For the shares of the first quarter, the null is the
    share among all reveals.

    Args:
        frequencies (str or Path): A .npy file with the share of each token id in a corpus. `trivial`,
            `end_or_trivial` and `unseen` need it; without it (by default) they are NaN.
        ends (tuple of int): Ids of the end tokens, for older traces that do not contain these ids; None by
            default.
    """

    frequencies: str | Path | None = None
    ends: tuple[int, ...] | None = None
    windows: ClassVar[bool] = True
    units: ClassVar[dict[str, str]] = {
        "map": "probability",
        **dict.fromkeys(("boundary", "boundary_content"), "ranks / length"),
        **dict.fromkeys(("left_to_right", "left_to_right_content"), "correlation"),
        **dict.fromkeys(("ends_first", "trivial", "end_or_trivial"), "share"),
        **dict.fromkeys(("unseen", "unrevealed"), "share"),
        "content": "tokens",
    }

    def compute(self, trace: Trace) -> xr.Dataset:
        start = int(trace.info["prompt_length"])
        block, final = trace.data["block"].values[:, 0], trace.canvas.values[-1, start:]
        change, ends = trace.change.values[:, start:], trace.info.get("end_ids")
        values = self._order(change, block, final, ends)
        named = {name: (_DIMS.get(name, ()), value) for name, value in values.items()}
        return xr.Dataset(named, _PLACES, {"most": {"content": change.shape[1]}})

    def of_decodings(
        self, decodings: Sequence[Decoded], model: str, ends: Sequence[int] | None = None
    ) -> Result:
        """Compute the measure for decodings that were not traced.

        Args:
            decodings (sequence of Decoding): One or more results of `model.generate`.
            model (str): The model's name.
            ends (sequence of int): Ids of the end tokens, such as `model.end_ids`; None if they are not
                known.

        Returns:
            The result over all decodings.
        """
        examples, longest = [], 0
        for decoding in decodings:
            start = len(decoding.prompt.ids)
            change, final = decoding.change[:, start:], decoding.canvas[-1, start:]
            examples.append(self._order(change, decoding.block[:, 0], final, ends))
            longest = max(longest, change.shape[1])
        if not examples:
            raise UsageError("no decodings", "Give at least one decoding.")
        # Plain numbers are stacked, because thousands of labelled datasets would take minutes.
        joined = xr.Dataset(coords=_PLACES)
        for name in examples[0]:
            values = np.stack([example[name] for example in examples])
            joined[name] = ("example", *_DIMS.get(name, ())), values
        joined["content"].attrs["most"] = float(longest)
        return summarise_joined(joined, self, model, self.units)

    def _order(
        self,
        change: Int8[np.ndarray, "t n"],
        block_start: Int[np.ndarray, " t"],
        final: Int[np.ndarray, " n"],
        ends: Sequence[int] | None,
    ) -> dict[str, Any]:
        """Compute all values and nulls by name, as numbers or as arrays with the dimensions in _DIMS."""
        ends = self.ends if self.ends is not None else ends
        when = reveals.last_reveal(change)
        position = np.flatnonzero(~np.isnan(when))
        step, token = when[position].astype(int), final[position]
        block = block_start[step] if len(step) else step
        is_end = None if ends is None else np.isin(token, np.asarray(ends, int))
        values: dict[str, Any] = {}
        all_positions = np.full(len(position), len(position) == len(final))
        content = np.zeros(len(position), bool) if is_end is None else ~is_end
        for name, chosen in (("", all_positions), ("_content", content)):
            rank = reveals.ranks(step[chosen])
            for end, order in (("", rank), ("_null", reveals.shuffled(rank, block[chosen]))):
                values[f"boundary{name}{end}"] = reveals.boundary(order)
                values[f"left_to_right{name}{end}"] = reveals.left_to_right(order, rank)
        values |= self._first(step, token, is_end)
        values["content"] = reveals.NAN if is_end is None else float((~is_end).sum())
        values["unrevealed"] = float(np.isnan(when).mean()) if len(when) else reveals.NAN
        values["map"], values["map_null"] = _spread(when, len(change))
        return values

    def _first(self, step: Any, token: Any, is_end: np.ndarray | None) -> dict[str, float]:
        """Compute `unseen` and the shares in the first quarter of reveals, with their nulls."""
        first = dict.fromkeys(("ends_first", "trivial", "end_or_trivial"), (reveals.NAN,) * 2)
        unseen = reveals.NAN
        if is_end is not None:
            first["ends_first"] = reveals.first_quarter(step, is_end)
        if is_end is not None and self.frequencies is not None:
            content, frequent = ~is_end, np.zeros(len(token), bool)
            if content.any():
                frequency = self._frequency(token[content])
                frequent[content] = frequency > np.median(frequency)
                unseen = float((frequency == 0).mean())
            # otherwise one token makes up at least half, and none is above the median
            if frequent.any():
                first["trivial"] = reveals.first_quarter(step[content], frequent[content])
            first["end_or_trivial"] = reveals.first_quarter(step, is_end | frequent)
        values = {"unseen": unseen}
        for name, (value, null) in first.items():
            values |= {name: value, f"{name}_null": null}
        return values

    def _frequency(self, token: np.ndarray) -> Float[np.ndarray, " n"]:
        table = read_frequencies(str(self.frequencies))
        if token.max() >= len(table):
            problem = (
                f"{self.frequencies} has {len(table)} frequencies, but none for token {token.max()}"
            )
            raise UsageError(problem, "Count them with this model's tokenizer.")
        return table[token]

    def plot(self, result: Result) -> Figure:
        def draw_map(axis: Axes) -> None:
            axis.figure.colorbar(_map(axis, result.data), ax=axis, label="P(revealed)")
            axis.set(xlabel="position in the answer", ylabel="share of steps done")

        def draw_values(axis: Axes) -> None:
            dots(axis, result.data, _SHOWN)
            for y, name in enumerate(_SHOWN):
                if np.isnan(result[name]):
                    axis.text(0, y, "does not apply", ha="center", va="center", color="0.4")
            axis.axvline(0, color="0.7", linewidth=0.6)
            axis.set_xlim(-1.08, 1.08)

        return lines(result, draw_map, draw_values)


def _spread(when: Float[np.ndarray, " n"], ticks: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the share of positions revealed by each relative step, per tenth of the answer and overall.

    `when` is the reveal step of each position. The results are (time, place) and (time,).
    """
    size = len(when)
    by = (when[None] + 1 <= _EDGES[:, None] * ticks + 1e-9).astype(float)  # (time, position)
    cells = np.arange(size + 1) / max(size, 1)
    low = np.maximum(_EDGES[:-1, None], cells[None, :-1])
    # (tenth, position): positions of a short answer extend over several tenths.
    overlap = (np.minimum(_EDGES[1:, None], cells[None, 1:]) - low).clip(0)
    null = by.mean(-1) if size else np.full(len(_EDGES), np.nan)
    return by @ overlap.T * _BINS, null


def maps(orders: Mapping[str, Result]) -> Figure:
    """Draw, for each titled result, a map of when each part of the answer is revealed."""
    columns = min(5, len(orders))
    rows = -(-len(orders) // columns)
    with panels(rows, columns, count=len(orders), width=1.6, height=1.5) as (figure, axes):
        for axis, (title, order) in zip(axes.flat, orders.items(), strict=False):
            image = _map(axis, order.data)
            axis.set_title(title, fontsize=points(7))
        figure.supylabel("steps done", fontsize="medium")
        figure.supxlabel("place in the answer", fontsize="medium")
        drawn = list(axes.flat[: len(orders)])
        figure.colorbar(image, ax=drawn, label="P(revealed)", shrink=0.8)
    return figure


def _map(axis: Axes, data: xr.Dataset) -> Any:
    style: Any = {"cmap": SHARE_MAP, "vmin": 0, "vmax": 1, "edgecolors": "face"}
    return axis.pcolormesh(data["place"], data["time"], data["map"], **style)
