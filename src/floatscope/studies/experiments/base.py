"""Define the base class of experiments, and the context in which an experiment runs.

An experiment is a dataclass whose fields are its configuration. A worker creates an `ExperimentContext` for a
model, calls `prepare` once, and then calls `ask` for each question in turn. `ask` returns a labelled dataset,
as a measure of a trace does, so that the same code writes the tables and figures of experiments and measures.
Importing this module does not import torch; code that runs a model is imported in the functions that run it.
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

Tick = Callable[[], None]  # a heartbeat


class Unusable(UsageError):
    """The error for a question that cannot be used; the question is left out and listed with the reason."""

    def __init__(self, why: str) -> None:
        super().__init__(why, "It is left out.")


@dataclass(frozen=True, eq=False)
class ExperimentContext:
    """The inputs of an experiment: a trained model or untrained control, the questions and the sampler."""

    model: "Model"
    sampler: "AnySampler"
    template: Template
    condition: Condition
    records: tuple[Record, ...]
    pool: Pool
    questions: int  # number of records that are asked; later records are for choosing
    seed: int = 0
    trained: bool = True
    skip_bad: bool = False  # a prompt that does not fit is left out
    tick: Tick = lambda: None

    def record(self, index: int) -> Record:
        """Return the record of a question, with the run's condition applied to its passages."""
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
        """Number of masks in which an answer is decoded, or of tokens that a causal model generates."""
        return self.sampler.length

    def masked(self, index: int, prompt: Encoded | None = None) -> MaskedAnswer:
        """Return a question's gold answer behind its prompt, masked, spelled as the model finds likelier."""
        record = self.records[index]
        encoded = self.prompt(index) if prompt is None else prompt
        answer = MaskedAnswer.spelled(self.model, encoded, record.answers[0], self.length)
        if answer is None:
            raise Unusable(f"its answer has more than the {self.length} tokens that are decoded")
        return answer


@dataclass(frozen=True)
class Experiment(Measure):
    """Base class of experiments, which change a running model or its input."""

    choice_questions: ClassVar[int] = 0  # more questions, on which `prepare` chooses

    def prepare(self, context: ExperimentContext) -> Any:
        """Return the values that all questions of a model share; they may contain tensors, but no model."""
        return None

    def ask(self, context: ExperimentContext, index: int, prepared: Any) -> xr.Dataset:
        """Return the values of one question; raise Unusable if the question has none."""
        raise TypeError(f"{type(self).__name__} must define ask")

    def compute(self, trace: Trace) -> xr.Dataset:
        raise UsageError(
            f"{type(self).__name__} changes a model, and cannot read a trace",
            "Run it as a study: floatscope study.",
        )
