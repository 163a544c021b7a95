"""Study which positions and tokens a sampler reveals first, and whether this order matters.

The study runs the two samplers on which claims are decided. `compare_samplers` compares all samplers.
"""

from functools import partial

import numpy as np

from ...measures.library.order import maps
from ...measures.result import Result, bounds_of
from ...plots import Figure
from ..claim import Check, Claim, Number, format_number, lies_above
from ..draw import Picture, dots
from ..evidence import Evidence
from ..long_answers import LONG, content_tokens, no_answers
from ..numbers import number
from ..request import Request
from ..setting import Setting
from ..study import Study
from ..verdict import LEAST, MDM, Rule, judge, other_deltas, vary

CONFIDENCE, CALIBRATED = "sampler-confidence", "sampler-position-calibrated"
CEILING = 0.97  # share right above which nothing can be gained
LONG_TEXT = "--data long:continuation --length 64"
ENDS = Rule(
    "9a",
    "The ends of an answer come first",
    "mean reveal rank of the outer fifths of an answer's content tokens minus that of the middle, over "
    f"their number, by confidence and without early stop, beyond its null; answers of {LONG} content "
    "tokens or more",
    delta=-0.05,  # a tenth of −0.5, the value if all ends come first
    above=False,
    holds="This diffusion model fills in the beginning and the end of an answer before its middle.",
    refuted="This diffusion model does not fill in the ends of an answer before its middle.",
    models=(MDM,),
)
FREQUENT = Rule(
    "9b",
    "Frequent tokens come first",
    "share of frequent tokens among the first quarter of an answer's content tokens to be revealed, by "
    "confidence and without early stop, minus their share among all of them; frequent: more so in a "
    "corpus than the answer's median content token",
    delta=0.05,  # a tenth of 50 points, the value if all frequent tokens come first
    unit="points",
    holds="This diffusion model fills in frequent words before rare ones.",
    refuted="This diffusion model does not fill in frequent words before rare ones.",
    models=(MDM,),
)
REPAIR = Rule(
    "9c",
    "Calibrating the order of decoding improves answers",
    "share right with the position-calibrated sampler − with confidence, question by question",
    delta=0.05,
    unit="points",
    holds="With its order calibrated, this diffusion model answers more questions right.",
    refuted="With its order calibrated, this diffusion model does not answer more questions right.",
    models=(MDM,),
)


