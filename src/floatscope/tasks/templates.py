"""From a record under a condition to a prompt with named parts.

One template serves every model of a comparison, and closed book keeps nothing of the retrieval
scaffolding. A template writes text; it neither chooses passages nor knows a tokenizer.
"""

from dataclasses import dataclass

from ..errors import UsageError
from ..sequences.prompt import TEMPLATE, Part, Prompt
from .conditions import Condition
from .record import Passage, Record
from .world.layout import ANSWER, BREAK, passage_parts, prompt_parts, question_parts

_SHORT = "Answer the question with a few words."


@dataclass(frozen=True)
class Template:
    """How a record is put to a model; its fields are what a study records of it."""

    def prompt(self, record: Record, condition: Condition | None = None) -> Prompt:
        """The prompt of a record to which the condition has been applied.

        Regions: "instruction", "passage 1" and so on, "question"; all else is "template".
        """
        condition = condition or Condition(closed_book=not record.passages)
        if condition.closed_book:
            record = record.closed_book()
        elif not record.passages:
            raise UsageError(
                f"record {record.label} has no passages, and {condition.name!r} asks for some",
                "Use closed_book=True for it, or add passages.",
            )
        return self._write(record, condition.question_first)

    def _write(self, record: Record, question_first: bool) -> Prompt:
        raise TypeError(f"{type(self).__name__} must define _write")


@dataclass(frozen=True)
class PlainTemplate(Template):
    """`Prompt.rag`'s layout. By default both instructions are one, so that only passages differ."""

    instruction: str = _SHORT
    closed_instruction: str = _SHORT
    chat: bool | None = None

    def _write(self, record: Record, question_first: bool) -> Prompt:
        prompt = Prompt.rag(
            record.question,
            [shown(passage) for passage in record.passages],
            gold=record.gold,
            instruction=self.instruction if record.passages else self.closed_instruction,
            chat=self.chat,
        )
        return _question_first(prompt) if question_first else prompt


@dataclass(frozen=True)
class WorldTemplate(Template):
    """The layout the embedded pair was trained on (`world.layout`); it saw the question last only."""

    def _write(self, record: Record, question_first: bool) -> Prompt:
        texts = [shown(passage) for passage in record.passages]
        pairs = prompt_parts(record.question, texts)
        if question_first and texts:
            label, question, _ = question_parts(record.question)
            end = (TEMPLATE, ANSWER.removeprefix(BREAK))
            pairs = [label, question, (TEMPLATE, BREAK), *passage_parts(texts), end]
        gold = None if record.gold is None else from_one(f"passage {record.gold}")
        return Prompt(tuple(Part(from_one(n), t) for n, t in pairs), gold=gold, chat=False)


def shown(passage: Passage) -> str:
    """A passage as a model reads it; the title belongs to it."""
    return f"(Title: {passage.title}) {passage.text}" if passage.title else passage.text


def _question_first(prompt: Prompt) -> Prompt:
    """The same parts, with the question and its label before the first passage's label."""
    parts = list(prompt.parts)
    end = parts.pop()
    label, question = parts[-2:]
    lead = [p for p in parts if p.name == "instruction"]
    passages = parts[len(lead) : -2]
    if not lead:  # the first label of a prompt begins without a line break
        label = Part(TEMPLATE, label.text.lstrip("\n"))
        passages = [Part(passages[0].name, "\n\n" + passages[0].text.lstrip("\n")), *passages[1:]]
    return Prompt((*lead, label, question, *passages, end), prompt.gold, prompt.chat)


def from_one(name: str) -> str:
    """The world counts passages from 0, regions from 1."""
    word, _, number = name.partition(" ")
    return f"{word} {int(number) + 1}" if word == "passage" else name


def template_of(name: str, chat: bool | None) -> Template | None:
    """A template by name; "auto" leaves the choice to the records."""
    if name == "plain" or (name == "auto" and chat is not None):
        return PlainTemplate(chat=chat)
    if name not in ("auto", "world"):
        raise UsageError(f"no template {name!r}", "There are: auto, plain, world.")
    if name == "world" and chat:
        raise UsageError("the world's template has no chat form", "Drop --chat.")
    return WorldTemplate() if name == "world" else None
