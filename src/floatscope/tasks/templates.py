"""Define templates, which turn a record under a condition into a prompt with named parts.

All models of a comparison use the same template. A closed-book prompt contains no text of the layout for
passages. A template only writes text: it neither chooses passages nor uses a tokenizer.
"""

from dataclasses import dataclass

from ..errors import UsageError
from ..sequences.prompt import TEMPLATE, Part, Prompt
from .conditions import Condition
from .record import Asks, Passage, Record
from .world.layout import ANSWER, BREAK, passage_parts, prompt_parts, question_parts

# What an answer should be like.
_INSTRUCTIONS = {
    Asks.WORDS: "Answer the question with a few words.",
    Asks.SENTENCES: "Answer the question in one or two full sentences.",
    Asks.SUMMARY: "Answer the question with a summary of two or three sentences.",
}


@dataclass(frozen=True)
class Template:
    """Base class of templates, which write a record as a prompt; a study records their fields."""

    def prompt(self, record: Record, condition: Condition | None = None) -> Prompt:
        """Write the prompt of a record.

        Args:
            record (Record): A record to which the condition has been applied already.
            condition (Condition): The condition; by default closed book if the record has no passages.

        Returns:
            A prompt with the regions "instruction", "passage 1" (and so on for each passage) and "question".
            All other text is in the region "template".
        """
        without = not record.passages and record.asks is not Asks.CONTINUATION
        condition = condition or Condition(closed_book=without)
        condition.require(record)
        if condition.closed_book:
            record = record.closed_book()
        return self._write(record, condition.question_first)

    def _write(self, record: Record, question_first: bool) -> Prompt:
        raise TypeError(f"{type(self).__name__} must define _write")


@dataclass(frozen=True)
class PlainTemplate(Template):
    """The layout of `Prompt.rag`. A continuation has no layout: its text is the whole prompt.

    Args:
        instruction (str): The instruction before the passages. By default an instruction that fits the kind
            of text that the record asks for; this default is the same with and without passages.
        closed_instruction (str): The instruction of a prompt without passages. The default is the same as the
            default of `instruction`.
        chat (bool): Whether the prompt is wrapped in the model's chat template. By default the prompt is
            wrapped if the model has a chat template; a continuation is not wrapped.
    """

    instruction: str | None = None
    closed_instruction: str | None = None
    chat: bool | None = None

    def _write(self, record: Record, question_first: bool) -> Prompt:
        if record.asks is Asks.CONTINUATION:
            return Prompt.plain(record.question, chat=bool(self.chat))
        instruction = self.instruction if record.passages else self.closed_instruction
        prompt = Prompt.rag(
            record.question,
            [shown(passage) for passage in record.passages],
            gold=record.gold,
            instruction=_INSTRUCTIONS[record.asks] if instruction is None else instruction,
            chat=self.chat,
        )
        return _question_first(prompt) if question_first else prompt


@dataclass(frozen=True)
class WorldTemplate(Template):
    """The layout on which the embedded pair was trained (`world.layout`); the question is last by default."""

    def _write(self, record: Record, question_first: bool) -> Prompt:
        if record.asks is not Asks.WORDS:
            raise UsageError(
                f"record {record.label} asks for a long answer, which the world's layout does not support",
                "Use the plain template (template plain or auto).",
            )
        texts = [shown(passage) for passage in record.passages]
        pairs = prompt_parts(record.question, texts)
        if question_first and texts:
            label, question, _ = question_parts(record.question)
            end = (TEMPLATE, ANSWER.removeprefix(BREAK))
            pairs = [label, question, (TEMPLATE, BREAK), *passage_parts(texts), end]
        gold = None if record.gold is None else from_one(f"passage {record.gold}")
        return Prompt(tuple(Part(from_one(n), t) for n, t in pairs), gold=gold, chat=False)


def shown(passage: Passage) -> str:
    """Return the text of a passage in a prompt, after its title if it has one."""
    return f"(Title: {passage.title}) {passage.text}" if passage.title else passage.text


def _question_first(prompt: Prompt) -> Prompt:
    """Return the prompt with the question and its label moved before the label of the first passage."""
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
    """Convert a part name of the world to a region name: "passage 0" becomes "passage 1"."""
    word, _, number = name.partition(" ")
    return f"{word} {int(number) + 1}" if word == "passage" else name


def template_of(name: str, chat: bool | None) -> Template | None:
    """Return the template called `name`; None for "auto" without `chat`, where the records decide."""
    if name == "plain" or (name == "auto" and chat is not None):
        return PlainTemplate(chat=chat)
    if name not in ("auto", "world"):
        raise UsageError(f"no template {name!r}", "There are: auto, plain, world.")
    if name == "world" and chat:
        raise UsageError("the world's template has no chat form", "Drop --chat.")
    return WorldTemplate() if name == "world" else None
