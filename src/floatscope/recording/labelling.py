"""Label the positions of a batch for attention sums: regions, query groups, predicting rows.

The user names the regions of the prompt. The regions of the answer are the masked and the revealed positions.
Queries form the three groups masked, revealed and prompt, or one group per region, or a single group.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.nn.functional import pad

from ..attention import Forward, Labels
from ..decode.state import State
from ..models import Model
from ..models.placing import constant
from ..sequences.prompt import Encoded
from .options import BY_GROUP

# Regions 0 and 1; the regions of the prompt follow.
MASKED, REVEALED = "masked", "revealed"


@dataclass(eq=False)
class Labelling:
    """Region and group labels for the positions of a batch of prompts."""

    model: Model
    prompts: Sequence[Encoded]
    keep: Collection[str]
    by_region: bool
    _causal_regions: tuple[tuple[int, ...], Tensor] | None = None  # cache for causal decodings

    @cached_property
    def names(self) -> list[tuple[str, ...]]:
        """Names of each prompt's regions."""
        return [(MASKED, REVEALED, *p.names) for p in self.prompts]

    @cached_property
    def n_regions(self) -> int:
        """Largest number of regions of any prompt."""
        return max(map(len, self.names))

    def group_names(self, b: int) -> tuple[str, ...]:
        """Return the names of a prompt's query groups."""
        if self.by_region:
            return self.names[b]
        return (MASKED, REVEALED, "prompt") if self._grouped else ("all",)

    @property
    def _grouped(self) -> bool:
        return not BY_GROUP.isdisjoint(self.keep)

    def forward(self, state: State, step_kept: bool) -> Forward:
        """Return the visibility and labels of one forward; `step_kept`: its step is part of the trace."""
        region = self._regions(state)
        if state.ends is not None:
            region = region.masked_fill(~state.visible.key_is_real, -1)
        of_query = region[:, state.visible.rows]
        if state.fresh is not None:
            of_query = of_query.masked_fill(~state.fresh[:, state.visible.rows], -1)
        if self.by_region:
            group, n_groups = of_query, self.n_regions
        elif self._grouped:
            group, n_groups = of_query.clamp(max=2), 3  # masked, revealed, prompt
        else:
            group, n_groups = of_query.clamp(max=0), 1
        places = state.visible.first, state.visible.row_columns
        return Forward(
            visible=state.visible,
            labels=Labels(group, n_groups, region, self.n_regions, *places),
            rows=state.predicting,
            cached=state.cached,
            prompts=state.active,
            settled=state.settled,
            step_kept=step_kept,
            partial=state.fresh is not None,
            predicted=self._predicted(state) if "lens" in self.keep else None,
        )

    def _regions(self, state: State) -> Int[Tensor, "b k"]:
        """Return the region of each column; −1 for columns without a region."""
        size, device = state.visible.keys, state.canvas.device
        filled = state.visible.n_filled  # number of filled columns in a fixed-size cache
        if filled is not None and self.model.mask_id is None:  # no token is masked
            key = (size, *state.active)
            if self._causal_regions is None or self._causal_regions[0] != key:
                prompt = self._prompt_regions(state)
                answer_width = (0, size - prompt.shape[1])  # every generated token is revealed
                self._causal_regions = key, pad(prompt, answer_width, value=1)
            is_filled = torch.arange(size, device=device) < filled
            return torch.where(is_filled, self._causal_regions[1], -1)
        answer = state.masked[:, state.prompt_end :].logical_not().long()  # 0 masked, 1 revealed
        region = torch.cat([self._prompt_regions(state), answer], dim=1)
        if filled is not None:
            region = pad(region, (0, size - region.shape[1]), value=-1)
        return region

    def _prompt_regions(self, state: State) -> Int[Tensor, "b p"]:
        prompt = self._of_prompts[constant(state.active, state.canvas.device)]
        missing = state.prompt_end - prompt.shape[1]  # more padding than the longest prompt has
        return pad(prompt, (missing, 0), value=-1) if missing > 0 else prompt

    def _predicted(self, state: State) -> tuple[int, Int[Tensor, " w"], Bool[Tensor, "b w"]]:
        """Return the first column that a lens predicts, the row for each column, and the masked columns.

        For a causal model with a cache, the lens predicts only the next position.
        """
        device = state.canvas.device
        start, stop = state.window
        if state.cached and self.model.mask_id is None:
            selected = torch.ones(len(state.canvas), 1, dtype=torch.bool, device=device)
        elif state.ends is not None or state.fresh is not None:  # existing or computed positions
            selected = state.masked[:, start:stop]
        else:
            start, stop = state.prompt_end, state.canvas.shape[1]
            selected = state.masked[:, start:]
        behind = self.model.shift + state.visible.first_row
        rows = torch.arange(start, stop, device=device) - behind
        return start, rows.clamp(min=0), selected

    @cached_property
    def _of_prompts(self) -> Int[Tensor, "b p"]:
        """Region of each prompt position; −1 in the left padding."""
        width = max(len(p.ids) for p in self.prompts)
        region = torch.full((len(self.prompts), width), -1)
        for b, prompt in enumerate(self.prompts):
            number = {name: i for i, name in enumerate(self.names[b]) if i >= 2}
            region[b, width - len(prompt.ids) :] = torch.tensor([number[r] for r in prompt.regions])
        return region.to(self.model.device)
