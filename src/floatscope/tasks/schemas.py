"""Define the schemas of record files as pydantic models, and convert their objects to records.

There is one class per schema. The fields of the class define the schema, and its method `parts` returns the
question, the answers and the passages. Types are strict: a number is not accepted as a string. Texts must not
be blank. `readers` reads files and reports the place of an error.
"""

import hashlib
from typing import Annotated, Any, ClassVar
from urllib.parse import unquote

from pydantic import AfterValidator, AliasChoices, BaseModel, ConfigDict, Field, model_validator

from .record import Passage, Record, gold_text, is_blank


class Problem(ValueError):
    """Raised for an error that pydantic's types cannot express, with the field and a remedy."""

    def __init__(self, field: str, problem: str, remedy: str) -> None:
        super().__init__(problem)
        self.field, self.problem, self.remedy = field, problem, remedy


def _text(text: str) -> str:
    if "\0" in text:
        raise Problem(
            "", "contains a NUL character, at which some tokenizers end a text", "Remove it."
        )
    return text


def _not_blank(text: str) -> str:
    if is_blank(text):
        raise Problem("", "is empty", "Fill it in or remove the record.")
    return text


def _not_none(answers: list[str]) -> list[str]:
    if not answers:
        raise Problem("", "is an empty list", "Give at least one right answer.")
    return answers


Line = Annotated[str, AfterValidator(_text)]  # may be empty, such as a title
Text = Annotated[Line, AfterValidator(_not_blank)]
Answers = Annotated[list[Text], AfterValidator(_not_none)]


class Schema(BaseModel):
    """Base class of the schemas. An object matches a schema if it has all fields of a set in `marks`."""

    model_config = ConfigDict(strict=True, extra="ignore", populate_by_name=True)
    title: ClassVar[str] = ""
    layout: ClassVar[str] = ""
    marks: ClassVar[tuple[frozenset[str], ...]] = ()

    id: str | int | None = None

    @model_validator(mode="before")
    @classmethod
    def _one_answer_is_a_list(cls, data: Any) -> Any:
        """Turn `answer: "x"` and `output: "x"` into a list with one answer."""
        if isinstance(data, dict):
            lone = ("answer", "answers", "output")
            return {k: [v] if k in lone and isinstance(v, str) else v for k, v in data.items()}
        return data

    def parts(self) -> tuple[str, list[str], list[Passage]]:
        """Return the question, the right answers and the passages."""
        raise TypeError(f"{type(self).__name__} must define parts")

    def record(self, id: str, where: str) -> Record:
        """Convert to a Record; `id` is the name of the record if the file gives no name."""
        question, answers, passages = self.parts()
        aliases = tuple(dict.fromkeys(answers))
        name = id if self.id is None else str(self.id)
        cluster = gold_text(passages)
        return Record(name, question, aliases, tuple(passages), where, cluster=cluster)


