"""MaskColumns: hide the anchors from attention, to test whether the model needs them."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool
from torch import Tensor

from ...decode.state import State
from ...errors import UsageError
from ...models import Model, attention_hook
from ...stats.anchors import Rule
from .. import columns
from ..columns import RANKS, ColumnSums
from ..masking import ActiveMask, DoesNotFit, Masking

KEYS = ("prompt", "all")


@dataclass(frozen=True)
class MaskColumns(Masking):
    """Hide the k strongest anchors of the prompt, by head and layer.

    With `hold`, the anchors are those of the first forward (prompt and masks of a diffusion model, the
    prompt of a causal one). The anchors are found by an extra forward without the mask, and stay hidden
    from all rows of all forwards, including the rows of a causal model's prompt, with or without a KV
    cache. Controls are chosen in the extra forward. Without `hold`, every step hides the anchors of the
    step before, found in the attention without this mask; the first forward hides the anchors found in its
    own attention. With a KV cache and without `hold`, the column sums are over all rows so far, the newest
    key is never hidden, and cached rows keep their keys and values.

    Rulli et al. (2510.15731) choose at every step, from all keys, by received attention, with k = 1, 5
    and 10: `MaskColumns(k, by="received", viewers=0, keys="all", hold=False)`.

    Args:
        rule: an anchor rule of `fs.anchors` that a key must also pass, on received attention; None
            (default) is no rule. The `per_head` of the rule is not used.
        k: number of keys to hide, 0 or more, default 1.
        by: how keys are ranked: "lift" (default) is received attention divided by the attention that the
            key would receive if every row spread its attention evenly; "mass" is the sum of received
            attention; "received" is its mean over the rows that see the key. In a bidirectional model all
            three give the same order.
        viewers: rows that must see a key for it to be chosen: a share below 1 or a number of rows,
            default 0.25. In a causal model few rows see the last keys, so the means of these keys can be
            large by chance.
        keys: choose from the "prompt" (default) or from "all" keys, answer included.
        per_head: rank in each head (default); False ranks by the mean over heads.
        hold: keep the anchors of the first forward (default); False chooses at every step.
        first: whether to hide keys in the first forward too, True by default.
    """

    rule: Rule | None = None
    k: int = 1
    by: str = "lift"
    viewers: float = 0.25
    keys: str = "prompt"
    per_head: bool = True
    hold: bool = True
    first: bool = True

    def check(self, model: Model) -> None:
        super().check(model)
        if self.k < 0:
            raise UsageError(f"MaskColumns: k = {self.k}", "Hide 0 or more columns.")
        if self.by not in RANKS:
            raise UsageError(f"MaskColumns: by = {self.by!r}", f"Use one of {', '.join(RANKS)}.")
        if self.keys not in KEYS:
            raise UsageError(f"MaskColumns: keys = {self.keys!r}", "Use 'prompt' or 'all'.")
        if self.viewers < 0:
            raise UsageError(
                f"MaskColumns: viewers = {self.viewers}",
                "Use a share of the rows (0 to 1), or a number of rows.",
            )

    def probe(self) -> "MaskColumns":
        return replace(self, rule=None, k=1, viewers=0, steps=None, first=True)

    def acting(self, model: Model) -> "_Active":
        return _Active(self, model)


class _Active(ActiveMask):
    cacheable = False  # sums over rows are accumulated over forwards, each row once

    def __init__(self, spec: MaskColumns, model: Model) -> None:
        super().__init__(spec, model, preview_first=spec.hold and spec.k > 0)
        self.spec = spec
        self.fixed: dict[
            int, Tensor
        ] = {}  # by layer: choice for all prompts, over the first forward's keys
        # Without hold, by layer: sums of the step before (with a cache, of all rows so far).
        self.sums: dict[int, ColumnSums] = {}
        self.prompts: list[int] = []  # the prompts of these sums
        self.picked: dict[int, Tensor] = {}  # by layer: choice in this step

    def finish_preview(self) -> None:
        self.fixed = {layer: self._pick(sums) for layer, sums in self.unmasked.items()}

    def begin(self, state: State) -> None:
        super().begin(state)
        if state.step == 0 and not state.blind:
            self.sums, self.prompts, self.picked = {}, [], {}

    def masked(self, call: attention_hook.Call, proceed: attention_hook.Proceed) -> Tensor:
        if self.spec.k == 0 or call.layer not in self.layers:
            return proceed(call)
        if self.spec.hold and self.state is not None:
            picked, sums = self._fixed_columns(call), None
        else:
            picked, sums = self._of_step(call)
        return proceed(call if picked is None else self.hide(call, picked, sums=sums))

    def _fixed_columns(self, call: attention_hook.Call) -> Tensor | None:
        state = self.state
        assert state is not None
        if not self.acts(call.layer) or (state.step == 0 and not self.spec.first):
            return None
        picked = self.fixed[call.layer][list(state.active)]
        return torch.nn.functional.pad(picked, (0, call.key.shape[2] - picked.shape[-1]))

    def _of_step(self, call: attention_hook.Call) -> tuple[Tensor | None, ColumnSums | None]:
        """Return the columns to hide (None: hide none), and the column sums of this step."""
        state = self.state
        if state is not None and state.blind:  # same columns as in the forward with the prompt
            return self.picked.get(call.layer), None
        before = self._before(call)
        sums = columns.attended(call, self.visible(call))
        if state is not None:
            self._remember(call.layer, sums)
        if before is None and self.spec.first:
            before = sums
        self.picked.pop(call.layer, None)
        if before is None or not self.acts(call.layer):
            return None, sums
        self.picked[call.layer] = picked = self._pick(before)
        return picked, sums

    def _pick(self, sums: ColumnSums) -> Bool[Tensor, "b _ k"]:
        spec, state = self.spec, self.state
        pool = sums.seen_by(spec.viewers)
        if spec.keys == "prompt" and state is not None:
            pool = pool & self.prompt_keys(state)
        size, room = int((sums.viewers > 0).sum(-1).min()), int(pool.sum(-1).min())
        if spec.k > room or spec.k >= size:
            raise DoesNotFit(
                f"MaskColumns: k = {spec.k}, but rows have {size} columns, {room} of which may be chosen "
                f"(keys={spec.keys!r}, viewers={spec.viewers:g})",
                "Hide fewer, or use longer prompts.",
            )
        values, means = sums.by(spec.by), sums.by("received")
        if not spec.per_head:
            values, means = (x.mean(1, keepdim=True) for x in (values, means))
        allowed = pool if spec.rule is None else pool & spec.rule.passes(means)
        return self.instead(columns.top(values, allowed, spec.k), pool, sums.total)

    def _before(self, call: attention_hook.Call) -> ColumnSums | None:
        """Return the previous step's sums for the prompts still being decoded; None if there are none."""
        state = self.state
        if state is None or call.layer not in self.sums:
            return None
        sums = self.sums[call.layer]
        if list(state.active) != self.prompts and not state.cached:
            sums = sums.select([self.prompts.index(b) for b in state.active])
        return sums.widened(call.key.shape[2])

    def _remember(self, layer: int, sums: ColumnSums) -> None:
        state = self.state
        assert state is not None
        before = self.sums.get(layer) if state.cached else None
        self.sums[layer] = sums if before is None else before.plus(sums)
        # last layer of this forward: all layers now have sums of these prompts
        if layer == max(self.layers):
            self.prompts = list(state.active)
