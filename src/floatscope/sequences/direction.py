"""The direction of a model's attention and the grid of its blocks. Traces read both without a model."""

from enum import StrEnum


class Direction(StrEnum):
    """Which keys a query sees."""

    CAUSAL = "causal"  # itself and everything before
    BIDIRECTIONAL = "bidirectional"  # everything
    BLOCK_CAUSAL = "block-causal"  # its own block and every block before
    # Itself and everything before; the block being decided, and what may follow it, as block-causal.
    ACTIVE_BLOCK = "active-block"

    @property
    def in_blocks(self) -> bool:
        """Whether the model decodes in blocks."""
        return self in (Direction.BLOCK_CAUSAL, Direction.ACTIVE_BLOCK)


class Grid(StrEnum):
    """Where the blocks of a model begin."""

    START = (
        "start"  # at position 0: a prompt's tail shares a block with the first tokens of the answer
    )
    PADDED = "padded"  # at the answer, as if the prompt were padded to whole blocks: its first is shorter

    def offset(self, block: int | None, prompt: int) -> int:
        """Return how many positions the first block lacks, for a prompt of this length."""
        return -prompt % block if self is Grid.PADDED and block is not None else 0


def current_block(first: int, stop: int, block: int, offset: int) -> int:
    """Return the start of the block in which first … stop − 1 are being decided; `first` if none are."""
    return block_start(first, block, offset) if first < stop else first


def block_start(position: int, block: int, offset: int) -> int:
    """Return the first position of the block that holds a position (below 0 in a shorter first block)."""
    return (position + offset) // block * block - offset
