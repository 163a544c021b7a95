"""Which query rows are computed together, and how far they see: worked out once per forward, for all layers.

A strip is a run of rows that see nearly the same keys: all of its rows see the keys before `seen`, none those
from `last` on, and only keys between may be hidden. So a model in blocks or a causal one costs little more
than the keys that it sees. A strip is cut into tiles of rows and heads that fit a core's cache.
"""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Bool
from torch import Tensor

from ...models import Visibility
from ..shapes import View

# Rows of a strip, at least: a product of fewer is slow. Measured with 8 heads of 32, 32 rows reach 121
# GFLOP/s where 64 reach 136, and 16 take 1.4 times as long; a strip of 64 computes more hidden keys.
_FEW = 32

_known: "WeakKeyDictionary[Visibility, dict[Hashable, Plan]]" = WeakKeyDictionary()


@dataclass(frozen=True, eq=False)
class Strip:
    """Query rows start … stop over keys 0 … last."""

    start: int
    stop: int
    seen: int
    last: int
    # True where a row may not look, for keys seen … last; None: nowhere, or as the view's mask has it.
    hidden: Bool[Tensor, "rows keys"] | None = None


@dataclass(frozen=True)
class Tile:
    """Some heads of some prompts. If not all heads, then of one prompt."""

    prompts: slice
    heads: slice  # of keys: grouped heads stay together


@dataclass(frozen=True)
class Band:
    """Some rows of a strip, and the tiles into which all heads of all prompts are divided for them."""

    rows: slice
    tiles: list[Tile]
    pairs: list[int]  # prompts × heads of keys in each tile
    whole: bool  # all rows there are


Plan = list[tuple[Strip, list[Band]]]


def plan(view: View, numbers: int) -> Plan:
    """Divide all rows of a view into tiles of about `numbers` weights. Layers usually share the plan."""
    shape = (*view.query.shape[:3], *view.key.shape[1:3])
    known = _known.setdefault(view.visible, {})
    # Elsewhere than on a CPU, asking how far a rule sees would wait.
    ruled = view.mask is not None and view.query.is_cpu and view.ruled
    key = (shape, view.causal, view.mask is None, ruled, numbers)
    if key not in known:
        known[key] = [(one, list(bands(one, shape, numbers))) for one in strips(view, ruled)]
    return known[key]


def strips(view: View, ruled: bool) -> list[Strip]:
    """Return one strip where the mask is not known by rule, or where every row sees all keys."""
    n_query, n_key = view.query.shape[2], view.key.shape[2]
    last: Sequence[int] | None = _same_for_all(view.visible) if ruled else None
    if view.causal:
        last = range(n_key - n_query, n_key)
    if last is None:
        return [Strip(0, n_query, n_key if view.mask is None else 0, n_key)]
    found, start = [], 0
    while start < n_query:
        stop = min(start + _FEW, n_query)
        while stop < n_query and last[stop] == last[stop - 1]:
            stop += 1
        found.append(_strip(start, stop, last, view.query.device))
        start = stop
    return found


def _same_for_all(visible: Visibility) -> list[int] | None:
    """Return the last key that each row sees, if there is no padding and all prompts agree; else None."""
    last = visible.last_visible
    if visible.padded or not bool((last == last[:1]).all()):
        return None
    return [int(key) for key in last[0].tolist()]


def _strip(start: int, stop: int, last: Sequence[int], device: torch.device) -> Strip:
    seen, end = last[start] + 1, last[stop - 1] + 1
    if seen == end:
        return Strip(start, stop, seen, end)
    furthest = torch.tensor(last[start:stop], device=device)[:, None]
    hidden = torch.arange(seen, end, device=device) > furthest
    return Strip(start, stop, seen, end, hidden)


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
    some = min(prompts, max(1, pairs // heads))
    few = min(heads, pairs)
    tiles = [
        Tile(slice(first, min(first + some, prompts)), slice(head, min(head + few, heads)))
        for first in range(0, prompts, some)
        for head in range(0, heads, few)
    ]
    sizes = [(t.prompts.stop - t.prompts.start) * (t.heads.stop - t.heads.start) for t in tiles]
    for start in range(strip.start, strip.stop, rows):
        of_rows = slice(start, min(start + rows, strip.stop))
        yield Band(of_rows, tiles, sizes, whole=of_rows == slice(0, n_query))
