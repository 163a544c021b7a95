"""Attention rollout, layer by layer: from which region's positions a row has what it holds.

R_l = ½ (Ā_l + I) R_{l−1}, with Ā the mean of all heads, which the sums bring. The state of a row is a share
for each region; with a cache, the states of earlier rows are kept from forward to forward.
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
    """The rollout of a forward: `begin` it, then call `before` and `after` each layer's sums."""

    # With a cache of fixed size: the states, (b, k, r) by layer, in memory that stays where it is.
    fixed: dict[int, Tensor] = field(default_factory=dict)
    # With one that grows, by layer: whose, and the state of every row.
    kept: dict[int, tuple[list[int], Tensor]] = field(default_factory=dict)
    _state: Tensor | None = None  # up to this layer

    def begin(self) -> None:
        self._state = None

    def of(self, prompts: Sequence[int]) -> dict[int, State]:
        """With a cache: the state of every earlier row, by layer; they may be put into `fixed`."""
        return {layer: _of(known, list(prompts)) for layer, known in self.kept.items()}

    def unfix(self, prompts: Sequence[int], columns: int) -> None:
        """With a cache that grows from now on."""
        for layer, state in self.fixed.items():
            self.kept[layer] = (list(prompts), state[:, :columns].clone())
        self.fixed = {}

    def before(self, forward: Forward, device: torch.device) -> State:
        if self._state is None:
            self._state = forward.labels.in_region
        self._state = self._state.to(device)
        return self._state

    def after(self, layer: int, rolled: Float[Tensor, "b q r"], forward: Forward) -> State:
        """The state of all rows; with a cache, earlier rows' do not change any more."""
        assert self._state is not None
        new = (rolled + forward.visible.of_rows(self._state, 1)) / 2
        if forward.visible.at is not None:
            self._state = self.fixed[layer].index_copy_(1, forward.visible.at, new)
        elif forward.cached:
            self._state = self._grown(layer, new, forward)
        else:
            self._state = self._renewed(layer, new, forward)
        return self._state

    def _grown(self, layer: int, new: Float[Tensor, "b q r"], forward: Forward) -> State:
        who = list(forward.prompts)
        if (known := self.kept.get(layer)) is not None:
            new = torch.cat([_of(known, who), new], dim=1)
        final = new
        if forward.settled is not None:
            final = new[:, : forward.visible.first_row + forward.settled]
        self.kept[layer] = (who, final)
        return new

    def _renewed(self, layer: int, new: Float[Tensor, "b q r"], forward: Forward) -> State:
        """With an approximate cache, of rows left out as it was."""
        who = list(forward.prompts)
        known = self.kept.get(layer) if forward.partial else None
        if known is not None:
            before = _of(known, who)
            rows, whole = forward.visible.rows, before.clone()
            counts = (forward.labels.group >= 0)[..., None]
            whole[:, rows] = torch.where(counts, new, before[:, rows])
            new = whole
        self.kept[layer] = (who, new)
        return new


def _of(known: tuple[list[int], Tensor], who: list[int]) -> State:
    """The states of these prompts; others may have ended."""
    before, state = known
    return state if before == who else state[[before.index(p) for p in who]]
