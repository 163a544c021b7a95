"""Define the synthetic world with its known people, and ask about known people or invented people."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from . import lexicon as lx
from .compose import compose
from .generate import Draw, Entity, tell
from .schema import OF_KIND
from .types import Context, Example, Level


@dataclass(frozen=True)
class World:
    """A synthetic world that a seed determines.

    The facts about the `known` people are in the training text. All other people are invented on demand.
    """

    seed: int = 0
    people: int = 300

    def __post_init__(self) -> None:
        if not 2 <= self.people <= 5000:
            raise ValueError(f"people = {self.people!r}: give a whole number from 2 to 5000")

    @cached_property
    def known_people(self) -> tuple[Entity, ...]:
        """The known people with all their attributes; their teachers are known people too."""
        draw = Draw(random.Random(f"known {self.seed}"), "train")
        people = [draw.entity("person") for _ in range(self.people)]
        for person in people:
            value_draw = Draw(draw.rng, "train")  # values may repeat among known people
            for attribute in OF_KIND["person"]:
                if attribute.value == "person":
                    teacher = person
                    while teacher is person:
                        teacher = draw.pick(people)
                    person.facts[attribute.name] = teacher.name
                else:
                    person.facts[attribute.name] = value_draw.value(attribute)
        return tuple(people)

    def ask_known(self, rng: random.Random) -> Example:
        """Draw a closed-book question about a known person."""
        person = rng.choice(self.known_people)
        attribute = rng.choice(OF_KIND["person"])
        text = rng.choice(attribute.questions).replace("{n}", person.name)
        return Example(
            text,
            (),
            None,
            (person.facts[attribute.name],),
            person.name,
            attribute.name,
            True,
            1,
            (),
            None,
        )

    def biography(self, rng: random.Random) -> str:
        """Write a few sentences about a known person, as running text."""
        draw = Draw(rng, "train")
        attributes = rng.sample(OF_KIND["person"], rng.randint(2, 4))
        return tell(rng.choice(self.known_people), attributes, draw).text

    def examples(
        self, level: Level, n: int, *, seed: int = 0, known: bool = False, noise: Sequence[str] = ()
    ) -> list[Example]:
        """Return `n` examples about unseen or `known` people, each the first question of its own context."""
        rng = random.Random(f"examples {self.seed} {seed} {level} {known}")
        split: lx.Split = "train" if known else "held"
        return [
            Example.from_context(self.context(level, rng, split=split, known=known, noise=noise))
            for _ in range(n)
        ]

    def context(
        self,
        level: Level,
        rng: random.Random,
        *,
        split: lx.Split = "held",
        known: bool = False,
        noise: Sequence[str] = (),
    ) -> Context:
        """Draw a context: passages with questions, the first of which has the level's settings."""
        if level.noise and not noise:
            raise ValueError(
                f"noise = {level.noise}: give `noise`, a list of natural passages, "
                "or set the level's noise to 0"
            )
        if known and level.confusable:
            raise ValueError(
                f"confusable = {level.confusable}: the names of known people are "
                "fixed; give 0, or ask about unseen people"
            )
        people = self.known_people if known else ()
        return compose(people, level, Draw(rng, split), noise=noise)
