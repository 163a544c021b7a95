"""Observe every layer of a model's runs, to record references and activations.

Observers do not change the model. Prompts run one at a time, so that the record of a prompt never depends
on other prompts.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from jaxtyping import Float
from torch import Tensor

from ..decode.loop import AnySampler, decode
from ..decode.state import State, Watcher, lay_out, notify_edits, prepared
from ..errors import UsageError
from ..models import Model, attention_hook
from ..sequences.decoding import Decoding
from ..sequences.prompt import Encoded, PromptLike, encode


class Observer(Watcher):
    """A handler that receives every layer's call and output, except in the second forward of guidance."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.state: State | None = None

    @contextmanager
    def forward(self, state: State) -> Iterator[None]:
        self.state = state
        try:
            yield
        finally:
            self.state = None

    def saw(
        self, state: State, call: attention_hook.Call, output: Float[Tensor, "1 q h d"]
    ) -> None:
        """Receive one layer's call and output of one forward."""

    def run(self, prompt: Encoded, sampler: AnySampler | None) -> Decoding | None:
        """Decode a prompt and return its Decoding; without a sampler, run one forward and return None."""
        with (
            attention_hook.lock_network(self.model.net),
            attention_hook.attach(self.model.net, self._observe),
        ):
            if sampler is not None:
                return decode(self.model, [prompt], sampler, self)[0]
            canvas = lay_out(self.model, [prompt])
            size = canvas.shape[1]
            state = State.build(
                *(self.model, [prompt], canvas, (size, size)),
                prompt_end=size,
                predicting=(size - 1, size),
            )
            last = torch.tensor([size - 1], device=canvas.device)
            with notify_edits(self.model, state), self.forward(state):
                self.model.forward(canvas, last, state.visible)
        return None

    def _observe(self, call: attention_hook.Call, proceed: attention_hook.Proceed) -> Tensor:
        output = proceed(call)
        if self.state is not None:
            self.saw(self.state, call, output)
        return output


def encoded(model: Model, prompts: Sequence[PromptLike]) -> list[Encoded]:
    """Tokenise prompts and apply the changes of the interventions in force; refuse an empty list."""
    if isinstance(prompts, str) or not len(prompts):
        raise UsageError(
            f"cannot make a reference of {prompts!r:.60}", "Give a list of at least one prompt."
        )
    return [prepared(model, encode(model, prompt)) for prompt in prompts]
