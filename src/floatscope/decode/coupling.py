"""Coupling: how much the positions being decided attend to each other, measured while a forward runs.

A handler at the attention hook, which changes nothing. In each requested layer it recomputes the rows that
predict the window, for their attention to the window alone: O(window × keys), without the full matrix.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Float
from torch import Tensor

from ..models import Model, attention_hook
from .state import State


class Coupling:
    """The sum over the layers seen so far; `mean` when the forward has ended."""

    def __init__(self, state: State, layers: frozenset[int]) -> None:
        self.state, self.layers, self.seen = state, layers, 0
        self.total: Tensor | float = 0.0

    def attention(self, call: attention_hook.Call, proceed: attention_hook.Proceed) -> Tensor:
        if call.layer in self.layers:
            self.total = self.total + _between(call, self.state)
            self.seen += 1
        return proceed(call)

    @property
    def mean(self) -> Float[Tensor, "b w w"]:
        """Over layers and heads, and over the two directions between two positions."""
        assert isinstance(self.total, Tensor)
        return (self.total + self.total.mT) / (2 * self.seen)


def _between(call: attention_hook.Call, state: State) -> Float[Tensor, "b w w"]:
    """Head mean of the attention from the rows that predict the window to its positions."""
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
    """Around one forward; None where nobody asked."""
    if layers is None:
        yield None
        return
    coupling = Coupling(state, layers)
    with attention_hook.attach(model.net, coupling.attention, innermost=True):
        yield coupling
