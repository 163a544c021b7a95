"""Plan which query rows are computed together and which keys they see, once per forward for all layers.

A strip is a run of rows that see nearly the same keys. All rows of a strip see the keys before `common`, and
no row sees the keys from `last` on; only the keys between `common` and `last` may be hidden from some rows.
Computing a causal or block-wise model therefore costs little more than computing its visible keys. A strip is
cut into tiles of rows and heads that fit into the cache of a core.
"""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Bool
from torch import Tensor

from ...models import Visibility
from ..shapes import View

# Minimum number of rows in a strip: products of fewer rows are slow. With 8 heads of 32, 32 rows reach 121
# GFLOP/s, 64 rows reach 136, and 16 take 1.4 times as long; a strip of 64 computes more hidden keys.
_MIN_ROWS = 32

_plans: "WeakKeyDictionary[Visibility, dict[Hashable, Plan]]" = WeakKeyDictionary()


@dataclass(frozen=True, eq=False)
class Strip:
    """Query rows start … stop − 1, and the keys 0 … last − 1 that they may see."""

    start: int
    stop: int
    common: int  # every row sees the keys before this one
    last: int
    # True where a row does not see a key, for keys common … last. None: none hidden, or see the mask.
    hidden: Bool[Tensor, "rows keys"] | None = None


@dataclass(frozen=True)
class Tile:
    """Prompts and heads computed together: several prompts with all heads, or one prompt with some heads."""

    prompts: slice
    heads: slice  # key heads: query heads that share a key stay together


@dataclass(frozen=True)
class Band:
    """Some rows of a strip, and the tiles that divide all heads of all prompts for these rows."""

    rows: slice
    tiles: list[Tile]
    pairs: list[int]  # prompts × key heads in each tile
    all_rows: bool  # the band has every row of the view


Plan = list[tuple[Strip, list[Band]]]


def plan(view: View, numbers: int) -> Plan:
    """Divide a view into strips, bands and tiles of about `numbers` weights; cached for all layers."""
    shape = (*view.query.shape[:3], *view.key.shape[1:3])
    plans = _plans.setdefault(view.visible, {})
    # On other devices than a CPU, reading the rule's result would wait for the device.
    ruled = view.mask is not None and view.query.is_cpu and view.ruled
    key = (shape, view.causal, view.mask is None, ruled, numbers)
    if key not in plans:
        plans[key] = [(strip, list(bands(strip, shape, numbers))) for strip in strips(view, ruled)]
    return plans[key]


def strips(view: View, ruled: bool) -> list[Strip]:
    """Return the strips of a view; `ruled` says whether its mask follows from direction and padding.

    The result is a single strip if the mask does not follow from direction and padding, or if every row sees
    all keys.
    """
    n_query, n_key = view.query.shape[2], view.key.shape[2]
    last: Sequence[int] | None = _same_for_all(view.visible) if ruled else None
    if view.causal:
        last = range(n_key - n_query, n_key)
    if last is None:
        return [Strip(0, n_query, n_key if view.mask is None else 0, n_key)]
    runs, start = [], 0
    while start < n_query:
        stop = min(start + _MIN_ROWS, n_query)
        while stop < n_query and last[stop] == last[stop - 1]:
            stop += 1
        runs.append(_strip(start, stop, last, view.query.device))
        start = stop
    return runs


def _same_for_all(visible: Visibility) -> list[int] | None:
    """Return the last key that each row sees, if there is no padding and all prompts agree; else None."""
    last = visible.last_visible
    if visible.padded or not bool((last == last[:1]).all()):
        return None
    return [int(key) for key in last[0].tolist()]


def _strip(start: int, stop: int, last: Sequence[int], device: torch.device) -> Strip:
    common, end = last[start] + 1, last[stop - 1] + 1
    if common == end:
        return Strip(start, stop, common, end)
    furthest = torch.tensor(last[start:stop], device=device)[:, None]
    hidden = torch.arange(common, end, device=device) > furthest
    return Strip(start, stop, common, end, hidden)


def bands(strip: Strip, shape: tuple[int, ...], numbers: int) -> Iterator[Band]:
    """Divide a strip into bands of about `numbers` weights.

    Heads are divided before rows, because products of few heads and many rows are faster.
    """
    prompts, all_heads, n_query, heads, _ = shape
    width = all_heads // heads * strip.last
    n_rows = strip.stop - strip.start
    parts = -(-n_rows // max(1, min(n_rows, numbers // width)))
    rows = -(-n_rows // parts)  # alike
    pairs = max(1, numbers // (rows * width))
    prompts_per_tile = min(prompts, max(1, pairs // heads))
    heads_per_tile = min(heads, pairs)
    tiles = [
        Tile(
            slice(first, min(first + prompts_per_tile, prompts)),
            slice(head, min(head + heads_per_tile, heads)),
        )
        for first in range(0, prompts, prompts_per_tile)
        for head in range(0, heads, heads_per_tile)
    ]
    sizes = [(t.prompts.stop - t.prompts.start) * (t.heads.stop - t.heads.start) for t in tiles]
    for start in range(strip.start, strip.stop, rows):
        of_rows = slice(start, min(start + rows, strip.stop))
        yield Band(of_rows, tiles, sizes, all_rows=of_rows == slice(0, n_query))
