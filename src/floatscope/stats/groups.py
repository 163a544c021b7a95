"""Groups of examples: what is chosen on one group is measured on the others.

Which group an example falls into follows from its id alone and the others', never from their order. A
key that was picked because it is strong there looks strong there; on other examples it need not.
"""

import hashlib
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

Places = Int[np.ndarray, " _"]


def groups(ids: Sequence[str], size: int, seed: int = 0) -> list[Places]:
    """Divide ids into groups of `size`; return each group's indices into `ids`, in their order.

    Ids are ranked by a hash of id and seed; those left behind the last whole group are in none. An id
    that stands there several times falls into one group.
    """
    ranked = sorted(set(ids), key=lambda name: (_hash(name, seed), name))
    place = {name: rank // size for rank, name in enumerate(ranked)}
    group = np.array([place[name] for name in ids], int)
    return [np.flatnonzero(group == one) for one in range(len(ranked) // size)]


def _hash(name: str, seed: int) -> bytes:
    return hashlib.blake2b(f"{seed} {name}".encode(), digest_size=8).digest()
