"""Compose the passages of a context, and choose the questions that these passages answer.

First come the passages that the first question needs, beginning with the gold passage. Then come pairs of
passages like those (rivals), rumours, other distractors, and noise. All passages are then shuffled, and the
gold passage is moved to the index that the level requires.
"""

from __future__ import annotations

from collections.abc import Sequence

from .generate import ATTEMPTS, Draw, Entity, gossip, tell
from .schema import OF_KIND, Attribute, Kind
from .types import Context, Level, Passage, Question

KINDS: tuple[Kind, ...] = ("person",) * 7 + ("place", "thing", "thing")
RELATIONS: tuple[Attribute, ...] = tuple(a for kind in OF_KIND for a in OF_KIND[kind] if a.leads_to)
BY_NAME: dict[tuple[Kind, str], Attribute] = {
    (a.kind, a.name): a for kind in OF_KIND for a in OF_KIND[kind]
}


class _Builder:
    """A collector of the passages of a context, and of the entities in its two-hop questions."""

    def __init__(self, people: Sequence[Entity], level: Level, draw: Draw) -> None:
        self.people, self.level, self.draw, self.about_known = people, level, draw, bool(people)
        self.passages: list[tuple[Passage, Entity | None]] = []
        self.chains: list[tuple[Entity, Attribute, Entity, Attribute]] = []

    def settle(self, entity: Entity, attribute: Attribute, answer: str = "any") -> None:
        if attribute.name not in entity.facts:
            entity.facts[attribute.name] = self.draw.value(attribute, answer)

    def entity(self, kind: Kind, namesake: str | None = None, name: str | None = None) -> Entity:
        if not self.about_known:
            return self.draw.entity(kind, namesake, name)
        if name is not None:
            return next(person for person in self.people if person.name == name)
        for _ in range(200):
            person = self.draw.pick(self.people)
            if person.name not in self.draw.used:
                break
        self.draw.used.add(person.name)
        return person

    def kind(self) -> Kind:
        return "person" if self.about_known else self.draw.pick(KINDS)

    def tell(self, entity: Entity, required: Sequence[Attribute] = ()) -> None:
        """Add a passage about the entity with one to three attributes, `required` among them."""
        draw = self.draw
        attributes = list(required)
        count = 1 + int(draw.rng.random() * 3)
        choices = OF_KIND[entity.kind]
        for _ in range(6):
            if len(attributes) >= count:
                break
            attribute = draw.pick(choices)
            if attribute not in attributes:
                attributes.append(attribute)
        for attribute in attributes:
            self.settle(entity, attribute)
        if len(attributes) > 1:
            draw.rng.shuffle(attributes)
        self.passages.append((tell(entity, attributes, draw), entity))


def compose(people: Sequence[Entity], level: Level, draw: Draw, *, noise: Sequence[str]) -> Context:
    """Compose the passages and questions of a context.

    `people` are the known people that the context is about; if `people` is empty, entities are invented.
    """
    b = _Builder(people, level, draw)
    rng = draw.rng
    subject, attribute = _main(b)
    for _ in range(level.rivals):
        _rival(b)
    for _ in range(level.conflicts):
        wrong = draw.value(attribute)
        target = b.passages[0][1]
        assert target is not None
        while wrong == target.facts[attribute.name]:
            wrong = draw.value(attribute)
        b.passages.append((gossip(target, attribute, wrong, draw), None))
    people_like = subject if subject.kind == "person" else None
    distractors = level.passages - len(b.passages) - level.noise
    while distractors > 0:
        is_confusable = (
            level.confusable
            > level.passages
            - level.noise
            - level.conflicts
            - level.hops
            - 2 * level.rivals
            - distractors
        )
        if is_confusable and people_like and not b.about_known:
            entity = b.entity("person", namesake=people_like.name)
        else:
            entity = b.entity(b.kind())
        shares_attribute = attribute.kind == entity.kind and rng.random() < 0.6
        required = [attribute] if shares_attribute else []
        if level.hops == 2 and distractors >= 2 and rng.random() < 0.35:
            distractors -= _chain(b, entity)
        else:
            b.tell(entity, required)
            distractors -= 1
    for _ in range(level.noise):
        b.passages.append((Passage(draw.pick(noise), (), "noise"), None))
    return _ask(b, subject, attribute)


def _main(b: _Builder) -> tuple[Entity, Attribute]:
    """Add the passages for the first question, the gold passage first; return its subject and attribute."""
    level, draw = b.level, b.draw
    if level.hops == 2:
        person = (
            b.entity("person")
            if level.confusable or b.about_known
            else b.entity("person" if draw.rng.random() < 0.7 else "thing")
        )
        _chain(b, person, level.answer)
        return person, b.chains[0][3]
    entity = b.entity("person") if level.confusable else b.entity(b.kind())
    attribute = _attribute(b, entity, level.answer)
    b.tell(entity, [attribute])
    return entity, attribute


