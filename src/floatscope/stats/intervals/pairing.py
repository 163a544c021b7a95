"""Pair values of the same examples by id, never by position."""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float, Int

from ...errors import UsageError


def pair(*ids: Sequence[str]) -> tuple[list[str], list[Int[np.ndarray, " pairs"]]]:
    """Return the ids that occur in all lists, in the first list's order, and their indices in each list.

    Duplicate ids, which are ambiguous, raise an error, and so does the absence of any common id. Ids that are
    missing in one of the lists are dropped. To detect dropped ids, compare the number of pairs with the
    lengths of the lists.
    """
    places = []
    for number, names in enumerate(ids, 1):
        repeated = {name: count for name, count in Counter(names).items() if count > 1}
        if repeated:
            name, count = next(iter(repeated.items()))
            raise UsageError(
                f"ids must be unique, but {_short(name)} occurs {count} times in list {number} "
                f"({len(repeated)} ids are repeated)",
                "Average repeated examples first: pairing requires one value per example.",
            )
        places.append({name: i for i, name in enumerate(names)})
    common = [name for name in places[0] if all(name in place for place in places)]
    if not common:
        counts = " and ".join(str(len(names)) for names in ids)
        raise UsageError(
            f"expected the same examples, but of {counts} no id occurs in all lists",
            "Compare results for the same prompts, or compare without pairing.",
        )
    return common, [np.array([place[name] for name in common]) for place in places]


def paired_by_id(
    a: Mapping[str, float], b: Mapping[str, float]
) -> tuple[list[str], Float[np.ndarray, " pairs"], Float[np.ndarray, " pairs"]]:
    """Return the common ids and the values of both mappings for them; see `pair`."""
    common, _ = pair(list(a), list(b))
    first, second = (np.array([float(x[i]) for i in common]) for x in (a, b))
    return common, first, second


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "…")
