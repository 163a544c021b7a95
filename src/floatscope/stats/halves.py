"""Two halves of the examples: what is chosen on one is measured on the other.

Which half an example falls into follows from its id alone and the others', never from their order. A
key that was picked because it is strong there looks strong there; on the other half it need not.
"""

import hashlib
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

Places = Int[np.ndarray, " _"]


def halves(ids: Sequence[str], seed: int = 0) -> tuple[Places, Places]:
    """Indices into `ids` of the first and the second half, each in the order of `ids`.

    Ids are ranked by a hash of id and seed and cut in the middle; of an odd number the first half has
    one more. An id that stands there several times falls into one half.
    """
    ranked = sorted(set(ids), key=lambda name: (_hash(name, seed), name))
    first = set(ranked[: (len(ranked) + 1) // 2])
    inside = np.array([name in first for name in ids], bool)
    return np.flatnonzero(inside), np.flatnonzero(~inside)


def _hash(name: str, seed: int) -> bytes:
    return hashlib.blake2b(f"{seed} {name}".encode(), digest_size=8).digest()
