"""What decoding leaves behind: every canvas, what changed between them, and how sure the model was."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from jaxtyping import Bool, Float, Int, Int8
from torch import Tensor

from ..models import Model, Visibility
from ..prompt import Encoded

ABSENT = -1  # a position an autoregressive model has not reached yet


class Change(IntEnum):
    """What a step did to a position."""

    NONE = 0
    REVEAL = 1  # mask (or nothing yet) → token
    REMASK = 2  # token → mask
    EDIT = 3  # token → another token


def change_of(
    before: Int[np.ndarray, "*t s"], after: Int[np.ndarray, "*t s"], mask_id: int
) -> Int8[np.ndarray, "*t s"]:
    """How each position changed; no order of events is assumed."""
    hollow_before = (before == mask_id) | (before == ABSENT)
    hollow_after = (after == mask_id) | (after == ABSENT)
    kind = np.where(
        hollow_before, Change.REVEAL, np.where(hollow_after, Change.REMASK, Change.EDIT)
    )
    return np.where(before == after, Change.NONE, kind).astype(np.int8)


@dataclass(frozen=True, eq=False)
class State:
    """A batch just before a forward: what a watcher is shown.

    `rows` says which prompts of the batch are still being decoded; the tensors hold those alone.
    """

    step: int
    prompts: Sequence[Encoded]  # of the whole batch
    rows: Sequence[int]
    canvas: Int[Tensor, "b k"]  # all tokens so far, left-padded
    hollow: Bool[Tensor, "b k"]  # still masked
    visible: Visibility
    prompt_end: int  # column of the first generated position
    window: tuple[int, int]  # columns being decided: the blocks of all rows
    predicting: tuple[int, int]  # first and past-the-end query row that predicts the window
    cached: bool  # earlier rows were seen in earlier steps
    blind: bool = False  # guidance's second forward, which sees no prompt


class Watcher:
    """Sees every forward of a decoding and what came of it; this one looks at nothing."""

    def forward(self, state: State) -> AbstractContextManager[object]:
        """Wraps the forward of one step."""
        return nullcontext()

    def committed(
        self, state: State, revealed: Bool[Tensor, "b w"], token: Int[Tensor, "b w"]
    ) -> None:
        """The step's decision over the window: which positions were revealed, and as what."""


class Edit(Watcher):
    """A watcher that changes the model while it decodes: an intervention in force."""

    def prepare(self, prompt: Encoded) -> Encoded:
        """The prompt as the edited model is given it."""
        return prompt


def prepared(model: Model, prompt: Encoded) -> Encoded:
    for edit in model.edits:
        prompt = edit.prepare(prompt)
    return prompt


@contextmanager
def told(model: Model, state: State) -> Iterator[None]:
    """Around a forward: the interventions in force know which step it is."""
    with ExitStack() as stack:
        for edit in model.edits:
            stack.enter_context(edit.forward(state))
        yield


@dataclass(frozen=True, eq=False)
class Decoding:
    """One prompt, decoded. Position = index into prompt and answer together, without padding.

    `canvas[t]` is the input of step t; `canvas[-1]` the result.
    """

    prompt: Encoded
    canvas: Int[np.ndarray, "states s"]  # one more than steps
    change: Int8[np.ndarray, "t s"]
    confidence: Float[np.ndarray, "t s"]  # of the token proposed there; NaN where none was
    block: Int[np.ndarray, "t 2"]  # first and past-the-end position being decided
    ended: str  # "complete", or "eos": an end token with nothing hollow before it
    text: str

    @property
    def steps(self) -> int:
        return len(self.change)

    @property
    def answer_ids(self) -> list[int]:
        return [int(i) for i in self.canvas[-1, len(self.prompt.ids) :]]
