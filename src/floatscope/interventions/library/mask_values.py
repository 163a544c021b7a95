"""MaskValues: replace a key's value without changing the attention, to test whether a sink's value matters.

A head may attend to a key because attention must sum to 1, or because of the key's value. Hiding the key
changes the attention and the output; MaskValues changes only the values that heads read.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ...errors import UsageError
from ...models import Model, attention_hook
from ..token_masking import ActiveTokens, TokenMasking

KINDS = ("zero", "mean")


@dataclass(frozen=True)
class MaskValues(TokenMasking):
    """Set the values of chosen keys to zero or to a row's mean value; attention weights do not change.

    Tokens are chosen as in MaskTokens, with the same controls.

    Args:
        to: "zero" (default), or "mean" for the mean of the values of all keys that the row sees; in a
            causal model each row has its own mean.
    """

    to: str = "zero"

    def check(self, model: Model) -> None:
        super().check(model)
        if self.to not in KINDS:
            raise UsageError(f"MaskValues: to = {self.to!r}", f"Use one of {', '.join(KINDS)}.")

    def probe(self) -> "MaskValues":
        unrestricted = replace(self, regions="prompt", classes=(), positions=None)
        return replace(unrestricted, to="zero", steps=None, control=None)

    def acting(self, model: Model) -> "_Active":
        return _Active(self, model, self.selection(model))


class _Active(ActiveTokens):
    masking: MaskValues

    def changed(
        self, call: attention_hook.Call, picked: Bool[Tensor, "b #h k"]
    ) -> attention_hook.Call:
        keys = self.noted(call, picked)
        if not bool(keys.any()):
            return call
        instead = _mean(call) if self.masking.to == "mean" else None
        return replace(call, fills=(*call.fills, attention_hook.Fill(keys, instead)))


def _mean(call: attention_hook.Call) -> Float[Tensor, "b h _ d"]:
    """Return the mean value of the keys that each row sees; one row if all rows see the same keys."""
    value = attention_hook.repeat_kv(call.value, call.query.shape[1])
    if call.mask is None and not call.causal:
        return value.mean(2, keepdim=True)
    # bfloat16 cannot represent every count up to 300
    wide = torch.promote_types(value.dtype, torch.float32)
    visible = attention_hook.explicit_mask(call).to(wide)
    return torch.matmul(visible / visible.sum(-1, keepdim=True), value.to(wide)).to(value.dtype)
