"""SinkToken: add a first token that every row sees and that sees only itself (2601.19657).

In the paper the model is trained with this token. The intervention adds the token to a model trained
without it, to test whether the token attracts attention and which anchors then receive less attention.
"""

from collections.abc import Hashable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ...decode.state import State
from ...errors import UsageError
from ...models import Direction, Model, attention_hook
from ...sequences.prompt import Encoded
from ..base import ActiveIntervention, Intervention

REGION = "sink"


@dataclass(frozen=True)
class SinkToken(Intervention):
    """Add a token before the prompt, which every row sees and which sees only itself.

    The token is part of the sequence: a trace shows it as the first position, with the region "sink".
    Positions are relative in all supported families, so the added token does not affect the relative
    positions in the prompt.

    Args:
        token: token id; None (default) is the model's beginning-of-text token, or else its end-of-text
            token.
    """

    token: int | None = None

    @property
    def adds(self) -> int:
        return 1

    def check(self, model: Model) -> None:
        _token(self.token, model)

    def acting(self, model: Model) -> "_Active":
        return _Active(model, _token(self.token, model))


def _token(token: int | None, model: Model) -> int:
    if any(reach is not None for reach in model.reaches):
        raise UsageError(
            f"SinkToken: {model.name} has layers with a window, in which not every row can see the token",
            "Use a model without local layers.",
        )
    if token is None:
        bos = None if model.tokenizer is None else model.tokenizer.bos_token_id
        token = bos if bos is not None else model.end_ids[0] if model.end_ids else None
    if token is None or not 0 <= token < model.vocab_size:
        raise UsageError(
            f"SinkToken: token = {token} is not in the vocabulary of {model.name}",
            "Give a token id, such as that of the beginning-of-text token.",
        )
    return token


class _Active(ActiveIntervention):
    def __init__(self, model: Model, token: int) -> None:
        super().__init__(model)
        self.token = token

    def prepare(self, prompt: Encoded) -> Encoded:
        return Encoded((self.token, *prompt.ids), (REGION, *prompt.regions), prompt.gold)

    def same_forward(self, state: State) -> Hashable:
        return ()

    def attention(self, call: attention_hook.Call, proceed: attention_hook.Proceed) -> Tensor:
        state = self.state
        # In a causal model the first token sees only itself anyway.
        if state is None or self.model.direction is Direction.CAUSAL:
            return proceed(call)
        keys = call.key.shape[2]
        key_index = torch.arange(keys, device=call.key.device)
        # (b, k): the first token after the padding
        is_sink = key_index == state.visible.padding[:, None]
        rows = state.visible.of_rows(is_sink, 1)
        only_itself = rows[:, None, :, None] & ~is_sink[:, None, None, :]
        return proceed(
            replace(call, mask=attention_hook.explicit_mask(call) & ~only_itself, causal=False)
        )
