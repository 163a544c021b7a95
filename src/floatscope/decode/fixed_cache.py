"""A KV cache of fixed size: keys and values are written into their columns and keep their addresses.

The shape and the addresses of a growing cache change at every step, so forwards with a growing cache
cannot be replayed. With the cache of fixed size a forward reads all columns, and a mask hides the empty
columns. Attention with that mask runs in other kernels than attention over a growing cache, so the last
bits of the logits differ between the two caches. The logits are the same whether a forward is launched or
replayed, and whether or not it is traced.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary
from transformers import DynamicCache

from ..models import Model, attention_hook
from .placed_cache import Columns, PlacedCache

_STEP = 256  # sizes are multiples of this number of columns


def room_for(columns: int, max_columns: int) -> int:
    """Return the size, in columns, of a cache that holds `columns` now and `max_columns` at the end.

    The size is the next power of two, limited to the columns needed at the end of the decoding.
    """
    power = 1 << (max(columns, _STEP) - 1).bit_length()
    return max(min(power, -(-max_columns // _STEP) * _STEP), -(-columns // _STEP) * _STEP)


class FixedCache(PlacedCache):
    """A cache of a batch's keys and values in `size` columns. `enter` fills it for another batch."""

    def __init__(self, model: Model, cache: DynamicCache, size: int) -> None:
        super().__init__(config=model.net.config)
        self.name, self.size = object(), size
        self.positions: Int[Tensor, " q"] | None = None  # columns that the next forward writes
        self.stored: list[tuple[Tensor, Tensor]] = []  # (b, kv, size, d), by layer
        for layer in cache.layers:
            b, kv, _, d = layer.keys.shape
            key, value = (tensor.new_zeros(b, kv, size, d) for tensor in (layer.keys, layer.values))
            self.stored.append((key, value))

    @staticmethod
    def kind(cache: DynamicCache, size: int) -> tuple[object, ...]:
        """Return a key that is equal for caches of the same shape, dtype and number of layers."""
        key = cache.layers[0].keys
        return ("keys and values", key.shape[:2], key.shape[3], key.dtype, len(cache.layers), size)

    def tensors(self) -> list[Tensor]:
        """Return the key and value tensors of all layers."""
        return [tensor for pair in self.stored for tensor in pair]

    def enter(self, cache: DynamicCache) -> None:
        """Copy the keys and values of a growing cache into this cache, and set the other columns to zero."""
        for layer, pair in zip(cache.layers, self.stored, strict=True):
            for mine, theirs in zip(pair, (layer.keys, layer.values), strict=True):
                n = theirs.shape[2]
                mine[:, :, :n] = theirs
                mine[:, :, n:] = 0

    def leave(self, cache: DynamicCache, columns: int) -> None:
        """Copy the first `columns` columns of this cache back into a growing cache."""
        for layer, (key, value) in zip(cache.layers, self.stored, strict=True):
            layer.keys, layer.values = (tensor[:, :, :columns].clone() for tensor in (key, value))

    def place(self, layer: int, key: Tensor, value: Tensor) -> tuple[Columns, Columns]:
        stored = self.stored[layer]
        assert self.positions is not None
        for columns, new in zip(stored, (key, value), strict=True):
            columns.index_copy_(2, self.positions, new)
        return stored


# masks in the form that SDPA's kernels accept, computed once for all layers
_added = WeakTensorKeyDictionary()


def attend(call: attention_hook.Call, proceed: attention_hook.Proceed) -> Float[Tensor, "b q h d"]:
    """Compute attention over a cache of fixed size; attached as the innermost attention handler.

    The query heads that share a key head become additional query rows, because transformers' attention
    with a mask would copy the keys once per query head.
    """
    mask, (b, h, q, d), kv = call.mask, call.query.shape, call.key.shape[1]
    if mask is None or mask.shape[1] != 1 or call.bias is not None or call.fills:
        return proceed(call)
    rows = call.query.reshape(b, kv, -1, d)  # (b, kv, h/kv · q, d)
    added = _added.get(mask)
    if added is None or added.dtype != call.query.dtype or added.shape[2] != rows.shape[2]:
        row_mask = mask.expand(b, 1, q, -1).repeat(1, 1, h // kv, 1)
        added = torch.zeros_like(row_mask, dtype=call.query.dtype).masked_fill_(
            ~row_mask, -torch.inf
        )
        _added[mask] = added
    out = torch.nn.functional.scaled_dot_product_attention(
        rows, call.key, call.value, attn_mask=added, scale=call.scale
    )
    return out.reshape(b, h, q, d).transpose(1, 2).contiguous()
