"""Study whether heads are active in one domain and dormant in another, and the norm of values at anchors."""

from collections.abc import Iterator, Mapping
from typing import ClassVar

import numpy as np

from ...measures import Dormancy as Measured
from ...measures import ExtremeTokens, switching
from ...measures.base import Measure
from ...measures.result import Result
from ...stats.discoveries import at_least, benjamini_hochberg
from ..claim import Check, Claim, Number, format_number, lies_above
from ..evidence import Evidence
from ..long_answers import one_domain
from ..numbers import overall, third
from ..request import Request
from ..setting import PROSE, QUESTIONS
from ..study import Shows, Study
from ..verdict import MDM, Rule, judge, other_deltas, vary

THRESHOLD = 0.3
SWITCH = Rule(
    "10a",
    "Heads of a diffusion model are active in one domain and dormant in another",
    "share of the MDM's heads whose mean mass on anchors is above "
    f"{THRESHOLD:g} over questions and below it over prose, or the other way round",
    delta=0.05,
    unit="%",
    holds="Some heads of this diffusion model rest on an anchor in one kind of text and work in another.",
    refuted="Hardly any head of this diffusion model rests on an anchor in one kind of text alone.",
    models=(MDM,),
)
DRAIN = Rule(
    "10b",
    "Sinks of a diffusion model drain values",
    "norm of the value at the MDM's anchors over the median of the other keys, mean over layers",
    delta=0.8,
    unit="×",
    above=False,
    untrained=True,
    holds="This diffusion model's anchors pass on much less than other tokens do.",
    refuted="This diffusion model's anchors pass on about as much as other tokens, or more.",
    models=(MDM,),
)
NO_MDM = "There is no diffusion model in this run: add one with --model."


class Dormancy(Study):
    """The study `dormancy`: heads active in only one domain, and values at anchors (claims 10a and 10b)."""

    name = "dormancy"
    question = "Are heads active in one domain and at rest in another, and do anchors drain values?"
    rules = (SWITCH, DRAIN)
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
        extreme = ExtremeTokens()
        return {"dormancy": Measured(), "extreme-tokens": extreme, "extreme-tokens-same": extreme}

    def domains(self, request: Request) -> tuple[str, ...]:
        return (QUESTIONS,) if one_domain(request) else (QUESTIONS, PROSE)

    def claims(self, evidence: Evidence) -> list[Claim]:
        return [self._switch(evidence), self._drain(evidence)]

    def _switch(self, evidence: Evidence) -> Claim:
        """Decide claim 10a on the heads of the MDM; the heads of the ARM are shown beside them."""
        kinds = {"MDM": evidence.mdm, "ARM": evidence.arm}
        models = {kind: model for kind, model in kinds.items() if model is not None}
        share = {
            k: crossing_heads(evidence, m, f"{k}: heads that cross") for k, m in models.items()
        }
        theta = share.get("MDM")
        bar = one_domain(evidence.request) or ("" if evidence.mdm else NO_MDM)
        if not bar and theta is None:
            bar = "Both questions and prose must be traced, two examples of each."
        variants = [*other_deltas(SWITCH, theta, bar=bar)]
        for threshold in (0.2, 0.4):
            choice = f"threshold {threshold:g}"
            other = crossing_heads(evidence, evidence.mdm, choice, threshold)
            variants.append(vary(choice, SWITCH, other, bar=bar))
        if evidence.arm:
            variants.append(vary("the ARM instead", SWITCH, share["ARM"], bar=bar))
        differ = [self._differ(evidence, model, kind) for kind, model in models.items()]
        return judge(
            SWITCH,
            self.name,
            theta,
            bar=bar,
            sentence=_side_by_side("Heads that cross the threshold", share),
            numbers=(share.get("ARM"), *differ),
            variants=tuple(variants),
        )

    def _drain(self, evidence: Evidence) -> Claim:
        """Decide claim 10b on the anchors of the MDM; the anchors of the ARM are shown beside them."""
        key, level = "extreme-tokens-same", DRAIN.level
        mdm, arm = (evidence.result(key, model) for model in (evidence.mdm, evidence.arm))
        untrained = evidence.controls(key, evidence.mdm)
        bar = "" if evidence.mdm else NO_MDM
        theta = overall(mdm, "drain", "MDM: value norm, anchors over others", "×", level=level)
        control = overall(untrained, "drain", "untrained: value norm", "×", level=level)
        arm_drain = overall(arm, "drain", "ARM: value norm, anchors over others", "×", level=level)
        variants = [*other_deltas(DRAIN, theta, control, bar)]
        for part in ("first", "last"):
            label = f"{part} third of the layers"
            arguments = ("drain", label, "×", third(mdm, part))
            part_theta = overall(mdm, *arguments, level=level)
            other = overall(untrained, *arguments, level=level)
            variants.append(vary(label, DRAIN, part_theta, other, bar))
        if evidence.arm:
            networks = evidence.controls(key, evidence.arm)
            untrained_arm = overall(networks, "drain", "", "×", level=level)
            variants.append(vary("the ARM instead", DRAIN, arm_drain, untrained_arm))
        peaks = {
            kind: overall(result, "peak", f"{kind}: residual norm, anchors over others", "×")
            for kind, result in (("MDM", mdm), ("ARM", arm))
        }
        checks = [
            Check(f"{kind}: residuals at anchors are larger", lies_above(peak, 1.0))
            for kind, peak in peaks.items()
            if peak
        ]
        return judge(
            DRAIN,
            self.name,
            theta,
            control=control,
            bar=bar,
            sentence=_side_by_side(
                "The norm of an anchor's value over the others' median",
                {"MDM": theta, "ARM": arm_drain},
            ),
            numbers=(arm_drain, *peaks.values()),
            checks=tuple(checks),
            variants=tuple(variants),
        )

    def _differ(self, evidence: Evidence, model: str, kind: str) -> Number | None:
        """Return the share of heads whose means differ between domains without crossing the threshold."""
        domains = _domains(evidence, model)
        if domains is None:
            return None
        data = switching(domains)
        share = float((data["differs"] & ~data["crosses"]).mean())
        n = min(r.n for r in domains.values())
        return Number(f"{kind}: heads that differ without crossing", share, unit="%", n=n)

    def findings(self, evidence: Evidence) -> Iterator[str]:
        for model in evidence.models:
            dormant = [
                overall(evidence.result("dormancy", model, d), "dormant", "", "%")
                for d in (QUESTIONS, PROSE)
            ]
            if dormant[0] and dormant[1]:
                yield (
                    f"{model}: a head is dormant in {format_number(dormant[0])} of cases on questions and in "
                    f"{format_number(dormant[1])} on prose."
                )


