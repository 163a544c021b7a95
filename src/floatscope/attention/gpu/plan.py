"""Determine once per forward, for all layers, which tiles contain visible keys of counted queries.

The results are small integer tensors on the device. The kernels read their loop bounds from these tensors, so
the host never waits for the device.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float, Int, Int32
from torch import Tensor

from ...models import Visibility
from ..shapes import Labels


@dataclass(eq=False)
class Plan:
    """Loop bounds of the kernels for one forward. Tile sizes are arguments, because they differ by kernel."""

    group: Int32[Tensor, "b q"]
    last: Int32[Tensor, "b q"]  # the last key each query sees
    padding: Int32[Tensor, " b"]
    n_groups: int
    n_key: int
    real: Float[Tensor, "b k"]

    def __post_init__(self) -> None:
        self._memo: dict[tuple[str, int, int], Tensor] = {}
        self._zeros: dict[tuple[int, ...], Tensor] = {}
        self._rooms: dict[tuple[object, ...], tuple[Tensor, list[Tensor | None]]] = {}

    @cached_property
    def n_query(self) -> int:
        return self.group.shape[1]

    @cached_property
    def first_viewer(self) -> Int32[Tensor, "b k"]:
        """The first query that sees each key; all later queries see it too."""
        keys = torch.arange(self.n_key, device=self.last.device, dtype=torch.int32)
        keys = keys.expand(len(self.last), -1).contiguous()
        return torch.searchsorted(self.last, keys).int()

    @cached_property
    def viewers(self) -> Int[Tensor, "b k"]:
        """Number of counted queries that see each key."""
        counts = (self.group >= 0).long().flip(1).cumsum(1).flip(1)
        counts = torch.nn.functional.pad(counts, (0, 1))
        return counts.gather(1, self.first_viewer.long()) * self.real.long()

    def spans(self, tile: int) -> Int32[Tensor, "b g 2"]:
        """Return the first and past-the-last tile of queries in which each group has members; else 0, 0."""
        return self._memoize("spans", tile, 0, lambda: self._spans(tile))

    def _spans(self, tile: int) -> Tensor:
        groups = torch.arange(self.n_groups, device=self.group.device)
        tiles = -(-self.n_query // tile)
        group = torch.nn.functional.pad(self.group, (0, tiles * tile - self.n_query), value=-1)
        member = group[:, None] == groups[:, None]  # (b, g, q)
        has_members = member.unflatten(-1, (tiles, tile)).any(-1).int()  # (b, g, tiles)
        nonempty = has_members.any(-1)
        first = has_members.argmax(-1)
        past = tiles - has_members.flip(-1).argmax(-1)
        return torch.stack([first * nonempty, past * nonempty], dim=-1).int().contiguous()

    def first_queries(self, tile_q: int, tile_k: int) -> Int32[Tensor, "b tiles 2"]:
        """Return, for each tile of keys, the first tiles of queries that see some and all of the keys."""
        return self._memoize("first", tile_q, tile_k, lambda: self._first_queries(tile_q, tile_k))

    def _first_queries(self, tile_q: int, tile_k: int) -> Tensor:
        start = torch.arange(0, self.n_key, tile_k, device=self.group.device, dtype=torch.int32)
        stop = (start + tile_k - 1).clamp(max=self.n_key - 1)
        edges = torch.stack([start, stop]).expand(len(self.last), -1, -1).flatten(1).contiguous()
        # `last` never decreases, so bisection gives the first query that sees a key.
        viewer = torch.searchsorted(self.last, edges).unflatten(1, (2, -1))  # (b, 2, tiles)
        any_of, all_of = viewer[:, 0] // tile_q, -(-viewer[:, 1] // tile_q)
        return torch.stack([any_of, all_of], dim=-1).int().contiguous()

    def seen_keys(self, tile_q: int, tile_k: int) -> Int32[Tensor, "b tiles 4"]:
        """Return, for each tile of queries, the ranges of key tiles seen by any and by every query.

        There are four numbers per tile of queries: the first key tile that any query sees, the first key tile
        that every query sees, one past the last key tile that every query sees, and one past the last key
        tile that any query sees.
        """
        return self._memoize("seen", tile_q, tile_k, lambda: self._seen_keys(tile_q, tile_k))

    def _seen_keys(self, tile_q: int, tile_k: int) -> Tensor:
        start = torch.arange(0, self.n_query, tile_q, device=self.group.device)
        stop = (start + tile_q - 1).clamp(max=self.n_query - 1)
        past_full = (self.last[:, start] + 1) // tile_k
        past = -(-(self.last[:, stop] + 1) // tile_k)
        pad = self.padding[:, None].expand_as(past)
        first, after = pad // tile_k, torch.minimum(-(-pad // tile_k), past)
        past_full = torch.maximum(past_full, after)
        return torch.stack([first, after, past_full, past], dim=-1).int().contiguous()

    def side_by_side(
        self, parts: list[Tensor], n_rows: int, width: int, dtype: torch.dtype
    ) -> Float[Tensor, "b n w"]:
        """Concatenate the (b, k, _) parts along the last axis, padded with zeros to (b, `n_rows`, `width`).

        All layers share the resulting tensor, because their launches are sequential. Parts that did not
        change are not written again.
        """
        widths = tuple(part.shape[-1] for part in parts)
        kind = (widths, n_rows, width, dtype)
        if kind not in self._rooms:
            shape = (len(self.group), n_rows, width)
            room = torch.zeros(shape, dtype=dtype, device=self.group.device)
            self._rooms[kind] = (room, [None] * len(parts))
        room, written = self._rooms[kind]
        column = 0
        for i, part in enumerate(parts):
            if written[i] is not part:
                room[:, : part.shape[1], column : column + widths[i]] = part
                written[i] = part
            column += widths[i]
        return room

    def nothing(self, shape: tuple[int, ...]) -> Tensor:
        """Return a shared tensor of zeros, which must not be modified."""
        if shape not in self._zeros:
            self._zeros[shape] = torch.zeros(shape, device=self.group.device)
        return self._zeros[shape]

    def _memoize(self, name: str, tile_q: int, tile_k: int, make: Callable[[], Tensor]) -> Tensor:
        if (name, tile_q, tile_k) not in self._memo:
            self._memo[name, tile_q, tile_k] = make()
        return self._memo[name, tile_q, tile_k]


_plans: "WeakKeyDictionary[Labels, dict[bool, Plan]]" = WeakKeyDictionary()


def plan_of(labels: Labels, visible: Visibility, ruled: bool) -> Plan:
    """Return the plan of a forward, cached with its labels.

    `ruled` says whether visibility follows from direction and padding. If it does not, the plan includes
    every key, and the kernels read a mask.
    """
    plans = _plans.setdefault(labels, {})
    if ruled not in plans:
        last, padding = visible.last_visible.int(), visible.padding.int()
        if not ruled:
            last, padding = torch.full_like(last, visible.keys - 1), torch.zeros_like(padding)
        plans[ruled] = Plan(
            group=labels.group.int().contiguous(),
            last=last.contiguous(),
            padding=padding,
            n_groups=labels.n_groups,
            n_key=visible.keys,
            real=labels.real[:, 0],
        )
    return plans[ruled]
