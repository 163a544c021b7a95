"""MaskColumns: the anchors themselves are hidden. Does the model need them?"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ...decode.state import State
from ...errors import UsageError
from ...models import Model, seam
from ...stats.anchors import Rule
from .. import columns
from ..masking import ActingMask, DoesNotFit, Masking


@dataclass(frozen=True)
class MaskColumns(Masking):
    """Hide the top-k anchors of the step before, per head and layer (Rulli et al., 2510.15731).

    `rule` narrows the choice to keys that pass it (by default any key may be among the top k).
    `per_head=False` picks on the mean over heads; the rule's own `per_head` is not used. Anchors are
    those of the attention as the layer would compute it without this mask: a hidden anchor remains an
    anchor, and is not freed every other step. The first forward has no step before it and goes by its
    own attention (`first=False` leaves it alone); so does a forward outside decoding. With a KV cache
    the sums run over all rows so far, and the newest key is never hidden.
    """

    rule: Rule | None = None
    k: int = 1
    per_head: bool = True
    first: bool = True

    def check(self, model: Model) -> None:
        super().check(model)
        if self.k < 0:
            raise UsageError(f"MaskColumns: k = {self.k}", "Hide 0 or more columns.")

    def probe(self) -> "MaskColumns":
        return replace(self, rule=None, k=1, steps=None, first=True)

    def acting(self, model: Model) -> "_Acting":
        return _Acting(self, model)


class _Acting(ActingMask):
    def __init__(self, spec: MaskColumns, model: Model) -> None:
        super().__init__(spec, model)
        self.spec = spec
        # By layer: column sums and viewers of the step before (with a cache, of all rows so far).
        self.sums: dict[int, tuple[Tensor, Tensor]] = {}
        self.prompts: list[int] = []  # the prompts those sums belong to
        self.picked: dict[int, Tensor] = {}  # by layer, in this step

    def begin(self, state: State) -> None:
        if state.step == 0 and not state.blind:
            self.sums, self.prompts, self.picked = {}, [], {}

    def attention(self, call: seam.Call, proceed: seam.Proceed) -> Tensor:
        if self.spec.k == 0 or call.layer not in self.layers:
            return proceed(call)
        state = self.state
        size = int(self.visible(call).key_is_real.sum(-1).min())
        if self.spec.k >= size:
            raise DoesNotFit(
                f"MaskColumns: k = {self.spec.k} columns of rows that have {size}",
                f"Hide fewer than {size}, or use longer prompts.",
            )
        if state is not None and state.blind:  # the same columns as in the forward it guides
            picked = self.picked.get(call.layer)
            return proceed(call if picked is None else self.hide(call, picked))
        before = self._before(call)
        now = columns.received(call, self.visible(call))
        if state is not None:
            self._remember(call.layer, now)
        if before is None and self.spec.first:
            before = now
        self.picked.pop(call.layer, None)
        if before is None or not self.acts(call.layer):
            return proceed(call)
        self.picked[call.layer] = picked = self._pick(*before, call.layer)
        return proceed(self.hide(call, picked))

    def _pick(
        self, total: Float[Tensor, "b h k"], count: Float[Tensor, "b 1 k"], layer: int
    ) -> Bool[Tensor, "b #h k"]:
        means = (total / count).masked_fill(count == 0, torch.nan)
        if not self.spec.per_head:
            means = means.mean(1, keepdim=True)
        picked = columns.top(means, self.spec.rule, self.spec.k)
        return self.instead(picked, ~means.isnan(), layer)

    def _before(self, call: seam.Call) -> tuple[Tensor, Tensor] | None:
        """Sums of the step before for the prompts still being decoded, over this step's keys."""
        state = self.state
        if state is None or call.layer not in self.sums:
            return None
        total, count = self.sums[call.layer]
        if list(state.active) != self.prompts and not state.cached:
            at = [self.prompts.index(b) for b in state.active]
            total, count = total[at], count[at]
        return columns.widened((total, count), call.key.shape[2])

    def _remember(self, layer: int, now: tuple[Tensor, Tensor]) -> None:
        state = self.state
        assert state is not None
        if state.cached and layer in self.sums:
            now = columns.added(self.sums[layer], now)
        self.sums[layer] = now
        if layer == max(self.layers):  # the last of this forward: all layers now hold these prompts
            self.prompts = list(state.active)
