"""Divide an answer into blocks, and divide the steps of a decoding among the blocks. No model is run.

A block model has its own grid of blocks, which every sampler uses. For any other model the answer is
divided into blocks of the sampler's `block_length`.
"""

from collections.abc import Sequence
from typing import NamedTuple

from ..errors import UsageError
from ..sequences.direction import block_start
from ..sequences.vocabulary import ModelFacts
from .samplers.autoregressive import Autoregressive
from .samplers.base import Sampler


class Span(NamedTuple):
    """The positions of one block, counted over prompt and answer. A block may begin inside the prompt."""

    start: int  # where the block begins
    first: int  # first position that is decided
    stop: int

    @property
    def width(self) -> int:
        """Number of positions that are decided in this block."""
        return self.stop - self.first

    def moved(self, by: int) -> "Span":
        """Return the block with all positions shifted by `by`."""
        return Span(self.start + by, self.first + by, self.stop + by)


def spans(model: ModelFacts, sampler: Sampler, prompt: int) -> list[Span]:
    """Return the blocks of an answer after a prompt of `prompt` tokens; the last ends with the answer."""
    end = prompt + sampler.length
    if model.block is None:
        width = sampler.length // sampler.n_blocks
        return [Span(first, first, first + width) for first in range(prompt, end, width)]
    begin = block_start(prompt, model.block, model.grid.offset(model.block, prompt))
    return [
        Span(max(first, 0), max(first, prompt), min(first + model.block, end))
        for first in range(begin, end, model.block)
    ]


def divided(sampler: Sampler, blocks: Sequence[Span]) -> list[int]:
    """Return the number of steps of each block, in proportion to its width; earlier blocks round up."""
    steps, places = sampler.n_steps, sum(block.width for block in blocks)
    if steps < len(blocks):
        raise UsageError(
            f"{type(sampler).__name__}: {steps} steps for {len(blocks)} blocks",
            "Every block takes at least one step: use more steps or longer blocks.",
        )
    shares = []
    for n_after, block in zip(range(len(blocks) - 1, -1, -1), blocks, strict=True):
        # leave one step for each later block
        share = min(-(-block.width * steps // places), steps - n_after)
        shares.append(share)
        steps, places = steps - share, places - block.width
    return shares


def max_steps(model: ModelFacts, sampler: Sampler | Autoregressive) -> int:
    """Return the largest number of steps that a decoding of any prompt can take."""
    if isinstance(sampler, Autoregressive):
        return sampler.n_steps
    width = model.block or sampler.block_length
    # + 1, because a prompt may end inside a block
    blocks = 1 if width is None else -(-sampler.length // width) + 1
    return sampler.max_steps(min(blocks, sampler.length))
