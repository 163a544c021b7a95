"""Create records with questions of the synthetic world, by the name of a level, such as "world:nine".

A mixture ("world:mixed") asks about known and unseen people at several levels. A model therefore answers a
part of the questions, but not all of them, both without and with passages.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import UsageError
from .noise import NOISE
from .record import Record, from_world
from .world import LEVELS, World

WORLD = "world:"
MOST = 20_000  # questions per call; 5,000 take about a second


@dataclass(frozen=True)
class Part:
    """One part of a mixture: a number of questions at a level, about known people or unseen people."""

    questions: int
    level: str
    known: bool = False


# In both models of the pair a quarter is known without passages and about two thirds are answered
# with them: a share of right answers can rise and fall.
MIXTURES = {"mixed": (Part(5, "four", known=True), Part(3, "four"), Part(12, "rivals"))}


def has_known(name: str) -> bool:
    """Return whether a level can be asked about known people; False for mixtures and confusable names."""
    level = LEVELS.get(name.removeprefix(WORLD))
    return name.startswith(WORLD) and level is not None and not level.confusable


def passages_of(name: str) -> int | None:
    """Return the number of passages per question of a level; None for a mixture where it varies."""
    level = name.removeprefix(WORLD)
    levels = [part.level for part in MIXTURES[level]] if level in MIXTURES else [level]
    counts = {LEVELS[level_name].passages for level_name in levels if level_name in LEVELS}
    return counts.pop() if name.startswith(WORLD) and len(counts) == 1 else None


def world_records(
    name: str, n: int, seed: int = 0, known: bool = False, *, noise: Sequence[str] = NOISE
) -> tuple[Record, ...]:
    """Return questions of the synthetic world, about unseen or known people.

    The world is always the one on which the embedded pair was trained.

    Args:
        name (str): The level, such as "world:nine". "world:mixed" asks about known and unseen people, and the
            field `known` of each record states whether the person is known.
        n (int): Number of questions, 1 to 20,000.
        seed (int): Seed that draws the questions; 0 by default.
        known (bool): Whether to ask about people that the pair knows from training; False by default.
        noise (sequence of str): Texts for passages of noise; by default a few texts of the package.
    """
    level = name.removeprefix(WORLD)
    if not name.startswith(WORLD) or level not in {*LEVELS, *MIXTURES}:
        names = ", ".join(WORLD + level for level in (*LEVELS, *MIXTURES))
        raise UsageError(f"no questions called {name!r}", f"Choose from {names}.")
    if not 1 <= n <= MOST:
        raise UsageError(f"{n:,} questions of {name}", f"Ask for 1 to {MOST:,}.")
    if level in MIXTURES:
        if known:
            raise UsageError(
                f"{name} asks about known and unseen people", "Choose another level for known ones."
            )
        return _mixed(MIXTURES[level], n, seed, noise)
    if known and LEVELS[level].confusable:
        raise UsageError(
            f"{name} needs confusable names, and the names of known people are fixed",
            "Ask about unseen people, or choose another level for known ones.",
        )
    examples = World().examples(LEVELS[level], n, seed=seed, known=known, noise=noise)
    kind = "known" if known else "unseen"
    return tuple(from_world(e, f"{name}/{kind}/{seed}/{i}") for i, e in enumerate(examples))


def _mixed(mixture: Sequence[Part], n: int, seed: int, noise: Sequence[str]) -> tuple[Record, ...]:
    """Return n questions of a mixture: the seed draws the order of parts, not the order within a part.

    Parts are drawn in rounds; each round contains the number of questions that every part states. The shares
    of the parts are therefore exact in each complete round, and the questions for a larger n begin with the
    questions for a smaller n.
    """
    rng = random.Random(f"mixture {seed}")
    one_round = [part for part in mixture for _ in range(part.questions)]
    turns: list[Part] = []
    while len(turns) < n:
        turns += rng.sample(one_round, len(one_round))
    turns = turns[:n]
    of_part = {
        part: iter(world_records(WORLD + part.level, count, seed, part.known, noise=noise))
        for part in mixture
        if (count := turns.count(part))
    }
    return tuple(next(of_part[part]) for part in turns)