def _attribute(b: _Builder, entity: Entity, answer: str) -> Attribute:
    """Draw an attribute of the entity, give it a value of the requested length, and return the attribute."""
    while True:
        attribute = b.draw.pick(OF_KIND[entity.kind])
        if answer == "any":
            b.settle(entity, attribute)
            return attribute
        words = {
            "firm": "long",
            "pet": "long",
            "person": "long",
            "river": "short",
            "year": "short",
        }.get(attribute.value, answer)
        if words != answer:
            continue
        b.settle(entity, attribute, answer)
        if (" " in entity.facts[attribute.name]) == (answer == "long"):
            return attribute


def _chain(b: _Builder, first: Entity, answer: str = "any") -> int:
    """Add two passages, the first naming the subject of the second; return the number of passages added."""
    options = [
        r
        for r in OF_KIND[first.kind]
        if r.leads_to and (not b.about_known or r.leads_to == "person")
    ]
    if not options:
        b.tell(first)
        return 1
    relation = b.draw.pick(options)
    assert relation.leads_to is not None
    b.settle(first, relation)
    second = b.entity(relation.leads_to, name=first.facts[relation.name])
    attribute = _attribute(b, second, answer)
    b.tell(second, [attribute])
    b.tell(first, [relation])
    b.chains.append((first, relation, second, attribute))
    return 2


def _rival(b: _Builder) -> None:
    """Add two passages with the first chain's relation and attribute, about other entities and values."""
    first, relation, second, attribute = b.chains[0]
    assert relation.leads_to is not None
    names = {entity.name for _, entity in b.passages if entity is not None}
    for _ in range(ATTEMPTS):
        other = b.entity(first.kind)
        b.settle(other, relation)
        end = b.entity(relation.leads_to, name=other.facts[relation.name])
        b.settle(end, attribute)
        differs = (
            end.facts[attribute.name] != second.facts[attribute.name]
        )  # known people may share a value
        if differs and end is not other and not names & {other.name, end.name}:
            break
    b.tell(end, [attribute])
    b.tell(other, [relation])


def _ask(b: _Builder, subject: Entity, main_attribute: Attribute) -> Context:
    """Order the passages, and return the context; the level describes its first question."""
    level, rng, draw = b.level, b.draw.rng, b.draw
    order = list(range(len(b.passages)))
    rng.shuffle(order)
    if level.gold is not None:
        gold_place = order.index(0)  # the gold passage was added first
        order[gold_place], order[level.gold] = order[level.gold], order[gold_place]
    place = {old: new for new, old in enumerate(order)}
    passages = tuple(b.passages[old][0] for old in order)
    where = {
        (f.subject, f.attribute): (place[old], f)
        for old, (p, _) in enumerate(b.passages)
        for f in p.facts
        if not f.rumour
    }

    questions: list[Question] = []
    for first, relation, second, attribute in b.chains:
        (bridge, _), (gold, fact) = (
            where[first.name, relation.name],
            where[second.name, attribute.name],
        )
        phrase = relation.phrase.replace("{n}", first.name)
        questions.append(
            Question(
                question_about(draw, attribute, phrase),
                (fact.value,),
                first.name,
                attribute.name,
                2,
                gold,
                fact,
                (bridge, gold),
            )
        )
    single_hop: list[Question] = []
    if level.questions > len(questions) or level.hops == 1:
        for old, (passage, entity) in enumerate(b.passages):
            for fact in passage.facts if entity is not None else ():
                attribute = BY_NAME[entity.kind, fact.attribute]  # type: ignore[union-attr]
                single_hop.append(
                    Question(
                        question_about(draw, attribute, fact.subject),
                        (fact.value,),
                        fact.subject,
                        fact.attribute,
                        1,
                        place[old],
                        fact,
                        (place[old],),
                    )
                )
    if level.hops == 1:
        main = next(
            i
            for i, q in enumerate(single_hop)
            if q.subject == subject.name and q.attribute == main_attribute.name
        )
        questions.append(single_hop.pop(main))
    rng.shuffle(single_hop)
    questions = questions[:1] + (questions[1:] + single_hop if level.questions > 1 else [])
    return Context(passages, tuple(questions[: level.questions]), b.about_known)


def question_about(draw: Draw, attribute: Attribute, subject: str) -> str:
    """Write a question about an attribute of the subject."""
    return draw.pick(attribute.questions).replace("{n}", subject)
