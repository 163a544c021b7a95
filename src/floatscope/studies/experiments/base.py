"""An experiment: a dataclass whose fields are its configuration, from a model and questions to a finding.

A worker makes a `Desk` for a model, has the experiment `prepare` once, and then calls `ask` for one question
after another; each gives labelled values, as a measure gives them of a trace, and joins the same tables and
figures. Importing this brings no torch: what runs a model is imported where it runs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import xarray as xr

from ...errors import UsageError
from ...measures.base import Measure
from ...sequences.prompt import Encoded
from ...tasks.conditions import Condition
from ...tasks.pool import Pool
from ...tasks.record import Record
from ...tasks.templates import Template
from ...trace import Trace
from .masked_answer import MaskedAnswer

if TYPE_CHECKING:
    from ...decode import AnySampler
    from ...instrument import Model

Tick = Callable[[], None]  # a sign of life


class Unusable(UsageError):
    """This question cannot be used: it is left out, and listed with the reason."""

    def __init__(self, why: str) -> None:
        super().__init__(why, "It is left out.")


@dataclass(frozen=True, eq=False)
class Desk:
    """A model, the questions it is asked, and how it decodes. The trained model, or its control."""

    model: "Model"
    sampler: "AnySampler"
    template: Template
    condition: Condition
    records: tuple[Record, ...]
    pool: Pool
    questions: int  # that are asked; those behind them are for choosing
    seed: int = 0
    trained: bool = True
    skip_bad: bool = False  # a prompt that does not fit is left out
    tick: Tick = lambda: None

    def record(self, index: int) -> Record:
        """As the condition has it."""
        return self.condition.apply(self.records[index], self.pool)

    def encoded(self, record: Record) -> Encoded:
        from ...decode.state import check_fits

        try:
            prompt = self.model.encode(self.template.prompt(record, self.condition))
            check_fits(self.model, len(prompt.ids), self.length)
        except UsageError as error:
            if not self.skip_bad:
                raise
            raise Unusable(str(error)) from error
        return prompt

    def prompt(self, index: int) -> Encoded:
        return self.encoded(self.record(index))

    @cached_property
    def length(self) -> int:
        """Masks of an answer."""
        return self.sampler.length

    def masked(self, index: int, prompt: Encoded | None = None) -> MaskedAnswer:
        """The gold answer before its first step, as this model would write it."""
        record = self.records[index]
        own = self.prompt(index) if prompt is None else prompt
        found = MaskedAnswer.spelled(self.model, own, record.answers[0], self.length)
        if found is None:
            raise Unusable(f"its answer has more than the {self.length} tokens that are decoded")
        return found


@dataclass(frozen=True)
class Experiment(Measure):
    """One question put to a model by changing it, or what it reads."""

    others: ClassVar[int] = 0  # questions, other than those asked, that `prepare` chooses by

    def prepare(self, desk: Desk) -> Any:
        """What is the same for all questions of a model; it may hold tensors, never the model."""
        return None

    def ask(self, desk: Desk, index: int, prepared: Any) -> xr.Dataset:
        """Values of one question; raises Unusable where there can be none."""
        raise TypeError(f"{type(self).__name__} must define ask")

    def compute(self, trace: Trace) -> xr.Dataset:
        raise UsageError(
            f"{type(self).__name__} is done to a model, and not read off a trace",
            "Run it as a study: floatscope study.",
        )
