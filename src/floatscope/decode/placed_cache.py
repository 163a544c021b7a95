"""A KV cache whose forward writes into columns that the caller chose; the caller counts positions."""

from jaxtyping import Float
from torch import Tensor
from transformers import DynamicCache

Columns = Float[Tensor, "b kv k d"]


class PlacedCache(DynamicCache):
    """Base of caches with chosen columns. Subclasses define in `place` where new keys and values go."""

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
        """Store a forward's keys and values; return all columns that it attends to."""
        raise TypeError(f"{type(self).__name__} must define place")

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0
