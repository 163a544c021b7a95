"""A KV cache that writes a forward's keys and values into columns chosen by the caller."""

from jaxtyping import Float
from torch import Tensor
from transformers import DynamicCache

Columns = Float[Tensor, "b kv k d"]


class PlacedCache(DynamicCache):
    """Base class of caches that store keys and values in chosen columns. Subclasses define `place`."""

    def update(
        self,
        key_states: Tensor,
        value_states: Tensor,
        layer_idx: int,
        *args: object,
        **kwargs: object,
    ) -> tuple[Columns, Columns]:
        return self.place(layer_idx, key_states, value_states)

    def place(self, layer: int, key: Tensor, value: Tensor) -> tuple[Columns, Columns]:
        """Store a layer's new keys and values; return all keys and values that the forward attends to."""
        raise TypeError(f"{type(self).__name__} must define place")

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0
