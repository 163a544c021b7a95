"""Which way a model's attention goes. Known to traces and measures without any model."""

from enum import StrEnum


class Direction(StrEnum):
    """Which keys a query sees."""

    CAUSAL = "causal"  # itself and everything before
    BIDIRECTIONAL = "bidirectional"  # everything
    BLOCK_CAUSAL = "block-causal"  # its own block and every block before