class Decoding(Study):
    """The study `decoding`: the order in which tokens are revealed (claims 9a, 9b and 9c)."""

    name = "decoding"
    options = ("frequencies",)
    question = "Which positions and tokens does a sampler reveal first, and does it matter?"
    rules = (ENDS, FREQUENT, REPAIR)
    orders = True
    method = """\
boundary = mean reveal rank of the outer fifths of the answer − that of the middle, over the length;
           negative: the ends come first. Over content tokens alone: end tokens are filling
left to right = Spearman correlation of position and reveal step
null of both: a random order within the sampler's blocks
frequent = share of the first quarter of content reveals whose token is more frequent in a corpus than the
           answer's median content token; null: the share among all content reveals
Both samplers answer the same questions with the same number of masks and without early stop, so that every
position is revealed. What calibration (2508.13021) wins is the share of right answers"""

    def settings(self, request: Request) -> list[Setting]:
        # Answers that are neither right nor wrong cannot improve: only their order is measured.
        names = [CONFIDENCE] if no_answers(request) else [CONFIDENCE, CALIBRATED]
        return [
            Setting(
                name,
                request.asked_as,
                sampler=name.removeprefix("sampler-"),
                decides=True,
                early_stop=False,
            )
            for name in names
        ]

    def claims(self, evidence: Evidence) -> list[Claim]:
        return [self._ends(evidence), self._frequent(evidence), self._repair(evidence)]

    def _ends(self, evidence: Evidence) -> Claim:
        """Decide claim 9a, the ends of an answer come first, on long answers."""
        order = evidence.order(CONFIDENCE, evidence.mdm)
        long = _long(order)
        bar = _no_model(evidence) or _too_short(order, long, f"{LONG} content tokens")
        theta = beyond_null(
            evidence, "boundary_content", "ends − middle", level=ENDS.level, selected=long
        )
        of_all = partial(beyond_null, evidence, level=ENDS.level)
        any_length = of_all("boundary_content", "ends − middle, answers of any length")
        end_tokens = of_all("boundary", "ends − middle, end tokens counted")
        along = beyond_null(evidence, "left_to_right_content", "left to right", selected=long)
        sentence = ""
        if theta:
            sentence = (
                "Decoding by confidence, the outer fifths of a long answer's content are revealed "
                f"{format_number(theta)} of its length later than the middle, beyond a random order "
                f"(n = {theta.n})."
            )
        return judge(
            ENDS,
            self.name,
            theta,
            bar=bar,
            sentence=sentence,
            numbers=(any_length, end_tokens, along, _length(evidence)),
            checks=(Check("reveals run from left to right", lies_above(along, 0.0)),),
            variants=(
                vary("answers of any length", ENDS, any_length),
                vary("answers of any length, end tokens counted", ENDS, end_tokens),
                *other_deltas(ENDS, theta, bar=bar),
            ),
        )

    def _frequent(self, evidence: Evidence) -> Claim:
        """Decide claim 9b, frequent tokens come first, on answers with four or more content tokens."""
        order = evidence.order(CONFIDENCE, evidence.mdm)
        valid = np.zeros(0, bool) if order is None else order.examples["trivial"].notnull().values
        need = "four content tokens of different frequency"
        bar = _no_model(evidence) or _no_frequencies(evidence) or _too_short(order, valid, need)
        beyond = partial(beyond_null, evidence, unit="points", level=FREQUENT.level)
        theta = beyond("trivial", "frequent among the first quarter − among all")
        long = beyond("trivial", f"the same, {LONG} content tokens or more", selected=_long(order))
        either = beyond("end_or_trivial", "the same, end tokens counted as frequent")
        ends = beyond_null(evidence, "ends_first", "end tokens first", "points")
        sentence = ""
        if theta:
            sentence = (
                "Decoding by confidence, frequent tokens are more common among the first quarter of the "
                f"content than in all of it by {format_number(theta)} (n = {theta.n})."
            )
        return judge(
            FREQUENT,
            self.name,
            theta,
            bar=bar,
            sentence=sentence,
            numbers=(long, either, ends),
            variants=(
                vary(f"answers of {LONG} content tokens or more", FREQUENT, long),
                vary("end tokens counted as frequent", FREQUENT, either),
                *other_deltas(FREQUENT, theta, bar=bar),
            ),
        )

    def _repair(self, evidence: Evidence) -> Claim:
        """Decide claim 9c, a calibrated order improves answers, on the share of right answers."""
        label = "calibrated − confidence, right"
        theta = evidence.accuracy_difference(
            CALIBRATED, CONFIDENCE, evidence.mdm, label, level=REPAIR.level
        )
        right = [evidence.right(setting, evidence.mdm) for setting in (CONFIDENCE, CALIBRATED)]
        bar = _no_repair(evidence, right[0])
        sentence = ""
        if right[0] and right[1]:
            sentence = (
                f"By confidence the MDM answers {format_number(right[0])} of the questions right, position-"
                f"calibrated {format_number(right[1])}."
            )
        return judge(
            REPAIR,
            self.name,
            theta,
            bar=bar,
            sentence=sentence,
            numbers=tuple(right),
            variants=tuple(other_deltas(REPAIR, theta, bar=bar)),
        )

    def findings(self, evidence: Evidence) -> list[str]:
        length = _length(evidence)
        if length is None:
            return []
        return [
            f"{evidence.mdm}: answers have {format_number(length)} of content (n = {length.n})."
        ]

    def figures(self, evidence: Evidence) -> list[Picture]:
        if evidence.mdm is None:
            return []
        names = [s.name for s in self.settings(evidence.request)]
        answered = {name: evidence.right(name, evidence.mdm) for name in names}
        decoded = [name for name in names if evidence.order(name, evidence.mdm) is not None]
        pictures = []
        if (
            len({number.value for number in answered.values() if number}) > 1
        ):  # else the rows are alike
            series = {evidence.mdm: list(answered.values())}
            ticks = [name.removeprefix("sampler-") for name in names]
            pictures.append(
                Picture(
                    "samplers",
                    "Right answers by sampler",
                    "Share of right answers of both samplers with 95 % intervals.",
                    partial(dots, series, ticks),
                )
            )
        if decoded:
            pictures.append(
                Picture(
                    "order",
                    "When each part of the answer is revealed",
                    "One map per sampler: probability that a position of the answer is revealed by a step.",
                    partial(_maps, evidence, decoded),
                )
            )
        return pictures


