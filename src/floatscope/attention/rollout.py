"""Attention rollout, layer by layer: how much of the content of each row comes from each region.

R_l = ½ (Ā_l + I) R_{l−1}, where Ā_l is the attention of layer l averaged over all heads. The product Ā_l
R_{l−1} is one of the attention sums. The state of a row is one share per region. With a KV cache, the states
of earlier rows are kept between forwards.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from .forward import Forward

State = Float[Tensor, "b k r"]


@dataclass(eq=False)
class Rollout:
    """Rollout of a forward. Call `begin` once, then `before` and `after` for each layer."""

    # With a fixed-size cache: the states, (b, k, r) by layer, at fixed addresses.
    fixed: dict[int, Tensor] = field(default_factory=dict)
    # With a growing cache, by layer: the prompts, and the state of every row.
    cached_states: dict[int, tuple[list[int], Tensor]] = field(default_factory=dict)
    _state: Tensor | None = None  # up to the current layer

    def begin(self) -> None:
        """Start a forward: discard the state of the previous forward."""
        self._state = None

    def select_states(self, prompts: Sequence[int]) -> dict[int, State]:
        """Return the cached states of these prompts by layer, to be copied into `fixed`."""
        order = list(prompts)
        return {layer: _select(cached, order) for layer, cached in self.cached_states.items()}

    def unfix(self, prompts: Sequence[int], columns: int) -> None:
        """Copy the states of a fixed-size cache to those of a growing cache of `columns` rows."""
        for layer, state in self.fixed.items():
            self.cached_states[layer] = (list(prompts), state[:, :columns].clone())
        self.fixed = {}

    def before(self, forward: Forward, device: torch.device) -> State:
        """Return the state of all rows before a layer."""
        if self._state is None:
            self._state = forward.labels.in_region
        self._state = self._state.to(device)
        return self._state

    def after(self, layer: int, rolled: Float[Tensor, "b q r"], forward: Forward) -> State:
        """Return the state of all rows after a layer; with a cache, earlier rows keep their state."""
        assert self._state is not None
        new = (rolled + forward.visible.of_rows(self._state, 1)) / 2
        if forward.visible.row_columns is not None:
            self._state = self.fixed[layer].index_copy_(1, forward.visible.row_columns, new)
        elif forward.cached:
            self._state = self._append_rows(layer, new, forward)
        else:
            self._state = self._replace_rows(layer, new, forward)
        return self._state

    def _append_rows(self, layer: int, new: Float[Tensor, "b q r"], forward: Forward) -> State:
        prompts = list(forward.prompts)
        if (cached := self.cached_states.get(layer)) is not None:
            new = torch.cat([_select(cached, prompts), new], dim=1)
        final = new
        if forward.settled is not None:
            final = new[:, : forward.visible.first_row + forward.settled]
        self.cached_states[layer] = (prompts, final)
        return new

    def _replace_rows(self, layer: int, new: Float[Tensor, "b q r"], forward: Forward) -> State:
        """Return the new states; with an approximate cache, rows not recomputed keep their state."""
        prompts = list(forward.prompts)
        cached = self.cached_states.get(layer) if forward.partial else None
        if cached is not None:
            before = _select(cached, prompts)
            rows, states = forward.visible.rows, before.clone()
            counts = (forward.labels.group >= 0)[..., None]
            states[:, rows] = torch.where(counts, new, before[:, rows])
            new = states
        self.cached_states[layer] = (prompts, new)
        return new


def _select(cached: tuple[list[int], Tensor], prompts: list[int]) -> State:
    """Return the cached states of the given prompts, in their order."""
    before, state = cached
    return state if before == prompts else state[[before.index(p) for p in prompts]]
