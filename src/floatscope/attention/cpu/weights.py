"""Attention weights of a tile of rows and heads, in memory that the next tile overwrites.

A weight is exp(score − lse). Log-sum-exps of ordinary size are left to whoever sums: exp(score) needs no
pass before the exponential. Nothing is summed here, but the log-sum-exp itself where nobody knows it.
"""

import threading
from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from ..statistics import View
from .strips import Band, Strip, Tile

# Log-sum-exps up to here are left for the end: exp(score) · exp(−lse) is as exact as exp(score − lse), as
# neither leaves float32, and what is below 1e-12 of a row may be lost. It saves a pass, or a copy of keys.
_MILD = 60.0
_KEPT = 1 << 20  # numbers that a thread keeps room for

Tiles = Iterator[tuple[Float[Tensor, "m r k"], Float[Tensor, "m r k"] | None]]


class Weights:
    """`factor` · query · key is the logarithm of weights, to which each row's −`later` is still missing."""

    def __init__(self, view: View, logarithms: bool) -> None:
        self._view, self._logarithms = view, logarithms
        b, kv, n_key, d = view.key.shape
        query, key, lse = view.query.float(), view.key.float(), view.lse
        self._factor, self._known = view.scale, lse is not None
        self.later: Float[Tensor, "b h q"] | None = (
            None  # None: nothing is missing, or it is unknown
        )
        if lse is not None and _mild(lse):
            self.later = lse.contiguous()  # the kernel has heads side by side
        elif lse is not None:  # −lse is a further number of q that meets a one of k
            one = key.new_ones(()).expand(b, kv, n_key, 1)
            query = torch.cat([query * view.scale, -lse[..., None]], dim=-1)
            key, self._factor, d = torch.cat([key, one], dim=-1), 1.0, d + 1
        self._per = query.shape[1] // kv  # heads that share a key
        self._query = query.reshape(b * kv, self._per, -1, d)
        self._key = key.reshape(b * kv, n_key, d).mT  # (n, d, k)

    def of(self, strip: Strip, band: Band) -> Tiles:
        """Weights of a band's tiles (but for `later`) over keys 0 … last, and their logarithm if wanted.

        Both have all heads of all prompts in one axis; the logarithm of a hidden key is 0, not −inf.
        """
        hidden = _hidden(self._view, strip, band.rows)
        query = self._query if band.whole else self._query[:, :, band.rows]
        key = self._key if strip.last == self._key.shape[2] else self._key[:, :, : strip.last]
        parts = (query.flatten(1, 2).split(band.pairs), key.split(band.pairs))
        for tile, left, right in zip(band.tiles, *parts, strict=True):
            yield self._tile(strip, tile, left, right, hidden)

    def _tile(
        self,
        strip: Strip,
        tile: Tile,
        left: Float[Tensor, "n q e"],
        right: Float[Tensor, "n e k"],
        hidden: Tensor | None,
    ) -> tuple[Float[Tensor, "m r k"], Float[Tensor, "m r k"] | None]:
        view, seen, per = self._view, strip.seen, self._per
        shape = (len(left), left.shape[1], strip.last)
        product, other = _room(left, shape, self._logarithms)
        torch.baddbmm(product, left, right, beta=0, alpha=self._factor, out=product)
        log_weight, weight = product, other
        if per > 1:  # (n · per, rows, k)
            log_weight = product.view(shape[0] * per, -1, strip.last)
            weight = None if other is None else other.view(log_weight.shape)
        prompts = tile.prompts.stop - tile.prompts.start
        by_head = (prompts, -1, per, shape[1] // per, strip.last)  # (b, kv, per, rows, k)
        if view.bias is not None:
            bias = view.bias.unflatten(1, (-1, per))[tile.prompts, tile.heads, ..., : strip.last]
            log_weight.view(by_head).add_(bias)
        if hidden is not None:
            hidden = hidden[tile.prompts] if len(hidden) > 1 else hidden
            hidden = hidden[:, tile.heads] if hidden.shape[1] > 1 else hidden
            log_weight.view(by_head)[..., seen:].masked_fill_(hidden, -torch.inf)
        if not self._known:
            log_weight.sub_(log_weight.logsumexp(-1, keepdim=True))
        if weight is None:
            return log_weight.exp_(), None
        torch.exp(log_weight, out=weight)
        if hidden is not None:
            log_weight.view(by_head)[..., seen:].masked_fill_(hidden, 0)
        return weight, log_weight


def _mild(lse: Float[Tensor, "b h q"]) -> bool:
    if not lse.is_cpu:  # to ask would wait
        return False
    values = lse.numpy()  # which is twice as fast at this
    return bool(values.min() > -_MILD and values.max() < _MILD)


_kept = threading.local()


def _room(
    like: Tensor, shape: tuple[int, int, int], both: bool
) -> tuple[Float[Tensor, "n q k"], Float[Tensor, "n q k"] | None]:
    """Memory to work in. On a CPU a thread keeps it from tile to tile: fresh memory is slow at first."""
    size = shape[0] * shape[1] * shape[2]
    if not like.is_cpu or size > _KEPT:  # one row of many keys may take more
        return like.new_empty(shape), like.new_empty(shape) if both else None
    if getattr(_kept, "shape", None) != (shape, both):
        flat = getattr(_kept, "flat", None)
        if flat is None:
            with torch.inference_mode(False):
                flat = _kept.flat = torch.empty(2 * _KEPT, dtype=torch.float32)
        _kept.shape = (shape, both)
        _kept.rooms = (flat[:size].view(shape), flat[size : 2 * size].view(shape) if both else None)
    rooms: tuple[Tensor, Tensor | None] = _kept.rooms
    return rooms


def _hidden(view: View, strip: Strip, rows: slice) -> Tensor | None:
    """True where a row may not look, for keys seen … last, as (#b, #kv, #per, rows, keys)."""
    if strip.hidden is not None:
        return strip.hidden[rows.start - strip.start : rows.stop - strip.start][None, None, None]
    if strip.seen == strip.last or view.mask is None:
        return None
    part = ~view.mask[:, :, rows, strip.seen : strip.last]
    return part[:, :, None] if part.shape[1] == 1 else part.unflatten(1, (view.key.shape[1], -1))
