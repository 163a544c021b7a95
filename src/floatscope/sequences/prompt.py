"""A prompt: text made of named parts, and the tokens of each part.

Every part is tokenised once and separately, so a part's span is exact: no token straddles two parts. Text
from a user or a data set never becomes special tokens; template text may.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..errors import ModelError, UsageError, foreign
from .chat import rendered
from .vocabulary import Vocabulary

TEMPLATE = "template"
RESERVED = ("masked", "revealed", "answer")
_SENTINEL = "\ue000floatscope\ue000"
# white space that templates do not write, and that templates that trim messages remove
_EDGE = "\u2003"


@dataclass(frozen=True)
class Part:
    """A named piece of a prompt's text.

    Args:
        name: region of the piece's tokens; parts of the same name form one region. "template" parts may
            contain special tokens. "masked", "revealed" and "answer" are reserved.
        text: the text.
    """

    name: str
    text: str

    def __post_init__(self) -> None:
        if self.name in RESERVED or not self.name:
            raise UsageError(
                f"a part cannot be called {self.name!r}",
                f"{', '.join(RESERVED)} are what an answer's positions are called.",
            )
        if not isinstance(self.text, str):
            raise UsageError(
                f"part {self.name!r} holds {self.text!r:.80}: expected text",
                'Write Part("question", "Who?").',
            )


@dataclass(frozen=True, init=False)
class Prompt:
    """A prompt: text made of named parts.

    Args:
        parts: the parts in order, or a text, which becomes one part called "prompt".
        gold: name of the part that contains the answer; None (default) if no part does.
        chat: wrap the text in the model's chat template. None (default) does so if the model has one.

    Example:
        ```python
        prompt = fs.Prompt([fs.Part("fact", "Ada was born in London. "), fs.Part("question", "Where?")])
        ```
    """

    parts: tuple[Part, ...]
    gold: str | None = None  # the name of the part that holds the answer
    chat: bool | None = None

    def __init__(
        self, parts: str | Iterable[Any], gold: str | None = None, chat: bool | None = None
    ) -> None:
        if isinstance(parts, str):
            parts = (Part("prompt", parts),)
        pieces = tuple(parts) if isinstance(parts, Iterable) else ()
        if not isinstance(parts, Iterable) or not all(isinstance(part, Part) for part in pieces):
            raise UsageError(
                f"the parts of a prompt are {pieces or parts!r:.80}: expected text, or Part objects",
                'Write Prompt("text"), Prompt([Part("question", "text")]), or use Prompt.rag.',
            )
        for name, value in (("parts", pieces), ("gold", gold), ("chat", chat)):
            object.__setattr__(self, name, value)

    @classmethod
    def plain(cls, text: str, *, chat: bool | None = None) -> "Prompt":
        """Make a prompt of one part, called "prompt".

        Args:
            text: the text.
            chat: wrap the text in the model's chat template. None (default) does so if the model has one.
        """
        return cls(text, chat=chat)

    @classmethod
    def rag(
        cls,
        question: str,
        passages: Iterable[str] = (),
        *,
        gold: int | None = None,
        instruction: str = "Answer the question with a few words.",
        chat: bool | None = None,
    ) -> "Prompt":
        """Make a prompt of an instruction, numbered passages and a question, each a region of its own.

        The regions are "instruction", "passage 1", "passage 2", … and "question"; the text between them
        is "template".

        Args:
            question: the question, not empty.
            passages: texts of the passages, in order; none by default.
            gold: index of the passage that contains the answer, from 0; None (default) if no passage does.
            instruction: first part of the prompt; "" leaves it out.
            chat: wrap the text in the model's chat template. None (default) does so if the model has one.
        """
        if isinstance(passages, str) or not isinstance(passages, Iterable):
            raise UsageError(
                f"passages = {passages!r:.80}: expected a list of texts",
                "Write Prompt.rag(question, [passage]).",
            )
        texts = list(passages)
        if not question.strip():
            raise UsageError("the question is empty", "Give one.")
        if gold is not None and not 0 <= gold < len(texts):
            raise UsageError(
                f"gold = {gold}, but there are {len(texts)} passages",
                "gold counts passages from 0.",
            )
        parts = [Part("instruction", instruction)] if instruction else []
        for number, text in enumerate(texts, 1):
            parts += [
                Part(TEMPLATE, f"\n\nPassage {number}:"),
                Part(f"passage {number}", f" {text}"),
            ]
        parts += [
            Part(TEMPLATE, "\n\nQuestion:" if parts else "Question:"),
            Part("question", f" {question}"),
            Part(TEMPLATE, "\nAnswer:"),
        ]
        return cls(tuple(parts), gold=None if gold is None else f"passage {gold + 1}", chat=chat)

    @property
    def text(self) -> str:
        """The text of all parts."""
        return "".join(part.text for part in self.parts)


@dataclass(frozen=True)
class Encoded:
    """A prompt as token ids of one model, with the region of each token."""

    ids: tuple[int, ...]
    regions: tuple[str, ...]
    gold: str | None = None
    names: tuple[str, ...] = field(init=False)  # the regions, in order of appearance

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", tuple(dict.fromkeys(self.regions)))

    def positions(self, region: str) -> list[int]:
        """Return the positions of the tokens of a region; empty if the prompt has no such region."""
        return [i for i, name in enumerate(self.regions) if name == region]


PromptLike = str | Prompt | Encoded | Sequence[int]


def encode(model: Vocabulary, prompt: Any) -> Encoded:
    """Return a prompt as token ids with regions, after checking the ids; given ids are used unchanged."""
    if isinstance(prompt, Encoded):
        encoded = prompt
    elif isinstance(prompt, str | Prompt):
        encoded = _tokenise(model, Prompt.plain(prompt) if isinstance(prompt, str) else prompt)
    else:
        ids = _ids(prompt)
        encoded = Encoded(ids, ("prompt",) * len(ids))
    if not encoded.ids:
        raise UsageError("the prompt is empty", "Give at least one token.")
    wrong = [i for i in encoded.ids if not 0 <= i < model.vocab_size]
    if wrong:
        raise UsageError(
            f"token id {wrong[0]} is outside the vocabulary of {model.vocab_size}",
            "The ids belong to another tokenizer.",
        )
    return encoded


def _ids(prompt: Any) -> tuple[int, ...]:
    """Convert a sequence of whole numbers, such as an array or a tensor, to a tuple of Python ints."""
    if isinstance(prompt, Iterable) and not isinstance(prompt, bytes | bytearray | Mapping):
        ids = [getattr(i, "item", lambda i=i: i)() for i in _plain(prompt)]
        if all(isinstance(i, int) and not isinstance(i, bool) for i in ids):
            return tuple(ids)
    if hasattr(prompt, "records") or hasattr(prompt, "question"):
        raise UsageError(
            "a task record is no prompt: the question has no layout yet",
            "Ask records with fs.evaluate(model, records); trace them as "
            "[fs.tasks.PlainTemplate().prompt(record) for record in records].",
        )
    raise UsageError(
        f"a prompt is {prompt!r:.80}: expected text, a Prompt or a list of token ids",
        "Decode bytes first; several prompts are a list of texts, or of lists of ids.",
    )


def _plain(prompt: Iterable[Any]) -> list[Any]:
    return prompt.tolist() if hasattr(prompt, "tolist") else list(prompt)


def _tokenise(model: Vocabulary, prompt: Prompt) -> Encoded:
    tokenizer = model.tokenizer
    if tokenizer is None:
        raise UsageError(
            f"{model.name} has no tokenizer", "Give token ids, or load(..., tokenizer=...)."
        )
    if not prompt.text.strip():
        raise UsageError("the prompt is empty", "Give some text.")
    for part in prompt.parts:
        _require_text(part)
    chat = model.chat if prompt.chat is None else prompt.chat
    if chat and not getattr(tokenizer, "chat_template", None):
        raise UsageError(f"{model.name} has no chat template", "Use chat=False.")
    if chat:
        before, message, after = _in_template(model, prompt.parts)
        lead, parts = [], (Part(TEMPLATE, before), *message, Part(TEMPLATE, after))
    else:
        lead, parts = leading(tokenizer), prompt.parts
    ids, regions = list(lead), [TEMPLATE] * len(lead)
    with foreign(ModelError, f"the tokenizer of {model.name} fails", "Copy its files again."):
        for part in parts:
            new = tokenizer(
                part.text,
                add_special_tokens=False,
                split_special_tokens=part.name != TEMPLATE,
            )["input_ids"]
            ids += new
            regions += [part.name] * len(new)
    return Encoded(tuple(ids), tuple(regions), prompt.gold)


def _require_text(part: Part) -> None:
    """Refuse text with a lone surrogate (half a character), which no tokenizer or file can represent."""
    try:
        part.text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UsageError(
            f"{part.name}: character {error.start} is a lone surrogate ({part.text[error.start]!r}), "
            "which is half of a character",
            "Read the text as UTF-8, or replace it: text.encode('utf-8', 'replace').decode().",
        ) from error


def _in_template(model: Vocabulary, parts: tuple[Part, ...]) -> tuple[str, tuple[Part, ...], str]:
    """Return the template's text before a user message, the message's parts, and the text after them."""
    message = {"role": "user", "content": _EDGE + _SENTINEL + _EDGE}
    chat = rendered(model.tokenizer, [message], model.name, **model.template_arguments)
    pieces = chat.split(_SENTINEL)
    if len(pieces) != 2:
        raise ModelError(
            f"the chat template of {model.name} shows a message {len(pieces) - 1} times: "
            "expected once, unchanged",
            "Correct the template, or use chat=False.",
        )
    before, after = pieces
    if not before.endswith(_EDGE):
        parts = _trimmed(parts, 0, str.lstrip)
    if not after.startswith(_EDGE):
        parts = _trimmed(parts, -1, str.rstrip)
    return before.removesuffix(_EDGE), parts, after.removeprefix(_EDGE)


def _trimmed(parts: tuple[Part, ...], end: int, strip: Callable[[str], str]) -> tuple[Part, ...]:
    """Return the parts without white space at one end of their joined text, which must have other text."""
    trimmed = list(parts)
    while not strip(trimmed[end].text):
        trimmed.pop(end)
    trimmed[end] = replace(trimmed[end], text=strip(trimmed[end].text))
    return tuple(trimmed)


def leading(tokenizer: Any) -> list[int]:
    """Return the token ids that the tokenizer puts before every text, such as a beginning-of-text token."""
    firsts = (tokenizer.bos_token_id, getattr(tokenizer, "cls_token_id", None))
    if firsts == (None, None):
        return []
    first = tokenizer("a")["input_ids"][0]
    return [first] if first in firsts else []
