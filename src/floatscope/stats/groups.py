"""Divide examples into groups, so that a choice made on one group is measured on the other groups.

A key that was chosen because it is strong in some examples is strong in these examples, but need not be
strong in other examples. The group of an example depends only on the set of ids, never on their order.
"""

import hashlib
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

Places = Int[np.ndarray, " _"]


def groups(ids: Sequence[str], size: int, seed: int = 0) -> list[Places]:
    """Divide ids into groups of `size` and return each group's indices into `ids`.

    Ids are ranked by a hash of id and seed; ids that remain after the last full group belong to no
    group. An id that occurs several times belongs to one group.
    """
    ranked = sorted(set(ids), key=lambda name: (_hash(name, seed), name))
    place = {name: rank // size for rank, name in enumerate(ranked)}
    group = np.array([place[name] for name in ids], int)
    return [np.flatnonzero(group == number) for number in range(len(ranked) // size)]


def _hash(name: str, seed: int) -> bytes:
    return hashlib.blake2b(f"{seed} {name}".encode(), digest_size=8).digest()