class _Ctx(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", populate_by_name=True)
    text: Text
    title: Line | None = None
    isgold: bool | None = None
    hasanswer: bool | None = Field(None, validation_alias=AliasChoices("hasanswer", "has_answer"))


class Ctxs(Schema):
    """Data files of Lost in the Middle (Liu et al. 2307.03172) and of DPR.

    Passages whose `isgold` is true are gold. If no passage has the field `isgold`, the first passage whose
    `hasanswer` is true is gold.
    """

    title = "lost-in-the-middle, DPR"
    layout = "{question, answers, ctxs: [{title, text, isgold, hasanswer}]}"
    marks = (frozenset({"ctxs"}),)

    question: Text
    answers: Answers
    ctxs: list[_Ctx]

    def parts(self) -> tuple[str, list[str], list[Passage]]:
        gold = [bool(c.isgold) for c in self.ctxs]
        if all(c.isgold is None for c in self.ctxs):
            first = next((i for i, c in enumerate(self.ctxs) if c.hasanswer), None)
            gold = [i == first for i in range(len(self.ctxs))]
        passages = [Passage(c.text, c.title or "", g) for c, g in zip(self.ctxs, gold, strict=True)]
        return self.question, self.answers, passages


class GoldApart(Schema):
    """Records with the gold passage and the distractors in separate fields.

    A hash of the question determines the index of the gold passage.
    """

    title = "gold and distractors apart"
    layout = "{question, answers, gold: {title, text}, distractors: [{title, text}]}"
    marks = (frozenset({"distractors"}),)

    question: Text
    answers: Answers
    gold: _Ctx
    distractors: list[_Ctx]

    def parts(self) -> tuple[str, list[str], list[Passage]]:
        passages = [Passage(c.text, c.title or "") for c in self.distractors]
        digest = hashlib.blake2b(self.question.encode(), digest_size=8).digest()
        place = int.from_bytes(digest, "big") % (len(passages) + 1)
        passages.insert(place, Passage(self.gold.text, self.gold.title or "", gold=True))
        return self.question, self.answers, passages


class _Segment(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")
    segment: Text
    title: Line | None = None


class Segments(Schema):
    """The data files of Attention Floating (2601.07894), which mark no passage as gold."""

    title = "Attention-Floating"
    layout = "{input|query|question, output|answer|answers, passage: [{segment}]}"
    marks = (frozenset({"passage"}),)

    question: Text = Field(validation_alias=AliasChoices("question", "query", "input"))
    answers: Answers = Field(validation_alias=AliasChoices("answers", "answer", "output"))
    passage: list[_Segment]

    def parts(self) -> tuple[str, list[str], list[Passage]]:
        return (
            self.question,
            self.answers,
            [Passage(p.segment, p.title or "") for p in self.passage],
        )


class HaluEval(Schema):
    """HaluEval's question answering (2305.11747): the only passage is `knowledge`, which is gold."""

    title = "HaluEval"
    layout = "{knowledge, question, right_answer, hallucinated_answer}"
    marks = (frozenset({"knowledge"}), frozenset({"right_answer"}))

    knowledge: Text
    question: Text
    right_answer: Text

    def parts(self) -> tuple[str, list[str], list[Passage]]:
        return self.question, [self.right_answer], [Passage(self.knowledge, gold=True)]


class KeyValue(Schema):
    """Key-value retrieval of Lost in the Middle (2307.03172); every pair becomes a passage."""

    title = "key-value retrieval"
    layout = "{ordered_kv_records: [[key, value], ...], key, value}"
    marks = (frozenset({"ordered_kv_records"}),)

    ordered_kv_records: list[Annotated[list[Text], Field(min_length=2, max_length=2)]]
    key: Text
    value: Text

    def parts(self) -> tuple[str, list[str], list[Passage]]:
        passages = [
            Passage(f'"{key}": "{value}"', gold=[key, value] == [self.key, self.value])
            for key, value in self.ordered_kv_records
        ]
        if sum(p.gold for p in passages) != 1:
            raise Problem(
                "ordered_kv_records",
                "does not contain the pair of `key` and `value` exactly once",
                "Put it there once.",
            )
        return f'Which value belongs to the key "{self.key}"?', [self.value], passages


class Plain(Schema):
    """Records written by hand. `gold` is the index of the gold passage, from 0."""

    title = "plain"
    layout = "{question, answers|answer, passages: [text], gold: number}"
    marks = (frozenset({"question", "answers"}), frozenset({"question", "answer"}))

    question: Text
    answers: Answers = Field(validation_alias=AliasChoices("answers", "answer"))
    passages: list[Text] = []
    gold: int | None = None

    def parts(self) -> tuple[str, list[str], list[Passage]]:
        if self.gold is not None and not 0 <= self.gold < len(self.passages):
            raise Problem(
                "gold",
                f"is {self.gold}, but there are {len(self.passages)} passages",
                "It counts passages from 0.",
            )
        passages = [Passage(text, gold=i == self.gold) for i, text in enumerate(self.passages)]
        return self.question, self.answers, passages


class Squad(Schema):
    """One question of a SQuAD file (1606.05250) with its paragraph; `files` splits the SQuAD document.

    Titles in SQuAD are spelled as in web addresses ("Super_Bowl_50"), and are converted to normal text.
    """

    title = "SQuAD"
    layout = "{data: [{title, paragraphs: [{context, qas: [{id, question, answers: [{text}]}]}]}]}"

    context: Text
    article: Line | None = None
    question: Text
    answers: Answers

    @model_validator(mode="before")
    @classmethod
    def _only_texts(cls, data: Any) -> Any:
        answers = data.get("answers") if isinstance(data, dict) else None
        if isinstance(answers, list) and all(isinstance(a, dict) and "text" in a for a in answers):
            return {**data, "answers": [a["text"] for a in answers]}
        return data

    def parts(self) -> tuple[str, list[str], list[Passage]]:
        return (
            self.question,
            self.answers,
            [Passage(self.context, unquote(self.article or "").replace("_", " "), gold=True)],
        )


# In the order of recognition: `Plain` has the fewest required fields and comes last.
BY_LINE: tuple[type[Schema], ...] = (Ctxs, GoldApart, KeyValue, HaluEval, Segments, Plain)
ALL: tuple[type[Schema], ...] = (*BY_LINE[:-1], Squad, Plain)