def beyond_null(
    evidence: Evidence,
    value: str,
    label: str,
    unit: str = "",
    *,
    level: float = 0.95,
    selected: np.ndarray | None = None,
) -> Number | None:
    """Return by how much a value of `DecodingOrder` exceeds its null; None if no answer has the value.

    `value` names a value of `DecodingOrder`. `selected` is True for the answers to average over; by default
    for all answers.
    """
    order = evidence.order(CONFIDENCE, evidence.mdm)
    if order is None or not order.examples[value].notnull().any():
        return None
    values, null = (order.examples[name] for name in (value, f"{value}_null"))
    ends = bounds_of(values, order.data[value].attrs)
    bounds = None if ends is None else (ends[0] - float(null.max()), ends[1] - float(null.min()))
    gap = (values - null).values
    if selected is not None:
        gap = np.where(selected, gap, np.nan)
    clusters = (evidence.answers(CONFIDENCE, evidence.mdm) or {}).get("cluster")
    return number(
        gap, label, unit, level=level, null=0.0, bounds=bounds, smooth=True, clusters=clusters
    )


def _length(evidence: Evidence) -> Number | None:
    order = evidence.order(CONFIDENCE, evidence.mdm)
    if order is None:
        return None
    content = order.examples["content"]
    return content_tokens(content.values, content.attrs["most"])


def _long(order: Result | None) -> np.ndarray:
    """Return whether each answer has at least LONG content tokens, and so has a middle and two ends."""
    return np.zeros(0, bool) if order is None else order.examples["content"].values >= LONG


def _no_model(evidence: Evidence) -> str:
    if evidence.mdm is not None:
        return ""
    return "There is no diffusion model in this run: add one with --model."


def _too_short(order: Result | None, valid: np.ndarray, need: str) -> str:
    """Return why an order cannot be judged, because too few answers are `valid`; "" if it can."""
    if order is None:
        return "No answer was decoded by confidence."
    if valid.sum() < min(LEAST, max(len(valid), 1)):
        return (
            f"{valid.sum()} of {len(valid)} answers have {need}, and the claim needs {LEAST}: test it with "
            f"{LONG_TEXT}."
        )
    return ""


def _no_frequencies(evidence: Evidence) -> str:
    if evidence.request.frequencies is not None:
        return ""
    return (
        "The claim needs token frequencies: count them with `floatscope frequencies`, and give "
        "--set decoding.frequencies=FILE."
    )


def _no_repair(evidence: Evidence, base: Number | None) -> str:
    """Return why this run cannot test claim 9c, on calibration; "" if it can."""
    if bar := _no_model(evidence) or no_answers(evidence.request) or _no_frequencies(evidence):
        return bar
    if bar := evidence.cut_off((CONFIDENCE, CALIBRATED), evidence.mdm):
        return bar
    if base is not None and base.value > CEILING:
        return "Decoding by confidence is at the ceiling, where answers cannot improve: ask harder questions."
    return ""


def _maps(evidence: Evidence, names: list[str]) -> Figure:
    orders = {name.removeprefix("sampler-"): evidence.order(name, evidence.mdm) for name in names}
    return maps({name: order for name, order in orders.items() if order is not None})
