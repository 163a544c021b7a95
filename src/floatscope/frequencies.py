"""Token frequencies of a corpus, as a .npy file with one share per token."""

from functools import lru_cache

import numpy as np
from jaxtyping import Float

from .errors import UsageError


@lru_cache(maxsize=4)
def read_frequencies(path: str) -> Float[np.ndarray, " v"]:
    """Read once, not at every step."""
    try:
        return np.asarray(np.load(path, allow_pickle=False), dtype=np.float64)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"token frequencies cannot be read from {path} ({error})",
            "Give a .npy file with one share per token.",
        ) from error
