"""Measure coupling, the attention of the positions being decided to each other, during a forward.

The class Coupling is a handler at the attention hook and does not change the forward. In each requested
layer it recomputes the attention of the rows that predict the window, and adds up their attention to the
window. This takes O(window × keys) time and does not compute the full attention matrix.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Float
from torch import Tensor

from ..models import Model, attention_hook
from .state import State


class Coupling:
    """The coupling in one forward, summed over the layers computed so far. Read `mean` after the forward."""

    def __init__(self, state: State, layers: frozenset[int]) -> None:
        self.state, self.layers, self.n_measured = state, layers, 0
        self.total: Tensor | float = 0.0

    def attention(self, call: attention_hook.Call, proceed: attention_hook.Proceed) -> Tensor:
        """Add this layer's coupling to the sum if requested, then run the layer's attention unchanged."""
        if call.layer in self.layers:
            self.total = self.total + _window_attention(call, self.state)
            self.n_measured += 1
        return proceed(call)

    @property
    def mean(self) -> Float[Tensor, "b w w"]:
        """Mean attention between each pair of window positions, over layers, heads and both directions."""
        assert isinstance(self.total, Tensor)
        return (self.total + self.total.mT) / (2 * self.n_measured)


def _window_attention(call: attention_hook.Call, state: State) -> Float[Tensor, "b w w"]:
    """Return the attention, averaged over heads, from the rows that predict the window to its positions."""
    (first, last), (lo, hi) = state.predicting, state.window
    rows = torch.arange(first, last, device=call.query.device).clamp(min=0)
    query = call.query[:, :, rows].float()  # (b, h, w, d)
    key = call.key.float().repeat_interleave(query.shape[1] // call.key.shape[1], dim=1)
    score = query @ key.mT * call.scale  # (b, h, w, k)
    if call.bias is not None:
        score = score + call.bias
    hidden = ~attention_hook.explicit_mask(call)[:, :, rows]
    return score.masked_fill(hidden, -torch.inf).softmax(-1)[..., lo:hi].mean(1)


@contextmanager
def listening(
    model: Model, state: State, layers: frozenset[int] | None
) -> Iterator[Coupling | None]:
    """Yield a Coupling that measures `layers` while the `with` block runs; yield None if `layers` is None."""
    if layers is None:
        yield None
        return
    coupling = Coupling(state, layers)
    with attention_hook.attach(model.net, coupling.attention, innermost=True):
        yield coupling
