"""Compute the attention weights of a tile of rows and heads, in memory that the next tile overwrites.

A weight is exp(score − lse). If no |lse| exceeds `_MILD`, this module returns exp(score) instead, and the
caller multiplies its sums by exp(−lse), which saves a pass over the tile. If attention returned no
log-sum-exp, this module computes it. All other sums are computed by the callers.
"""

import threading
from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from ..shapes import View
from .strips import Band, Strip, Tile

# Up to this log-sum-exp, exp(−lse) is multiplied last: exp(score) · exp(−lse) is as exact as
# exp(score − lse), since both factors fit float32 and weights below 1e-12 of a row may be lost. This saves a
# pass, or a copy of the keys.
_MILD = 60.0
_ROOM = 1 << 20  # numbers that fit into the memory of a thread

Weight = Float[Tensor, "m r k"]  # m: heads and prompts of a tile
Tiles = Iterator[tuple[Weight, Weight | None]]


class Weights:
    """Attention weights of a view, tile by tile. If `later` is set, rows lack the factor exp(−`later`)."""

    def __init__(self, view: View, logarithms: bool) -> None:
        self._view, self._logarithms = view, logarithms
        b, kv, n_key, d = view.key.shape
        query, key, lse = view.query.float(), view.key.float(), view.lse
        self._factor, self._has_lse = view.scale, lse is not None
        # None: the weights need no further factor.
        self.later: Float[Tensor, "b h q"] | None = None
        if lse is not None and _mild(lse):
            self.later = lse.contiguous()  # the kernel returns heads side by side
        elif lse is not None:  # append −lse to q and 1 to k
            ones = key.new_ones(()).expand(b, kv, n_key, 1)
            query = torch.cat([query * view.scale, -lse[..., None]], dim=-1)
            key, self._factor, d = torch.cat([key, ones], dim=-1), 1.0, d + 1
        self._per = query.shape[1] // kv  # heads that share a key
        self._query = query.reshape(b * kv, self._per, -1, d)
        self._key = key.reshape(b * kv, n_key, d).mT  # (n, d, k)

    def compute(self, strip: Strip, band: Band) -> Tiles:
        """Yield weights (without `later`) and their logarithms for each tile, over keys 0 … last − 1.

        The first axis joins prompts and heads. The logarithms are None unless they were requested; the
        logarithms of hidden keys are 0, not −inf.
        """
        last, per, rows = strip.last, self._per, band.rows.stop - band.rows.start
        hidden = _hidden(self._view, strip, band.rows)
        plain = hidden is None and self._view.bias is None and self._has_lse
        query = self._query if band.all_rows else self._query[:, :, band.rows]
        key = self._key if last == self._key.shape[2] else self._key[:, :, :last]
        tiles = query.flatten(1, 2).split(band.pairs), key.split(band.pairs)
        size = 0
        for tile, n, queries, keys in zip(band.tiles, band.pairs, *tiles, strict=True):
            if n != size:
                size, rooms = n, _rooms(queries, (n, per * rows, last), self._logarithms)
                product, log_weight = rooms[0], rooms[0].view(n * per, rows, last)
                weight = rooms[1].view(log_weight.shape) if self._logarithms else log_weight
            torch.baddbmm(product, queries, keys, beta=0, alpha=self._factor, out=product)
            if not plain:
                self._edit(strip, tile, log_weight, hidden)
            torch.exp(log_weight, out=weight)
            if hidden is not None:
                self._hide(strip, tile, weight, hidden, 0)
                if self._logarithms:  # infinite in rows without visible keys
                    self._hide(strip, tile, log_weight, hidden, 0)
            yield weight, log_weight if self._logarithms else None

    def _edit(self, strip: Strip, tile: Tile, log_weight: Weight, hidden: Tensor | None) -> None:
        """Add the view's bias in place, and subtract the log-sum-exp if the view has none."""
        if (bias := self._view.bias) is not None:
            bias = bias.unflatten(1, (-1, self._per))[tile.prompts, tile.heads, ..., : strip.last]
            self._by_head(tile, log_weight).add_(bias)
        if not self._has_lse:
            visible = log_weight
            if hidden is not None:
                self._hide(strip, tile, visible := log_weight.clone(), hidden, -torch.inf)
            log_weight.sub_(visible.logsumexp(-1, keepdim=True))

    def _hide(self, strip: Strip, tile: Tile, weight: Weight, hidden: Tensor, value: float) -> None:
        """Set the hidden entries of a tile to `value` in place.

        Weights are hidden after exp, because exp of −inf takes eight times as long as exp of other numbers.
        """
        hidden = hidden[tile.prompts] if len(hidden) > 1 else hidden
        hidden = hidden[:, tile.heads] if hidden.shape[1] > 1 else hidden
        self._by_head(tile, weight)[..., strip.common :].masked_fill_(hidden, value)

    def _by_head(self, tile: Tile, weight: Weight) -> Float[Tensor, "b kv per r k"]:
        prompts = tile.prompts.stop - tile.prompts.start
        return weight.view(prompts, -1, self._per, *weight.shape[1:])


def _mild(lse: Float[Tensor, "b h q"]) -> bool:
    if not lse.is_cpu:  # reading the maximum would wait for the device
        return False
    return float(torch.linalg.vector_norm(lse, torch.inf)) < _MILD


_thread_memory = threading.local()


def _rooms(template: Tensor, shape: tuple[int, int, int], logarithms: bool) -> list[Tensor]:
    """Return uninitialised tensors of a shape, two with `logarithms`; on a CPU each thread reuses them."""
    size, n = shape[0] * shape[1] * shape[2], 2 if logarithms else 1
    if not template.is_cpu or n * size > _ROOM:  # one row of many keys may need more
        return [template.new_empty(shape) for _ in range(n)]
    flat: Tensor | None = getattr(_thread_memory, "flat", None)
    if flat is None:
        with torch.inference_mode(False):
            flat = _thread_memory.flat = torch.empty(_ROOM, dtype=torch.float32)
    return [flat[i * size : (i + 1) * size].view(shape) for i in range(n)]


def _hidden(view: View, strip: Strip, rows: slice) -> Tensor | None:
    """Return which rows do not see which of the keys common … last − 1; None if all keys are visible.

    The shape of the result is (#b, #kv, #per, rows, keys), where `per` heads share a key.
    """
    if strip.hidden is not None:
        return strip.hidden[rows.start - strip.start : rows.stop - strip.start][None, None, None]
    if strip.common == strip.last or view.mask is None:
        return None
    part = ~view.mask[:, :, rows, strip.common : strip.last]
    return part[:, :, None] if part.shape[1] == 1 else part.unflatten(1, (view.key.shape[1], -1))
