"""WeakenColumns: remove a given amount of attention from anchors, to measure a dose-response curve.

MaskColumns removes all the attention of a column, which may be 40 % of the attention in one model and
4 % in another model. WeakenColumns removes the same dose in both models, and removes exactly the dose
unless the anchors have less attention than that.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import pad

from ...decode.state import State
from ...errors import UsageError
from ...models import Model, attention_hook
from .. import columns, controls
from ..columns import ColumnSums
from ..masking import ActiveMask, Masking

_LOWEST = -60.0  # lowest bias: less than 1e-26 of a column's weight remains
_HALVINGS = 26  # halvings of that range: precision 1e-6 of the bias and 2.5e-7 of the mass

Rows = Float[Tensor, "b h q"]
Heads = Float[Tensor, "b h"]


@dataclass(frozen=True)
class WeakenColumns(Masking):
    """Reduce the attention on the prompt's strongest keys by `dose`, a share of each head's attention.

    The strongest keys are called anchors. A negative bias, the same for all rows of a head, is added to
    the scores of the anchors before the softmax. The bias is found by bisection, so that the mean
    attention on the anchors over the rows falls by `dose` from its value in that layer without the bias.
    The other keys gain the removed attention in proportion to their attention. If the anchors have less
    attention than the dose, they lose all of it. A row that sees no other key keeps its attention.
    `Decoding.info["hidden_share"]` is the share of attention that was removed.

    The anchors are, by layer and head, the smallest set of the prompt's strongest keys that have `share`
    of the head's attention (all keys if all have less than `share`). The anchors are chosen in the first
    forward, with the effect of the bias on the layers below, and stay the same in later forwards. With
    control="random", other keys of the prompt are drawn until they have as much attention as the anchors
    (all other keys if these have less), and lose the attention that the anchors would lose. Other
    controls are refused. Rulli et al. (2510.15731) hide the strongest keys completely: `MaskColumns`.

    Args:
        dose: share of each head's attention to remove, 0 to `share`, default 0.1.
        share: share of each head's attention that all anchors have together, above 0 to 1, default 0.3.
    """

    dose: float = 0.1
    share: float = 0.3

    def check(self, model: Model) -> None:
        super().check(model)
        if not 0 <= self.dose <= self.share <= 1 or not self.share:
            raise UsageError(
                f"WeakenColumns: dose = {self.dose}, share = {self.share}",
                "Use shares of attention, from 0 to 1, with dose ≤ share.",
            )
        if self.control not in (None, "random"):
            raise UsageError(f"WeakenColumns: control = {self.control!r}", "Use None or 'random'.")

    def probe(self) -> "WeakenColumns":
        return replace(self, dose=self.share, steps=None)

    def acting(self, model: Model) -> "_Active":
        return _Active(self, model)


@dataclass(frozen=True, eq=False)
class _Choice:
    """The chosen columns of one layer for every prompt, and the attention to remove in each head."""

    picked: Bool[Tensor, "b h k"]
    reduction: Heads

    def select(self, prompts: list[int], n_key: int) -> "_Choice":
        """Return the choice for some prompts, extended to `n_key` keys; the newer keys are not picked."""
        new = (0, n_key - self.picked.shape[-1])
        return _Choice(pad(self.picked[prompts], new), self.reduction[prompts])


class _Active(ActiveMask):
    def __init__(self, spec: WeakenColumns, model: Model) -> None:
        super().__init__(spec, model, preview_first=False)
        self.spec = spec
        self.choices: dict[int, _Choice] = {}  # by layer, of all prompts

    def begin(self, state: State) -> None:
        super().begin(state)
        if state.step == 0 and not state.blind:
            self.choices = {}

    def masked(self, call: attention_hook.Call, proceed: attention_hook.Proceed) -> Tensor:
        if not self.spec.dose or call.layer not in self.layers:
            return proceed(call)
        state, visible = self.state, self.visible(call)
        chosen = self.choices.get(call.layer) if state is not None else None
        if chosen is None:
            chosen = self._choose(columns.attended(call, visible))
        if state is not None:
            self.choices[call.layer] = chosen
            chosen = chosen.select(list(state.active), call.key.shape[2])
        if not self.acts(call.layer):
            return proceed(call)
        real = visible.row_is_real
        bias, removed = solve(log_odds(call, chosen.picked), real, chosen.reduction)
        if state is not None and not state.blind:
            rows = real.sum(-1, keepdim=True).expand_as(removed)
            parts = (removed * rows, rows, chosen.picked.sum(-1))
            self.hidden.add(
                state.step, call.layer, state.active, *(x[:, self.head_ids].float() for x in parts)
            )
        added = (bias[..., None] * chosen.picked)[:, :, None].to(call.query.dtype)  # (b, h, 1, k)
        return proceed(replace(call, bias=added if call.bias is None else call.bias + added))

    def _choose(self, sums: ColumnSums) -> _Choice:
        pool = (sums.viewers > 0) & (self.prompt_keys(self.state) if self.state else True)
        weight = (sums.total / sums.total.sum(-1, keepdim=True)).double() * pool
        anchors = columns.heaviest(weight, self.spec.share) & pool
        if self.heads is not None:
            anchors = anchors & self.heads
        mass, picked = (weight * anchors).sum(-1), anchors
        if self.spec.control is not None:
            free = (pool & ~anchors) & anchors.any(-1, keepdim=True)
            picked = controls.pick_equal_mass(anchors, free, weight, self._noise(pool))
        return _Choice(picked, mass.clamp(max=self.spec.dose))


def log_odds(call: attention_hook.Call, picked: Bool[Tensor, "b h k"]) -> Rows:
    """Return, for every row, ln of the attention on the picked keys over the attention on all other keys.

    The two sums are computed separately, because 1 − share loses precision for a share close to 1.
    """
    plain = attention_hook.ungroup_heads(call)
    query, key = plain.query.float(), plain.key.float()
    value = torch.zeros_like(key)
    value[..., 0], value[..., 1] = picked, ~picked
    sums = attention_hook.compute_attention(
        replace(plain, query=query, key=key, value=value)
    )  # (b, q, h, d)
    inside, outside = (sums[..., i].transpose(1, 2).double() for i in (0, 1))
    return inside.log() - outside.log()


def solve(odds: Rows, real: Bool[Tensor, "b q"], reduction: Heads) -> tuple[Heads, Heads]:
    """Return, per head, the bias that lowers the rows' mean share by `reduction`, and the share removed."""
    weight = (real / real.sum(-1, keepdim=True)).double()[:, None]  # (b, 1, q)
    odds = odds.masked_fill(~real[:, None], -torch.inf)

    def mass(bias: Heads) -> Heads:
        return (torch.sigmoid(odds + bias[..., None]) * weight).sum(-1)

    before = mass(torch.zeros_like(odds[..., 0]))
    target = before - reduction.double()
    low, high = torch.full_like(before, _LOWEST), torch.zeros_like(before)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        enough = mass(middle) <= target
        low, high = torch.where(enough, middle, low), torch.where(enough, high, middle)
    bias = torch.where(reduction > 0, high, 0.0)
    return bias, before - mass(bias)
