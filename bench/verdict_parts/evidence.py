"""Evidence without a run: planted values in the place of what shards would hold."""

from __future__ import annotations

from typing import Any

from floatscope.engine import Plan
from floatscope.measures.result import Result
from floatscope.studies import request_of
from floatscope.studies.evidence import Evidence
from floatscope.studies.run import DEMO

MDM, ARM = "mdm", "arm"


class Planted(Evidence):
    """What the studies ask of a run, answered from planted values; nothing is read."""

    models = {MDM: {"direction": "bidirectional"}, ARM: {"direction": "causal"}}  # noqa: RUF012
    asked_for = {MDM: MDM, ARM: ARM}  # noqa: RUF012

    def __init__(self, study: str) -> None:
        self.request = request_of({"studies": [study], **DEMO})
        self.plan = Plan(self.request.as_json(), "", ())
        self._results: dict[tuple[str, str, str], Result | None] = {}
        self._orders: dict[tuple[str, str | None], Result | None] = {}
        self._answers: dict[tuple[str, str | None], Any] = {}
