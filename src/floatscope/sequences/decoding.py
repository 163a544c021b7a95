"""What a decoding leaves behind: every canvas, what changed between them, how sure the model was."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
from jaxtyping import Float, Int, Int8

from .prompt import Encoded

Progress = Callable[[int, int], None]  # done, in all: steps, questions, pairs
ABSENT = -1  # a position that a causal model, or one in blocks, has not reached yet


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
    empty_before = (before == mask_id) | (before == ABSENT)
    empty_after = (after == mask_id) | (after == ABSENT)
    kind = np.where(empty_before, Change.REVEAL, np.where(empty_after, Change.REMASK, Change.EDIT))
    same = (before == after) | (empty_before & empty_after)  # a block that is there now is masked
    return np.where(same, Change.NONE, kind).astype(np.int8)


@dataclass(frozen=True, eq=False)
class Decoding:
    """One prompt, decoded. Position = index into prompt and answer together, without padding.

    `canvas[t]` is the input of step t; `canvas[-1]` the result. `info` is what interventions in force
    say of it: `hidden_share` and `hidden_columns`, of a masking; `patched_rows`, `forced`, `remasked`.
    """

    prompt: Encoded
    canvas: Int[np.ndarray, "states s"]  # one more than steps
    change: Int8[np.ndarray, "t s"]
    confidence: Float[np.ndarray, "t s"]  # of the token proposed there; NaN where none was
    block: Int[np.ndarray, "t 2"]  # first and past-the-end position being decided
    ended: str  # "complete", or "eos": an end token with no mask before it
    text: str
    info: dict[str, float] = field(default_factory=dict)
    cache: str | None = None  # of a diffusion model: "exact", or one that approximates

    @property
    def steps(self) -> int:
        return len(self.change)

    @property
    def answer_ids(self) -> list[int]:
        return [int(i) for i in self.canvas[-1, len(self.prompt.ids) :]]
