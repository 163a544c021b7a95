"""Questions of the synthetic world as records, by the name of a level: "world:nine".

A mixture ("world:mixed") asks partly about known people and partly about unseen ones, each at a level
of its own: what a model knows without passages is then neither nothing nor all.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import UsageError
from .noise import NOISE
from .record import Record, from_world
from .world import LEVELS, World

WORLD = "world:"


@dataclass(frozen=True)
class Mixture:
    """Of every `of` questions, `known` are about known people; where they stand is drawn."""

    known: int
    of: int
    known_level: str
    unseen_level: str

    def kinds(self, n: int, seed: int) -> list[bool]:
        """Whether each question is about a known person; more questions begin as fewer do."""
        rng = random.Random(f"mixture {seed}")
        kinds: list[bool] = []
        while len(kinds) < n:
            kinds += rng.sample([i < self.known for i in range(self.of)], self.of)
        return kinds[:n]


MIXTURES = {"mixed": Mixture(known=1, of=4, known_level="nine", unseen_level="hops")}


def has_known(name: str) -> bool:
    """Whether a level can also be asked about known people alone."""
    level = LEVELS.get(name.removeprefix(WORLD))
    return name.startswith(WORLD) and level is not None and not level.confusable


def passages_of(name: str) -> int | None:
    """How many passages every question of a level has; None where that is not one number."""
    level = name.removeprefix(WORLD)
    mixture = MIXTURES.get(level)
    parts = [level] if mixture is None else [mixture.known_level, mixture.unseen_level]
    counts = {LEVELS[part].passages for part in parts if part in LEVELS}
    return counts.pop() if name.startswith(WORLD) and len(counts) == 1 else None


def world_records(
    name: str, n: int, seed: int = 0, known: bool = False, *, noise: Sequence[str] = NOISE
) -> tuple[Record, ...]:
    """`n` questions of the synthetic world, "world:nine" and so on, about unseen or known people.

    The world itself is always the one the embedded pair was trained on; `seed` draws the questions.
    "world:mixed" asks about both; each record says which (`known`).
    """
    level = name.removeprefix(WORLD)
    if not name.startswith(WORLD) or level not in {*LEVELS, *MIXTURES}:
        names = ", ".join(WORLD + level for level in (*LEVELS, *MIXTURES))
        raise UsageError(f"no questions called {name!r}", f"Choose from {names}.")
    if n < 1:
        raise UsageError(f"n = {n}", "Ask for at least one question.")
    if level in MIXTURES:
        if known:
            raise UsageError(
                f"{name} asks about known and unseen people", "Choose another level for known ones."
            )
        return _mixed(MIXTURES[level], n, seed, noise)
    if known and LEVELS[level].confusable:
        raise UsageError(
            f"{name} asks for confusable names, and known people have the names they have",
            "Ask it of unseen people, or choose another level for known ones.",
        )
    examples = World().examples(LEVELS[level], n, seed=seed, known=known, noise=noise)
    kind = "known" if known else "unseen"
    return tuple(from_world(e, f"{name}/{kind}/{seed}/{i}") for i, e in enumerate(examples))


def _mixed(mixture: Mixture, n: int, seed: int, noise: Sequence[str]) -> tuple[Record, ...]:
    """Each kind's own questions, in their own order, at the places of that kind."""
    kinds = mixture.kinds(n, seed)
    of_kind = {}
    for known, level in ((True, mixture.known_level), (False, mixture.unseen_level)):
        count = kinds.count(known)
        records = world_records(WORLD + level, count, seed, known, noise=noise) if count else ()
        of_kind[known] = iter(records)
    return tuple(next(of_kind[known]) for known in kinds)
