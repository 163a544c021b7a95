"""Coupling: how much the positions being decided look at each other, while a forward runs.

Stands at the seam and changes nothing. Of each layer asked for, the rows that predict the window are
computed once more, for their attention to the window alone is wanted: O(window × keys), no whole matrix.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Float
from torch import Tensor

from ..models import Model, seam
from .state import State


class Coupling:
    """The sum over the layers seen so far; `mean` when the forward has ended."""

    def __init__(self, state: State, layers: frozenset[int]) -> None:
        self.state, self.layers, self.seen = state, layers, 0
        self.total: Tensor | float = 0.0

    def attention(self, call: seam.Call, proceed: seam.Proceed) -> Tensor:
        if call.layer in self.layers:
            self.total = self.total + _between(call, self.state)
            self.seen += 1
        return proceed(call)

    @property
    def mean(self) -> Float[Tensor, "b w w"]:
        """Over layers and heads, and over the two directions between two positions."""
        assert isinstance(self.total, Tensor)
        return (self.total + self.total.mT) / (2 * self.seen)


def _between(call: seam.Call, state: State) -> Float[Tensor, "b w w"]:
    """Head mean of the attention from the rows that predict the window to its positions."""
    (first, last), (lo, hi) = state.predicting, state.window
    rows = torch.arange(first, last, device=call.query.device).clamp(min=0)
    query = call.query[:, :, rows].float()  # (b, h, w, d)
    key = call.key.float().repeat_interleave(query.shape[1] // call.key.shape[1], dim=1)
    score = query @ key.mT * call.scale  # (b, h, w, k)
    if call.bias is not None:
        score = score + call.bias
    hidden = ~seam.allowed(call)[:, :, rows]
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
    with seam.attached(model.net, coupling.attention, innermost=True):
        yield coupling
