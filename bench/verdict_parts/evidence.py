"""Evidence without a run: planted values in the place of what shards would hold."""

from __future__ import annotations

from typing import Any

from floatscope.engine import Plan
from floatscope.measures.result import Result
from floatscope.studies import request_of
from floatscope.studies.demo import DEMO
from floatscope.studies.evidence import Evidence
from floatscope.studies.request import Request
from floatscope.studies.setting import QUESTIONS

MDM, ARM = "mdm", "arm"

CONTROLS = Request.model_fields["controls"].default  # untrained networks


def untrained(model: str | None, seed: int) -> str:
    """The name under which one control's results are planted."""
    return f"untrained {model} {seed}"


class Planted(Evidence):
    """What the studies ask of a run, answered from planted values; nothing is read."""

    models = {MDM: {"direction": "bidirectional"}, ARM: {"direction": "causal"}}  # noqa: RUF012
    asked_for = {MDM: MDM, ARM: ARM}  # noqa: RUF012

    def __init__(self, study: str) -> None:
        self.request = request_of({"studies": [study], **DEMO})
        self.plan = Plan(self.request.as_json(), "", ())
        self.planted: dict[tuple[str, str, str], Result | None] = {}
        self.removed: dict[tuple[str, str], tuple[float, float]] = {}  # share of attention, columns
        self._orders: dict[tuple[str, str | None], Result | None] = {}
        self._answers: dict[tuple[str, str | None], Any] = {}

    def result(
        self, key: str, model: str | None, domain: str = QUESTIONS, control: int | None = None
    ) -> Result | None:
        name = model or "" if control is None else untrained(model, control)
        return self.planted.get((key, name, domain))

    def control(self, key: str, model: str | None) -> Result | None:
        return self.planted.get((key, f"untrained {model}", QUESTIONS))

    def hidden(self, setting: str, model: str | None) -> tuple[float, float] | None:
        return self.removed.get((setting, model or ""))
