"""Define the messages that a page may send, and check their shapes, types and sizes.

The messages are pydantic models with limits. Every message is checked before any other module reads it.
Values that depend on a model (its layers, its context, its samplers) are checked by the worker of the model.
"""

from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    model_validator,
)

from .limits import LIMITS

_RUN = Annotated[str, Field(pattern=r"^r[0-9]{1,9}$")]
_MODEL = Annotated[str, Field(pattern=r"^m[0-9]{1,4}$")]
_Index = Annotated[StrictInt, Field(ge=0, le=1_000_000)]
_Text = Annotated[StrictStr, Field(max_length=LIMITS["prompt_chars"])]
_Name = Annotated[StrictStr, Field(min_length=1, max_length=100)]
_Positions = Annotated[list[_Index], Field(min_length=1, max_length=LIMITS["positions"])]
_Some = Annotated[list[_Index], Field(min_length=1, max_length=1024)] | None
_Names = Annotated[list[_Name], Field(min_length=1, max_length=LIMITS["passages"] + 16)]
_Choice = Annotated[StrictInt, Field(ge=-1, le=1_000_000)]  # −1: none is chosen
_Value = StrictInt | StrictFloat | StrictBool | Annotated[StrictStr, Field(max_length=100)] | None


class Message(BaseModel):
    """Base class of messages, which rejects unknown fields and converts no value to another type."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Prompt(Message):
    """A prompt: plain text, or a question with passages."""

    text: _Text | None = None
    question: _Text | None = None
    passages: Annotated[list[_Text], Field(max_length=LIMITS["passages"])] = []
    gold: _Index | None = None
    instruction: _Text | None = None
    chat: StrictBool | None = None
    layout: Literal["auto", "plain", "world"] = "auto"

    @model_validator(mode="after")
    def _one_of_two(self) -> "Prompt":
        if (self.text is None) == (self.question is None):
            raise ValueError("give either text, or question and passages")
        if self.layout == "world" and (self.text is not None or self.instruction or self.chat):
            raise ValueError("the world's layout has a question, no instruction and no chat form")
        if self.text is not None and (self.passages or self.gold is not None or self.instruction):
            raise ValueError("passages, gold and instruction belong to a question")
        texts = [self.text or "", self.question or "", self.instruction or "", *self.passages]
        if sum(map(len, texts)) > LIMITS["prompt_chars"]:
            raise ValueError(f"the prompt has more than {LIMITS['prompt_chars']} characters")
        return self


class Sampler(Message):
    name: _Name
    settings: Annotated[dict[_Name, _Value], Field(max_length=32)] = {}


class _Touch(Message):
    step: _Index | None = None


class Force(_Touch):
    kind: Literal["force"]
    position: _Index
    token: _Index


class Remask(_Touch):
    kind: Literal["remask"]
    positions: _Positions


class Ablate(_Touch):
    kind: Literal["ablate"]
    heads: Annotated[
        list[Annotated[list[_Index], Field(min_length=2, max_length=2)]],
        Field(min_length=1, max_length=4096),
    ]
    to: Literal["zero", "mean"] = "zero"


class _AttentionTouch(_Touch):
    layers: _Some = None
    heads: _Some = None


class Hide(_AttentionTouch):
    kind: Literal["hide"]
    positions: _Positions


class Value(_AttentionTouch):
    kind: Literal["value"]
    positions: _Positions
    to: Literal["zero", "mean"] = "zero"


class CutTouch(_AttentionTouch):
    kind: Literal["cut"]
    queries: _Names
    keys: _Names


Touch = Annotated[Force | Remask | Ablate | Hide | Value | CutTouch, Field(discriminator="kind")]
Touches = Annotated[list[Touch], Field(max_length=LIMITS["touches"])]


class BranchOrigin(Message):
    """The run and step from which a branch starts, and the indices of the edits that the branch drops."""

    run: _RUN
    step: _Index
    without: Annotated[list[_Index], Field(max_length=LIMITS["touches"])] | None = None


class Run(Message):
    """A request for a run.

    The field `from` of the message is called `origin` in this class, because `from` is a Python keyword.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    model: _MODEL | None = None
    prompt: Prompt | None = None
    sampler: Sampler | None = None
    touches: Touches = []
    origin: BranchOrigin | None = Field(default=None, alias="from")

    @model_validator(mode="after")
    def _whole(self) -> "Run":
        if self.origin is None:
            if self.model is None or self.prompt is None:
                raise ValueError("give model and prompt, or from")
            _require_steps(self.touches)
        return self


def _require_steps(touches: Touches) -> None:
    if any(touch.step is None for touch in touches):
        raise ValueError("each touch needs a step unless `from` is given")


class Tokens(Message):
    model: _MODEL
    prompt: Prompt
    length: Annotated[StrictInt, Field(ge=0, le=1_000_000)] = 0


class Candidates(Message):
    run: _RUN
    step: _Index
    position: _Index
    top: Annotated[StrictInt, Field(ge=1, le=50)] = 5


class Pattern(Message):
    run: _RUN
    step: _Index
    layer: _Index
    head: _Index
    row: _Index | None = None


class Rank(Message):
    """A request to rank layers and heads by their effect on a position's token, at a step of a run."""

    run: _RUN
    step: _Index
    position: _Index


class RunReference(Message):
    run: _RUN


class RunReferences(Message):
    runs: Annotated[list[_RUN], Field(min_length=1, max_length=1000)]


class Export(Message):
    runs: Annotated[list[_RUN], Field(min_length=1, max_length=LIMITS["export_runs"])]
    title: Annotated[StrictStr, Field(max_length=200)] = ""


class StateFrom(Message):
    run: _Index
    step: _Index


class StateRun(Message):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    fingerprint: _Name
    model: Annotated[StrictStr, Field(max_length=1000)] = ""
    prompt: Prompt
    sampler: Sampler | None = None
    touches: Touches = []
    origin: StateFrom | None = Field(default=None, alias="from")

    @model_validator(mode="after")
    def _has_steps(self) -> "StateRun":
        _require_steps(self.touches)
        return self


class View(Message):
    """The viewer's selection and options; for an option that is None, the viewer keeps its present value."""

    step: _Index | None = None
    layer: _Choice | None = None
    head: _Choice | None = None
    key: _Choice | None = None
    colour: Literal["share", "lift", "change", "difference"] | None = None
    grid: Literal["peak", "token", "gold"] | None = None
    end: StrictBool = False
    pattern: Annotated[StrictInt, Field(ge=0, le=1)] | None = None
    row: _Index | None = None


class State(Message):
    """The state in a page's address: every value that a machine with the same models needs for the page."""

    v: Literal[1]
    runs: Annotated[list[StateRun], Field(min_length=1, max_length=LIMITS["state_runs"])]
    view: View = View()

    @model_validator(mode="after")
    def _has_origins(self) -> "State":
        for i, run in enumerate(self.runs):
            parents = set(range(len(self.runs))) - {i}
            if run.origin is not None and run.origin.run not in parents:
                raise ValueError(f"run {i} is from run {run.origin.run}, which is not in the link")
        return self


def plain(message: Message) -> dict[str, Any]:
    """Return a message as a dict of JSON values, without fields that are None."""
    return message.model_dump(mode="json", by_alias=True, exclude_none=True)
