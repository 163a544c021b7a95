"""Dormancy: are heads active in one domain and at rest in another, and do anchors drain values?"""

import warnings
from typing import ClassVar

from ...measures import Dormancy as Measured
from ...measures import ExtremeTokens, switching
from ...measures.base import Measure
from ..claim import Claim, Number, above, below, said
from ..evidence import Evidence
from ..numbers import overall
from ..request import Request
from ..setting import PROSE, QUESTIONS
from ..study import Shows, Study


class Dormancy(Study):
    name = "dormancy"
    question = "Are heads active in one domain and at rest in another, and do anchors drain values?"
    method = """\
dormant: a head whose share of attention on its own anchors exceeds 0.3 (2410.13835)
domains: the questions with their passages, and running English prose of about the same length
switching: heads whose mass on anchors differs between the domains, by an interval that holds for all
heads of a model at once; by chance no head does in 95 of 100 runs
drain = ‖W_O v‖ at anchors / median of the other keys; peak = the same of the residual norm; null 1"""

    shows: ClassVar[Shows] = {
        "dormancy": (
            "Mass on anchors by head",
            "Share of attention each head gives its anchors, by layer, and how often it is dormant.",
        ),
        "extreme-tokens": (
            "Drain, peak and gap at anchors",
            "Value drain, residual peak and score gap at anchors by layer, with intervals.",
        ),
    }

    def measures(self, request: Request) -> dict[str, Measure]:
        return {"dormancy": Measured(), "extreme-tokens": ExtremeTokens()}

    def domains(self, request: Request) -> tuple[str, ...]:
        return (QUESTIONS, PROSE)

    def claims(self, evidence: Evidence) -> list[Claim]:
        numbers: list[Number] = []
        tests: list[bool | None] = []
        parts = []
        for kind, model in (("ARM", evidence.arm), ("MDM", evidence.mdm)):
            if model is None:
                continue
            switch = self._switching(evidence, model, kind)
            result = evidence.result("extreme-tokens", model)
            drain = overall(result, "drain", f"{kind}: drain", "×")
            peak = overall(result, "peak", f"{kind}: peak", "×")
            if switch is None or drain is None or peak is None:
                continue
            numbers += [switch, drain, peak]
            tests += [switch.value > 0, below(drain, 1.0), above(peak, 1.0)]
            parts.append(
                f"{said(switch)} of the {kind}'s heads switch; values at its anchors have "
                f"{said(drain)} the norm of others, residuals {said(peak)}"
            )
        text = "Heads are active in one domain and dormant in another; sinks drain values and carry peaks"
        sentence = "; ".join(parts) + "." if parts else "Nothing was traced."
        return [Claim(10, text, verdict(tests), sentence, tuple(numbers), self.name)]

    def _switching(self, evidence: Evidence, model: str, kind: str) -> Number | None:
        domains = {d: evidence.result("dormancy", model, d) for d in (QUESTIONS, PROSE)}
        there = {d: r for d, r in domains.items() if r is not None and r.n > 1}
        if len(there) < 2:
            return None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # few examples: n stands beside the number
            data = switching(there)
        share = float(data["joint"].mean())
        n = min(r.n for r in there.values())
        return Number(f"{kind}: heads that switch", share, None, None, 0.0, "%", n)

    def findings(self, evidence: Evidence) -> list[str]:
        lines = []
        for model in evidence.models:
            rest = [
                overall(evidence.result("dormancy", model, d), "dormant", "", "%")
                for d in (QUESTIONS, PROSE)
            ]
            if rest[0] and rest[1]:
                lines.append(
                    f"{model}: a head is dormant in {said(rest[0])} of cases over questions and "
                    f"{said(rest[1])} over prose."
                )
        return lines
