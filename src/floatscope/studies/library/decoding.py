"""Decoding: which positions and tokens does a sampler reveal first, and does it matter?"""

from functools import partial

from ...decode.presets import presets
from ...measures.library.order import maps
from ...measures.style import Figure
from ..claim import Check, Claim, Number, above, said
from ..draw import Picture, dots
from ..evidence import Evidence
from ..long_answers import LONG, at_length, content_tokens, no_answers
from ..numbers import number
from ..request import Request
from ..setting import Setting
from ..study import Study
from ..verdict import LEVEL, Rule, judge, other_deltas, vary

CONFIDENCE, CALIBRATED = "sampler-confidence", "sampler-position-calibrated"
OTHERS = ("entropy", "margin")  # of one kind with confidence: the model's own certainty
LEAST = 5  # positions that have outer fifths
CEILING = 0.97  # nothing can be won above
RULE = Rule(
    number=9,
    text="Decoding order is biased to the ends and to trivial tokens; calibration repairs it",
    quantity=(
        "mean reveal rank of the answer's outer fifths minus that of its middle, over its length, by "
        "confidence and without early stop, beyond its null; end tokens are left out where answers have "
        f"{LONG} content tokens or more on average"
    ),
    # Ends first altogether is −0.5; a tenth of that is half a rank in an answer of ten.
    delta=-0.05,
    more=False,
    holds="The diffusion model fills in the beginning and the end of an answer before its middle.",
    refuted="The diffusion model does not fill in the ends of an answer before its middle.",
)


class Decoding(Study):
    name = "decoding"
    question = "Which positions and tokens does a sampler reveal first, and does it matter?"
    rules = (RULE,)
    method = """\
boundary = mean reveal rank of the outer fifths of the answer − that of the middle, over the length;
           negative: the ends come first. Once over all positions, once over content tokens alone
left to right = Spearman correlation of position and reveal step
null of both: a random order within the sampler's blocks
end or trivial = share of the first quarter of reveals that is an end token, or a token more frequent in a
           corpus than the answer's median content token; null: the share among all reveals
All samplers answer the same questions with the same number of masks and without early stop, so that every
position is revealed. What calibration (2508.13021) wins is the share of right answers"""

    def settings(self, request: Request) -> list[Setting]:
        names = presets(request.length, request.steps)
        return [
            Setting(
                f"sampler-{n}",
                request.asked_as,
                sampler=n,
                decides=f"sampler-{n}" == CONFIDENCE,
                early_stop=False,
            )
            for n in names
        ]

    def claims(self, evidence: Evidence) -> list[Claim]:
        bar = _bar(evidence)
        length = _length(evidence)
        all_positions = beyond_null(
            evidence, CONFIDENCE, "boundary", "ends − middle, all positions", level=LEVEL
        )
        content = beyond_null(
            evidence, CONFIDENCE, "boundary_content", "ends − middle, content alone", level=LEVEL
        )
        long = length is not None and length.value >= LONG
        theta, other = (content, all_positions) if long else (all_positions, content)
        trivial = beyond_null(
            evidence, CONFIDENCE, "end_or_trivial", "end or trivial first", "points"
        )
        ends = beyond_null(evidence, CONFIDENCE, "ends_first", "end tokens first", "points")
        frequent = beyond_null(
            evidence, CONFIDENCE, "trivial", "trivial among content first", "points"
        )
        along = beyond_null(evidence, CONFIDENCE, "left_to_right", "left to right")
        repaired = evidence.apart(
            CALIBRATED, CONFIDENCE, evidence.mdm, "calibrated − confidence, right"
        )
        checks = (
            Check("end or trivial tokens come first", above(trivial, 0.0) if trivial else None),
            _repairs(evidence, repaired),
            Check("reveals run from left to right", above(along, 0.0) if along else None),
        )
        others = {
            f"by {name}": beyond_null(
                evidence,
                f"sampler-{name}",
                "boundary_content" if long else "boundary",
                f"ends − middle, {name}",
                level=LEVEL,
            )
            for name in OTHERS
        }
        variants = [vary("all positions" if long else "content tokens alone", RULE, other, bar=bar)]
        variants += [vary(name, RULE, number, bar=bar) for name, number in others.items()]
        variants += other_deltas(RULE, theta, bar=bar)
        numbers = (other, ends, trivial, frequent, along, repaired)
        there = [n for n in (theta, *numbers) if n is not None]
        said_ = "; ".join(f"{n.label} {said(n)} (n = {n.n})" for n in there)
        sentence = f"By confidence, beyond the null: {said_}. {at_length(length)}" if there else bar
        return [
            judge(
                RULE,
                self.name,
                theta,
                bar=bar,
                sentence=sentence,
                numbers=(*numbers, length),
                checks=checks,
                variants=tuple(variants),
            )
        ]

    def findings(self, evidence: Evidence) -> list[str]:
        every = {
            s.name: evidence.right(s.name, evidence.mdm) for s in self.settings(evidence.request)
        }
        there = {name: n for name, n in every.items() if n is not None}
        if not there:
            return []
        best, worst = (f(there, key=lambda n: there[n].value) for f in (max, min))
        if there[best].value == there[worst].value:
            return [f"{evidence.mdm}: {said(there[best])} right with every sampler."]
        return [
            f"{evidence.mdm}: from {said(there[worst])} right ({worst.removeprefix('sampler-')}) to "
            f"{said(there[best])} ({best.removeprefix('sampler-')})."
        ]

    def figures(self, evidence: Evidence) -> list[Picture]:
        every = {
            s.name: evidence.right(s.name, evidence.mdm) for s in self.settings(evidence.request)
        }
        names = [name for name, right in every.items() if right]  # an older run lacks some
        if evidence.mdm is None:
            return []
        decoded = [s for s in every if evidence.order(s, evidence.mdm) is not None]
        series = {evidence.mdm: [every[name] for name in names]}
        ticks = [name.removeprefix("sampler-") for name in names]
        right = Picture(
            "samplers",
            "Right answers by sampler",
            "Share of right answers of every sampler with 95 % intervals.",
            partial(dots, series, ticks),
        )
        order = Picture(
            "order",
            "When each part of the answer is revealed",
            "One map a sampler: probability that a place of the answer is revealed by a step.",
            partial(_maps, evidence, decoded),
        )
        return [*[right] * bool(names), *[order] * bool(decoded)]


