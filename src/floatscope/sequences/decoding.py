"""The result of a decoding: the canvas, the changes and the confidence of proposals at every step."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
from jaxtyping import Float, Int, Int8

from .prompt import Encoded

Progress = Callable[[int, int], None]  # (done, total) in steps, questions or pairs
ABSENT = -1  # a position that a causal or block model has not reached yet


class Change(IntEnum):
    """The kind of change that a step makes at a position."""

    NONE = 0
    REVEAL = 1  # mask (or nothing yet) → token
    REMASK = 2  # token → mask
    EDIT = 3  # token → another token


def change_of(
    before: Int[np.ndarray, "*t s"], after: Int[np.ndarray, "*t s"], mask_id: int
) -> Int8[np.ndarray, "*t s"]:
    """Return the Change of each position from the canvas `before` a step to the canvas `after`, as int8."""
    empty_before = (before == mask_id) | (before == ABSENT)
    empty_after = (after == mask_id) | (after == ABSENT)
    kind = np.where(empty_before, Change.REVEAL, np.where(empty_after, Change.REMASK, Change.EDIT))
    # a newly added block consists of masks
    unchanged = (before == after) | (empty_before & empty_after)
    return np.where(unchanged, Change.NONE, kind).astype(np.int8)


@dataclass(frozen=True, eq=False)
class Decoding:
    """The decoding of one prompt. Positions are counted over prompt and answer, without padding.

    Args:
        prompt: the encoded prompt.
        canvas: token ids at each step, shape (steps + 1, positions). `canvas[t]` is the input of step t,
            and `canvas[-1]` is the result. −1 marks a position that does not exist yet.
        change: what each step did to each position, shape (steps, positions): 0 nothing, 1 revealed, 2
            masked again, 3 replaced by another token.
        confidence: probability of the token proposed at each masked position, shape (steps, positions);
            NaN elsewhere.
        block: first position and past-the-end position of the block being decided, shape (steps, 2).
        ended: "complete", or "eos" if the answer has an end token with no mask before it.
        text: the decoded answer, without masks.
        info: numbers reported by the interventions in force, by name: `hidden_share` and `hidden_columns`
            (masking), `patched_rows`, `forced`, `remasked`. Empty by default.
        cache: the cache of a diffusion model: "exact" or the name of an approximation; None without a cache.
    """

    prompt: Encoded
    canvas: Int[np.ndarray, "states s"]  # one more than steps
    change: Int8[np.ndarray, "t s"]
    # of the token proposed at the position; NaN without a proposal
    confidence: Float[np.ndarray, "t s"]
    block: Int[np.ndarray, "t 2"]  # first and past-the-end position being decided
    ended: str  # "complete", or "eos" for an end token with no mask before it
    text: str
    info: dict[str, float] = field(default_factory=dict)
    cache: str | None = None  # of a diffusion model: "exact" or the name of an approximation

    @property
    def steps(self) -> int:
        """Number of steps."""
        return len(self.change)

    @property
    def answer_ids(self) -> list[int]:
        """Token ids of the answer after the last step, masks included."""
        return [int(i) for i in self.canvas[-1, len(self.prompt.ids) :]]
