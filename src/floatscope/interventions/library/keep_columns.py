"""KeepColumns: restrict masked rows to few keys per head, to measure the effect of sparse attention.

Sparse attention and cache eviction for diffusion models keep the strongest keys of an earlier step
(SparseD, 2509.24014; Sparse-dLLM, 2508.02558). This intervention hides all other keys with a mask, so
that the choice of keys is the only change.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import pad

from ...decode.state import State
from ...errors import UsageError
from ...models import Model, attention_hook
from .. import columns, controls
from ..masking import ActiveMask, Masking

BLOCK_START, EVERY = "block start", "every"
CONTROLS = ("random", "mass")


@dataclass(frozen=True)
class KeepColumns(Masking):
    """Let masked rows attend only to the strongest keys of an earlier step, by head and layer.

    Keys are ranked by the attention that they receive from the rows still masked, without this restriction
    but with its effect on the layers below. All other keys are hidden from the rows that are masked at the
    present step; prompt and revealed rows see everything. Keys that are added after the choice are hidden.
    `Decoding.info["hidden_share"]` is the share of the masked rows' attention that was hidden.

    With control="random", the same number of keys is drawn at random from all keys. With control="mass",
    keys are drawn at random until they receive as much attention as the strongest keys do. SparseD keeps
    30 or 50 % of the keys, chosen after a fifth of the steps; Sparse-dLLM keeps 50 to 70 %.

    Only for diffusion models without an approximate cache.

    Args:
        budget: share of the keys to keep, above 0 to 1, default 0.3. One share for each layer, or for each
            layer and head, is given as nested sequences.
        chosen_at: "block start" (default) chooses at the first step of every block; "every" chooses at every
            step; a number n chooses at step n only, with full attention before step n.
        refresh: number of steps after which keys are chosen again within a block; None (default) keeps the
            choice until the next block.
    """

    budget: float | Sequence[float] | Sequence[Sequence[float]] = 0.3
    chosen_at: str | int = BLOCK_START
    refresh: int | None = None

    def check(self, model: Model) -> None:
        super().check(model)
        if not model.is_diffusion:
            raise UsageError(
                f"KeepColumns restricts masked rows, and {model.name} has none",
                "Use a diffusion model; MaskColumns hides keys from a causal model.",
            )
        if self.control not in (None, *CONTROLS):
            raise UsageError(
                f"KeepColumns: control = {self.control!r}", "Use None, 'random' or 'mass'."
            )
        if self.chosen_at not in (BLOCK_START, EVERY) and not isinstance(self.chosen_at, int):
            raise UsageError(
                f"KeepColumns: chosen_at = {self.chosen_at!r}",
                "Use 'block start', 'every', or the number of a step.",
            )
        if self.refresh is not None and self.refresh < 1:
            raise UsageError(
                f"KeepColumns: refresh = {self.refresh}", "Use 1 or more steps, or None."
            )
        self.shares(model)

    def shares(self, model: Model) -> Float[Tensor, "layers heads"]:
        """Return the share of keys to keep in every layer and head, shape (layer, head).

        Args:
            model: the model to which the intervention is applied.
        """
        try:
            shares = torch.tensor(self.budget, dtype=torch.float64)
        except (TypeError, ValueError) as error:  # a string, or rows of unequal length
            raise UsageError("KeepColumns: budget is not a table of shares", _BUDGET) from error
        expected = (model.n_layers, model.n_heads)
        if shares.ndim > 2 or tuple(shares.shape) not in ((), expected[:1], expected):
            problem = (
                f"KeepColumns: budget of shape {tuple(shares.shape)} for {expected} layers × heads"
            )
            raise UsageError(problem, _BUDGET)
        if not bool(((shares > 0) & (shares <= 1)).all()):
            raise UsageError(f"KeepColumns: budget = {self.budget}", _BUDGET)
        if shares.ndim == 1:
            shares = shares[:, None]
        return shares.expand(*expected)

    def probe(self) -> "KeepColumns":
        return replace(self, budget=0.01, chosen_at=EVERY, control=None, steps=None)

    def acting(self, model: Model) -> "_Active":
        return _Active(self, model)


_BUDGET = "Use a share above 0 and up to 1, one for each layer, or one for each layer and head."


class _Active(ActiveMask):
    cacheable = False  # an approximate cache leaves masked rows out

    def __init__(self, spec: KeepColumns, model: Model) -> None:
        super().__init__(spec, model, preview_first=False)
        self.spec, self.shares = spec, spec.shares(model).to(model.device)
        self.kept: dict[int, Bool[Tensor, "all_b h k"]] = {}  # by layer, of all prompts
        self.chosen: list[
            tuple[int, int] | None
        ] = []  # by prompt: the block's end and the step of the choice
        self.choosing: list[bool] = []  # of the prompts that are still being decoded, at this step

    def begin(self, state: State) -> None:
        super().begin(state)
        if state.blind:
            return
        if state.step == 0:
            self.kept, self.chosen = {}, [None] * len(state.prompts)
        ends = state.ends or [state.window[1]] * len(state.active)
        self.choosing = []
        for prompt, end in zip(state.active, ends, strict=True):
            due = self._due(self.chosen[prompt], state.step, end)
            self.choosing.append(due)
            if due:
                self.chosen[prompt] = end, state.step

    def _due(self, before: tuple[int, int] | None, step: int, end: int) -> bool:
        """Tell whether to choose keys at `step`; `before` is the last choice's block end and step."""
        spec = self.spec
        if before is None:
            return not isinstance(spec.chosen_at, int) or step >= spec.chosen_at
        if spec.chosen_at == EVERY or (
            spec.refresh is not None and step - before[1] >= spec.refresh
        ):
            return True
        return spec.chosen_at == BLOCK_START and end != before[0]

    def masked(self, call: attention_hook.Call, proceed: attention_hook.Proceed) -> Tensor:
        state = self.state
        if call.layer not in self.layers:
            return proceed(call)
        visible = self.visible(call)
        if state is None:  # a single forward outside a decoding: all rows, chosen in this forward
            sums = columns.attended(call, visible)
            return proceed(columns.hide(call, self._hidden(self._pick(call.layer, sums), sums)))
        rows = visible.of_rows(pad(state.masked, (0, call.key.shape[2] - state.masked.shape[1])), 1)
        prompts, sums = list(state.active), columns.attended(call, visible, rows)
        if any(self.choosing) and not state.blind:
            self._remember(call.layer, prompts, self._pick(call.layer, sums))
        if not self.acts(call.layer) or call.layer not in self.kept:
            return proceed(call)
        kept = self.kept[call.layer][prompts]
        kept = pad(kept, (0, sums.total.shape[-1] - kept.shape[-1]))
        undecided = torch.tensor(
            [self.chosen[prompt] is None for prompt in prompts], device=kept.device
        )
        hidden = self._hidden(kept, sums) & ~undecided[:, None, None]
        return proceed(self.hide(call, hidden, rows, sums))

    def _pick(self, layer: int, sums: columns.ColumnSums) -> Bool[Tensor, "b h k"]:
        present = (sums.viewers > 0).expand_as(sums.total)
        sizes = torch.ceil(present.sum(-1) * self.shares[layer] - 1e-9).clamp(min=1)  # (b, h)
        rank = _ranks(sums.total.masked_fill(~present, -torch.inf))
        strongest = (rank < sizes[..., None]) & present
        if self.spec.control is None:
            return strongest
        noise = self._noise(present[:, :1])
        if self.spec.control == "mass":
            return controls.pick_equal_mass(strongest, present, sums.total, noise)
        drawn = _ranks(noise[:, None].expand_as(sums.total).masked_fill(~present, -torch.inf))
        return (drawn < sizes[..., None]) & present

    def _hidden(self, kept: Tensor, sums: columns.ColumnSums) -> Bool[Tensor, "b h k"]:
        hidden = ~kept & (sums.viewers > 0)
        return hidden if self.heads is None else hidden & self.heads

    def _remember(self, layer: int, prompts: list[int], picked: Bool[Tensor, "b h k"]) -> None:
        assert self.state is not None
        every = self.kept.get(layer)
        if every is None:
            every = picked.new_zeros((len(self.state.prompts), *picked.shape[1:]))
        every = pad(every, (0, picked.shape[-1] - every.shape[-1])).clone()
        for place, (prompt, due) in enumerate(zip(prompts, self.choosing, strict=True)):
            if due:
                every[prompt] = picked[place]
        self.kept[layer] = every


def _ranks(values: Float[Tensor, "b h k"]) -> Tensor:
    """Return each value's rank along the keys, from 0 for the largest; equal values rank by position."""
    order = values.argsort(dim=-1, descending=True, stable=True)
    places = torch.arange(values.shape[-1], device=values.device).expand_as(order)
    return torch.empty_like(order).scatter_(-1, order, places)