def crossing_heads(
    evidence: Evidence,
    model: str | None,
    label: str,
    threshold: float = THRESHOLD,
) -> Number | None:
    """Return the share of a model's heads whose mean crosses the threshold between domains.

    Heads are selected by Benjamini and Hochberg's procedure; the interval has simultaneous bounds. Return
    None if a domain was not traced.
    """
    domains = None if model is None else _domains(evidence, model)
    if domains is None:
        return None
    data = switching(domains, threshold=threshold)
    p_crosses, p_stays = (data[name].values.ravel() for name in ("p_crosses", "p_stays"))
    heads, error = p_crosses.size, (1 - SWITCH.level) / 2
    least, upper = at_least(p_crosses, error), heads - at_least(p_stays, error)
    listed = int(np.clip(benjamini_hochberg(p_crosses).sum(), least, upper))
    low, high = max(0.0, least - 0.5) / heads, min(heads, upper + 0.5) / heads
    n = min(result.n for result in domains.values())
    return Number(label, listed / heads, low, high, 0.0, "%", n, SWITCH.level)


def _side_by_side(subject: str, numbers: Mapping[str, Number | None]) -> str:
    """Return a sentence with the number of the MDM, which decides, and of the ARM; "" without numbers."""
    clauses = [
        f"{format_number(number)} in the {kind}" for kind, number in numbers.items() if number
    ]
    return f"{subject}: {', '.join(clauses)}. The MDM's number decides." if clauses else ""


def _domains(evidence: Evidence, model: str) -> dict[str, Result] | None:
    results = {d: evidence.result("dormancy", model, d) for d in (QUESTIONS, PROSE)}
    measured = {d: r for d, r in results.items() if r is not None and r.n > 1}
    return measured if len(measured) == len(results) else None