def beyond_null(
    evidence: Evidence,
    setting: str,
    value: str,
    label: str,
    unit: str = "",
    *,
    level: float = 0.95,
) -> Number | None:
    """A value of the order minus its null, answer by answer; None where no answer has one."""
    order = evidence.order(setting, evidence.mdm)
    if order is None:
        return None
    every = order.examples
    gap = (every[value] - every[f"{value}_null"]).values
    return number(gap, label, unit, level=level, null=0.0)


def _length(evidence: Evidence) -> Number | None:
    order = evidence.order(CONFIDENCE, evidence.mdm)
    return None if order is None else content_tokens(order.examples["content"].values)


def _bar(evidence: Evidence) -> str:
    """Why this run cannot test the claim; "" if it can."""
    if evidence.mdm is None:
        return "There is no diffusion model in this run: add one with --model."
    length = evidence.request.length
    if length < LEAST:
        return f"Answers of {length} positions have no ends: ask for {LEAST} or more (--length)."
    order = evidence.order(CONFIDENCE, evidence.mdm)
    if order is None:
        return "No answer was decoded by confidence."
    if not order.examples["boundary"].notnull().any():
        return (
            "Early stop left positions unrevealed, as an older version decoded: "
            "run it again, into another directory."
        )
    return ""


def _repairs(evidence: Evidence, repaired: Number | None) -> Check:
    label = "calibration answers more questions right"
    base = evidence.right(CONFIDENCE, evidence.mdm)
    if no_answers(evidence.request):
        return Check(f"{label} (not testable: {no_answers(evidence.request)})", None)
    if repaired is None or base is None:
        return Check(label, None)
    if evidence.request.frequencies is None:
        return Check(f"{label} (not testable without token frequencies: --frequencies)", None)
    if bar := evidence.cut_off((CONFIDENCE, CALIBRATED), evidence.mdm):
        return Check(f"{label} (not testable: {bar})", None)
    if base.value > CEILING:
        return Check(f"{label} (not testable at the ceiling: harder questions would do)", None)
    return Check(label, above(repaired, 0.0))


def _maps(evidence: Evidence, names: list[str]) -> Figure:
    orders = {name.removeprefix("sampler-"): evidence.order(name, evidence.mdm) for name in names}
    return maps({name: order for name, order in orders.items() if order is not None})
