"""Where the blocks of a decoding lie, and how its steps are divided over them. Nothing runs here.

A model that decodes in blocks brings its grid, and the sampler decodes on it: one grid, not two. Of any
other model the sampler divides the answer by its `block_length`.
"""

from collections.abc import Sequence
from typing import NamedTuple

from ..errors import UsageError
from ..sequences.direction import block_start
from ..sequences.vocabulary import ModelFacts
from .samplers.autoregressive import Autoregressive
from .samplers.base import Sampler


class Span(NamedTuple):
    """One block, in positions of prompt and answer: its first may still be the prompt's."""

    start: int  # where the block begins
    first: int  # the first position that is decided
    stop: int

    @property
    def width(self) -> int:
        """How many positions are decided."""
        return self.stop - self.first

    def moved(self, by: int) -> "Span":
        return Span(self.start + by, self.first + by, self.stop + by)


def spans(model: ModelFacts, sampler: Sampler, prompt: int) -> list[Span]:
    """The blocks of an answer behind a prompt of this length. The last ends where the answer does."""
    end = prompt + sampler.length
    if model.block is None:
        width = sampler.length // sampler.n_blocks
        return [Span(at, at, at + width) for at in range(prompt, end, width)]
    begin = block_start(prompt, model.block, model.grid.offset(model.block, prompt))
    return [
        Span(max(at, 0), max(at, prompt), min(at + model.block, end))
        for at in range(begin, end, model.block)
    ]


def divided(sampler: Sampler, blocks: Sequence[Span]) -> list[int]:
    """Steps for each block: by the number of its positions, the remainder to the first blocks."""
    steps, places = sampler.n_steps, sum(block.width for block in blocks)
    if steps < len(blocks):
        raise UsageError(
            f"{type(sampler).__name__}: {steps} steps for {len(blocks)} blocks",
            "Every block takes a step at least: use more steps or longer blocks.",
        )
    shares = []
    for left, block in zip(range(len(blocks) - 1, -1, -1), blocks, strict=True):
        # one is left for each that follows
        share = min(-(-block.width * steps // places), steps - left)
        shares.append(share)
        steps, places = steps - share, places - block.width
    return shares


def most_steps(model: ModelFacts, sampler: Sampler | Autoregressive) -> int:
    """The steps that a decoding can take."""
    if isinstance(sampler, Autoregressive):
        return sampler.n_steps
    width = model.block or sampler.block_length
    blocks = 1 if width is None else -(-sampler.length // width) + 1  # a prompt may end inside one
    return sampler.most_steps(min(blocks, sampler.length))
