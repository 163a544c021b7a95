"""The direction of a model's attention and the grid of its blocks, which traces use without a model."""

from enum import StrEnum


class Direction(StrEnum):
    """The direction of a model's attention: which keys a query sees."""

    CAUSAL = "causal"  # itself and all earlier positions
    BIDIRECTIONAL = "bidirectional"  # everything
    BLOCK_CAUSAL = "block-causal"  # its own block and all earlier blocks
    # Itself and all earlier positions. The block being decided and later positions are block-causal.
    ACTIVE_BLOCK = "active-block"

    @property
    def in_blocks(self) -> bool:
        """Whether the model decodes in blocks."""
        return self in (Direction.BLOCK_CAUSAL, Direction.ACTIVE_BLOCK)


class Grid(StrEnum):
    """The position at which a model's first block begins."""

    # at position 0: the end of a prompt shares a block with the beginning of the answer
    START = "start"
    # at the answer, as if the prompt were padded to whole blocks: the prompt's first block is shorter
    PADDED = "padded"

    def offset(self, block: int | None, prompt: int) -> int:
        """Return by how many positions the first block is shorter than `block`, for this prompt length."""
        return -prompt % block if self is Grid.PADDED and block is not None else 0


def current_block(first: int, stop: int, block: int, offset: int) -> int:
    """Return the start of the block with positions first … stop − 1; `first` if there are none."""
    return block_start(first, block, offset) if first < stop else first


def block_start(position: int, block: int, offset: int) -> int:
    """Return the first position of the block that contains a position; negative in a shorter first block."""
    return (position + offset) // block * block - offset
