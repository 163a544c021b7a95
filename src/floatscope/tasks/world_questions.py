"""Questions of the synthetic world as records, by the name of a level: "world:nine"."""

from collections.abc import Sequence

from ..errors import UsageError
from .noise import NOISE
from .record import Record, from_world
from .world import LEVELS, World

WORLD = "world:"


def world_records(
    name: str, n: int, seed: int = 0, known: bool = False, *, noise: Sequence[str] = NOISE
) -> tuple[Record, ...]:
    """`n` questions of the synthetic world, "world:nine" and so on, about unseen or known people.

    The world itself is always the one the embedded pair was trained on; `seed` draws the questions.
    """
    level = name.removeprefix(WORLD)
    if not name.startswith(WORLD) or level not in LEVELS:
        names = ", ".join(WORLD + level for level in LEVELS)
        raise UsageError(f"no questions called {name!r}", f"Choose from {names}.")
    if n < 1:
        raise UsageError(f"n = {n}", "Ask for at least one question.")
    if known and LEVELS[level].confusable:
        raise UsageError(
            f"{name} asks for confusable names, and known people have the names they have",
            "Ask it of unseen people, or choose another level for known ones.",
        )
    examples = World().examples(LEVELS[level], n, seed=seed, known=known, noise=noise)
    kind = "known" if known else "unseen"
    return tuple(from_world(e, f"{name}/{kind}/{seed}/{i}") for i, e in enumerate(examples))
