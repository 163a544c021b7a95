"""Evidence without a run: planted values in the place of what shards would hold."""

from __future__ import annotations

from typing import Any

from floatscope.engine import Plan
from floatscope.measures.result import Result
from floatscope.studies import request_of
from floatscope.studies.demo import DEMO
from floatscope.studies.evidence import Evidence
from floatscope.studies.setting import QUESTIONS

MDM, ARM = "mdm", "arm"


class Planted(Evidence):
    """What the studies ask of a run, answered from planted values; nothing is read."""

    models = {MDM: {"direction": "bidirectional"}, ARM: {"direction": "causal"}}  # noqa: RUF012
    asked_for = {MDM: MDM, ARM: ARM}  # noqa: RUF012

    def __init__(self, study: str) -> None:
        self.request = request_of({"studies": [study], **DEMO})
        self.plan = Plan(self.request.as_json(), "", ())
        self.planted: dict[tuple[str, str, str], Result | None] = {}
        self._orders: dict[tuple[str, str | None], Result | None] = {}
        self._answers: dict[tuple[str, str | None], Any] = {}

    def result(
        self, key: str, model: str | None, domain: str = QUESTIONS, control: int | None = None
    ) -> Result | None:
        return self.planted.get((key, model or "", domain))

    def control(self, key: str, model: str | None) -> Result | None:
        return self.planted.get((key, f"untrained {model}", QUESTIONS))

    def hidden(self, setting: str, model: str | None) -> tuple[float, float] | None:
        return None
