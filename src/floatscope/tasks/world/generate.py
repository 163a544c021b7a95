"""Draw entities with their names and values, and write passages about them.

`people.World(seed)` has a fixed population of known people, whose facts are in the training text. Every other
entity is invented for one context. Its name is built from `train` words for training, and from `held` words,
which no training text contains, for evaluation. The same arguments give the same draws on every machine. This
module uses no tokenizer and no model.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from . import lexicon as lx
from .schema import LISTS, RUMOURS, Attribute, Kind
from .types import Fact, Passage

PRONOUNS = {"he": ("He", "His"), "she": ("She", "Her")}
T = TypeVar("T")
ATTEMPTS = 200  # draws of a value before the search for a fitting one ends


@dataclass(slots=True, eq=False)
class Entity:
    """A person, place or thing with a name; `facts` maps attributes to the values drawn so far."""

    kind: Kind
    name: str
    pronouns: tuple[str, str] = ("It", "Its")
    facts: dict[str, str] = field(default_factory=dict)


class Draw:
    """Random choices for one context, which avoid repeating a name or a value of an attribute."""

    __slots__ = ("rng", "split", "used")

    def __init__(self, rng: random.Random, split: lx.Split) -> None:
        self.rng, self.split = rng, split
        self.used: set[str] = set()

    def pick(self, items: Sequence[T]) -> T:  # faster than rng.choice, which checks more
        return items[int(self.rng.random() * len(items))]

    def word(self, kind: str) -> str:
        return self.pick(lx.pool(kind, self.split))

    def name(self, kind: str, namesake: str | None = None) -> str:
        """Draw an unused name; with `namesake`, a person shares the first name or surname of that name."""
        for _ in range(ATTEMPTS):
            if kind == "person":
                first, last = self.word("first"), self.word("surname")
                if namesake is not None:
                    their_first, their_last = namesake.split(" ", 1)
                    if self.rng.random() < 0.5:
                        first = their_first
                    else:
                        last = their_last
                name = f"{first} {last}"
            elif kind == "place":
                name = self.word("place")
                if self.rng.random() < 0.3:
                    name = f"{self.pick(lx.PLACE_WORDS)} {name}"
            elif kind == "firm":
                name = f"{self.word('firm')} {self.pick(lx.FIRM_WORDS)}"
            elif kind == "thing":
                name = f"the {self.word('thing')} {self.pick(lx.THING_WORDS)}"
            else:
                name = self.word(kind)
            if name not in self.used:
                self.used.add(name)
                return name
        raise RuntimeError(f"no unused {kind} name in {ATTEMPTS} draws")

    def entity(self, kind: Kind, namesake: str | None = None, name: str | None = None) -> Entity:
        name = name or self.name(kind, namesake)
        if kind != "person":
            return Entity(kind, name)
        return Entity(kind, name, PRONOUNS["she" if len(name) % 2 else "he"])

    def value(self, attribute: Attribute, answer: str = "any") -> str:
        """Draw a value of the attribute, if possible a value that no other entity of this context has.

        `answer` restricts the length of the value: "short" is one word, and "long" is two or more words.
        """
        for _ in range(ATTEMPTS):
            kind = attribute.value
            if kind in LISTS:
                value = self.pick(LISTS[kind])
            elif kind == "year":
                value = str(1700 + int(self.rng.random() * 250))
            elif kind == "pet":
                value = f"{self.pick(lx.COLOURS)} {self.pick(lx.ANIMALS)}"
            else:
                value = self.name(kind)
            if answer != "any" and (" " in value) != (answer == "long"):
                continue
            key = f"{attribute.name}={value}"
            if key not in self.used:
                self.used.add(key)
                return value
        # Closed lists are short: with many passages a repeated value is allowed.
        return value


def tell(entity: Entity, attributes: Sequence[Attribute], draw: Draw) -> Passage:
    """Write a passage that states the attributes; sentences after the first may use a pronoun."""
    text, facts = "", []
    for i, attribute in enumerate(attributes):
        by_name = i == 0 or draw.rng.random() < 0.6
        template = draw.pick(attribute.sentences if by_name else attribute.pronoun)
        start = len(text) + (1 if text else 0)
        sentence, offset = state(template, entity, entity.facts[attribute.name])
        text = f"{text} {sentence}" if text else sentence
        value = entity.facts[attribute.name]
        facts.append(
            Fact(
                entity.name,
                attribute.name,
                value,
                (start, start + len(sentence)),
                (start + offset, start + offset + len(value)),
            )
        )
    return Passage(text, tuple(facts))


def state(template: str, entity: Entity, value: str) -> tuple[str, int]:
    """Fill a sentence template; return the sentence and the character offset of the value in it."""
    they, their = entity.pronouns
    before, after = template.split("{v}")
    before = before.replace("{n}", entity.name).replace("{They}", they).replace("{Their}", their)
    after = after.replace("{n}", entity.name)
    sentence = f"{before}{value}{after}"
    return sentence[0].upper() + sentence[1:], len(before)


def gossip(entity: Entity, attribute: Attribute, value: str, draw: Draw) -> Passage:
    """Write a passage that states a wrong value of an attribute as a rumour."""
    lead = draw.pick(RUMOURS).replace("{s}", "")
    sentence, offset = state(draw.pick(attribute.sentences), entity, value)
    if sentence.startswith(("The ", "For ")):
        sentence = sentence[0].lower() + sentence[1:]
    text, offset = lead + sentence, len(lead) + offset
    fact = Fact(
        entity.name, attribute.name, value, (0, len(text)), (offset, offset + len(value)), True
    )
    return Passage(text, (fact,), "rumour")
