"""Dormancy: are heads active in one domain and at rest in another, and do anchors drain values?"""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from ...measures import Dormancy as Measured
from ...measures import ExtremeTokens, switching
from ...measures.base import Measure
from ...measures.result import Result
from ...stats.discoveries import at_least, benjamini_hochberg
from ..claim import Check, Claim, Number, above, below, said
from ..evidence import Evidence
from ..long_answers import one_domain
from ..numbers import overall
from ..request import Request
from ..setting import PROSE, QUESTIONS
from ..study import Shows, Study
from ..verdict import LEVEL, Rule, judge, other_deltas, vary

THRESHOLD = 0.3
RULE = Rule(
    number=10,
    text="Heads are active in one domain and dormant in another; sinks drain values",
    quantity=(
        "share of heads, of both models together, whose mean mass on anchors is above "
        f"{THRESHOLD:g} over questions and below it over prose, or the other way round"
    ),
    delta=0.05,
    unit="%",
    holds="Some attention heads rest on an anchor in one kind of text and work in another.",
    refuted="Hardly any attention head rests on an anchor in one kind of text alone.",
)


class Dormancy(Study):
    name = "dormancy"
    question = "Are heads active in one domain and at rest in another, and do anchors drain values?"
    rules = (RULE,)
    method = """\
dormant: a head whose share of attention on its own anchors exceeds 0.3 (2410.13835)
domains: the questions with their passages, and English prose of about the same length, each passage of
another book; no sentence is in two of them
crosses: a head whose mean share is above 0.3 in one domain and below in the other. p = the larger of
two one-sided t tests, the smaller over both directions; listed by Benjamini-Hochberg at 5 %
interval of the share of heads that cross: closed testing with Simes' test (Goeman & Solari 2011), from the
heads that surely cross to all but those that surely do not, half a head wider on either side
drain = |W_O v| at anchors / median of the other keys; peak = the same of the residual norm; null 1"""

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
        return (QUESTIONS,) if one_domain(request) else (QUESTIONS, PROSE)

    def claims(self, evidence: Evidence) -> list[Claim]:
        kinds = {"MDM": evidence.mdm, "ARM": evidence.arm}
        models = {kind: model for kind, model in kinds.items() if model is not None}
        both = crossing_heads(evidence, list(models.values()), "heads that cross")
        numbers: list[Number | None] = []
        checks: list[Check] = []
        alone: dict[str, Number | None] = {}
        for kind, model in models.items():
            alone[kind] = crossing_heads(evidence, [model], f"{kind}: heads that cross")
            result = evidence.result("extreme-tokens", model)
            drain = overall(result, "drain", f"{kind}: drain", "×")
            peak = overall(result, "peak", f"{kind}: peak", "×")
            numbers += [alone[kind], self._differ(evidence, model, kind), drain, peak]
            checks += [
                Check(
                    f"{kind}: values at anchors are smaller", below(drain, 1.0) if drain else None
                ),
                Check(
                    f"{kind}: residuals at anchors are larger", above(peak, 1.0) if peak else None
                ),
            ]
        variants = [
            vary(
                f"threshold {at:g}",
                RULE,
                crossing_heads(evidence, list(models.values()), f"threshold {at:g}", at),
            )
            for at in (0.2, 0.4)
        ]
        variants += other_deltas(RULE, both)
        variants += [vary(f"{kind} alone", RULE, number) for kind, number in alone.items()]
        bar = one_domain(evidence.request)
        if not bar and both is None:
            bar = "Both questions and prose must be traced, two examples of each."
        there = [n for n in numbers if n is not None]
        sentence = "; ".join(f"{n.label} {said(n)}" for n in there) + "." if there else bar
        return [
            judge(
                RULE,
                self.name,
                both,
                bar=bar,
                sentence=sentence,
                numbers=tuple(numbers),
                checks=tuple(checks),
                variants=tuple(variants),
            )
        ]

    def _differ(self, evidence: Evidence, model: str, kind: str) -> Number | None:
        """Heads whose means differ on one side of the threshold: a difference is not a switch."""
        domains = _domains(evidence, model)
        if domains is None:
            return None
        data = switching(domains)
        share = float((data["differs"] & ~data["crosses"]).mean())
        n = min(r.n for r in domains.values())
        return Number(f"{kind}: heads that differ without crossing", share, unit="%", n=n)

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


def crossing_heads(
    evidence: Evidence,
    models: Sequence[str],
    label: str,
    threshold: float = THRESHOLD,
    level: float = LEVEL,
) -> Number | None:
    """The share of heads that cross: those listed, and bounds for all heads of the models at once."""
    crosses, stays, n = [], [], []
    for model in models:
        domains = _domains(evidence, model)
        if domains is None:
            return None
        data = switching(domains, threshold=threshold)
        crosses.append(data["p_crosses"].values.ravel())
        stays.append(data["p_stays"].values.ravel())
        n += [r.n for r in domains.values()]
    if not crosses:
        return None
    p_crosses, p_stays = np.concatenate(crosses), np.concatenate(stays)
    heads, error = p_crosses.size, (1 - level) / 2
    least, most = at_least(p_crosses, error), heads - at_least(p_stays, error)
    listed = int(np.clip(benjamini_hochberg(p_crosses).sum(), least, most))
    low, high = max(0.0, least - 0.5) / heads, min(heads, most + 0.5) / heads
    return Number(label, listed / heads, low, high, 0.0, "%", min(n), level)


def _domains(evidence: Evidence, model: str) -> dict[str, Result] | None:
    every = {d: evidence.result("dormancy", model, d) for d in (QUESTIONS, PROSE)}
    there = {d: r for d, r in every.items() if r is not None and r.n > 1}
    return there if len(there) == len(every) else None
