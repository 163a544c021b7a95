"""Define the kinds of entity in the world, their attributes, and templates of sentences.

An `Attribute` contains sentence templates ({n} is the name, {v} the value, {They} and {Their} are pronouns)
and question templates. If the value of the attribute is itself an entity, the attribute also contains the
noun phrase from which two-hop questions are built. This module contains data, and draws nothing at random.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from . import lexicon as lx

Kind = Literal["person", "place", "thing"]


@dataclass(frozen=True)
class Attribute:
    """A property of a kind of entity, with templates of the sentences that state it."""

    name: str
    kind: Kind  # of the subject
    value: str  # a closed list's name, or "person", "place", "firm", "river", "year", "pet"
    sentences: tuple[str, ...]  # with the subject's name
    pronoun: tuple[str, ...]  # with a pronoun; only after a sentence that named the subject
    questions: tuple[str, ...]
    phrase: str = ""  # "the teacher of {n}": names the value in a two-hop question

    @property
    def leads_to(self) -> Kind | None:
        """Kind of the entity that the value names, if a second hop can start there; else None."""
        return self.value if self.phrase and self.value in ("person", "place") else None  # type: ignore[return-value]


LISTS: dict[str, tuple[str, ...]] = {
    "profession": lx.PROFESSIONS,
    "colour": lx.COLOURS,
    "instrument": lx.INSTRUMENTS,
    "goods": lx.GOODS,
    "material": lx.MATERIALS,
}

ATTRIBUTES: tuple[Attribute, ...] = (
    Attribute(
        "birthplace",
        "person",
        "place",
        (
            "{n} was born in {v}.",
            "{n} comes from {v}.",
            "The home town of {n} is {v}.",
            "{n} grew up in {v}.",
            "{v} is the home town of {n}.",
        ),
        ("{They} was born in {v}.", "{They} grew up in {v}.", "{Their} home town is {v}."),
        ("Where was {n} born?", "What is the home town of {n}?", "Which town does {n} come from?"),
        "the home town of {n}",
    ),
    Attribute(
        "profession",
        "person",
        "profession",
        (
            "{n} works as a {v}.",
            "{n} is a {v} by trade.",
            "The profession of {n} is {v}.",
            "For a living, {n} is a {v}.",
        ),
        ("{They} works as a {v}.", "{They} is a {v} by trade.", "{Their} profession is {v}."),
        ("What is the profession of {n}?", "What does {n} work as?"),
    ),
    Attribute(
        "employer",
        "person",
        "firm",
        (
            "{n} is employed by {v}.",
            "{n} has a post at {v}.",
            "The employer of {n} is {v}.",
            "{v} is the employer of {n}.",
        ),
        ("{They} is employed by {v}.", "{They} has a post at {v}.", "{Their} employer is {v}."),
        ("Who employs {n}?", "What is the employer of {n}?", "Where does {n} have a post?"),
    ),
    Attribute(
        "pet",
        "person",
        "pet",
        ("{n} keeps a {v}.", "{n} owns a {v}.", "The pet of {n} is a {v}."),
        ("{They} keeps a {v}.", "{They} owns a {v}.", "{Their} pet is a {v}."),
        ("What pet does {n} keep?", "Which animal does {n} own?"),
    ),
    Attribute(
        "instrument",
        "person",
        "instrument",
        ("{n} plays the {v}.", "{n} has learned the {v}.", "The instrument of {n} is the {v}."),
        ("{They} plays the {v}.", "{They} has learned the {v}.", "{Their} instrument is the {v}."),
        ("What instrument does {n} play?", "Which instrument has {n} learned?"),
    ),
    Attribute(
        "guild year",
        "person",
        "year",
        (
            "{n} joined the guild in {v}.",
            "The guild admitted {n} in {v}.",
            "{n} has been in the guild since {v}.",
        ),
        ("{They} joined the guild in {v}.", "{They} has been in the guild since {v}."),
        ("In which year did {n} join the guild?", "When did the guild admit {n}?"),
    ),
    Attribute(
        "teacher",
        "person",
        "person",
        (
            "{n} was taught by {v}.",
            "The teacher of {n} is {v}.",
            "{n} studied under {v}.",
            "{v} is the teacher of {n}.",
        ),
        ("{They} was taught by {v}.", "{They} studied under {v}.", "{Their} teacher is {v}."),
        ("Who taught {n}?", "Who is the teacher of {n}?"),
        "the teacher of {n}",
    ),
    Attribute(
        "river",
        "place",
        "river",
        (
            "{n} lies on the river {v}.",
            "The river {v} runs through {n}.",
            "The river of {n} is the {v}.",
        ),
        ("It lies on the river {v}.", "Its river is the {v}."),
        ("Which river runs through {n}?", "On which river does {n} lie?"),
    ),
    Attribute(
        "goods",
        "place",
        "goods",
        ("{n} is known for {v}.", "The trade of {n} is in {v}.", "The people of {n} sell {v}."),
        ("It is known for {v}.", "Its trade is in {v}."),
        ("What is {n} known for?", "What do the people of {n} sell?"),
    ),
    Attribute(
        "founded",
        "place",
        "year",
        (
            "{n} was founded in {v}.",
            "{n} has stood since {v}.",
            "The charter of {n} dates from {v}.",
        ),
        ("It was founded in {v}.", "Its charter dates from {v}."),
        ("When was {n} founded?", "From which year does the charter of {n} date?"),
    ),
    Attribute(
        "material",
        "thing",
        "material",
        ("{n} is made of {v}.", "{n} was cast from {v}.", "The material of {n} is {v}."),
        ("It is made of {v}.", "It was cast from {v}."),
        ("What is {n} made of?", "What is the material of {n}?"),
    ),
    Attribute(
        "colour",
        "thing",
        "colour",
        ("{n} is painted {v}.", "The colour of {n} is {v}.", "{n} has a {v} case."),
        ("It is painted {v}.", "Its colour is {v}."),
        ("What colour is {n}?", "What is the colour of {n}?"),
    ),
    Attribute(
        "maker",
        "thing",
        "person",
        ("{n} was made by {v}.", "The maker of {n} is {v}.", "{v} is the maker of {n}."),
        ("It was made by {v}.", "Its maker is {v}."),
        ("Who made {n}?", "Who is the maker of {n}?"),
        "the maker of {n}",
    ),
    Attribute(
        "kept in",
        "thing",
        "place",
        ("{n} is kept in {v}.", "{n} can be seen in {v}.", "The home of {n} is {v}."),
        ("It is kept in {v}.", "It can be seen in {v}."),
        ("Where is {n} kept?", "Where can {n} be seen?"),
        "the home of {n}",
    ),
)

OF_KIND: dict[Kind, tuple[Attribute, ...]] = {
    kind: tuple(a for a in ATTRIBUTES if a.kind == kind) for kind in ("person", "place", "thing")
}

# A rumour states a wrong value; the plain statement is the right one. This is what makes a
# question with conflicting passages decidable from the text alone.
RUMOURS = (
    "Rumour has it that {s}",
    "It was once wrongly reported that {s}",
    "Gossip in the market claims that {s}",
    "An old letter says, falsely, that {s}",
)
