"""Study how many answers a model loses per point of attention that is taken from its anchors."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..claim import Check, Claim, Number, format_number, format_value, lies_above, lies_below
from ..draw import Picture, draw_answers
from ..evidence import Evidence
from ..long_answers import no_answers
from ..numbers import number
from ..request import Request
from ..setting import Setting
from ..study import Study
from ..verdict import Rule, judge, other_deltas, vary
from .knowledge import WITH

DOSES = (0.05, 0.1, 0.2, 0.3)  # shares of each head's attention
LARGE = 0.2  # from this dose on, all questions are asked: they decide nine tenths of a slope
ANCHORS, RANDOM = "anchors", "random"
ROOM = 0.25  # a model with a smaller share of right answers has nothing to lose
REACHED = 0.5  # smallest share of a dose whose removal counts as the dose
PER = "points per point"

NEEDED = Rule(
    "8",
    "Masking sinks hurts autoregressive models more than diffusion models",
    "answers lost per point of attention that the anchors lose − that random columns lose, ARM − MDM, "
    "question by question",
    delta=0.25,
    unit=PER,
    holds="This causal model needs the attention on its anchors more than the diffusion model does.",
    refuted="This diffusion model needs the attention on its anchors about as much as the causal model "
    "does, or more.",
)


class Robustness(Study):
    """The study `robustness`: which model loses more answers if its anchors are hidden (claim 8)."""

    name = "robustness"
    question = "How many answers does a model lose with the attention on its anchors?"
    rules = (NEEDED,)
    method = """\
anchors: the fewest keys of the prompt that hold 30 % of a head's attention, by layer and head
dose  : 5, 10, 20 and 30 points of every head's attention are taken from them by a bias on their scores
        (WeakenColumns); where they hold less, all of it. What was removed is measured
control: the same amount is taken from other keys of the prompt, drawn at random until they hold as much as
        the anchors do; another draw at every dose, and for every prompt
slope = answers lost per point removed, by least squares through 0 over questions and doses; doses below 20
        points, which weigh little, may be asked of fewer questions (--side-questions)
θ     = (slope of anchors − slope of random columns) in the ARM − the same in the MDM
not testable: a model answers less than 25 % to begin with, or loses less than half of the largest dose"""

    def settings(self, request: Request) -> list[Setting]:
        if no_answers(request):
            return []
        settings = [Setting(WITH, request.asked_as, decides=True)]
        for draw, dose in enumerate(DOSES):
            for kind, control in ((ANCHORS, ""), (RANDOM, ",control=random")):
                text = f"weaken-columns,dose={dose:g},share={DOSES[-1]:g}{control}"
                text += f",seed={request.seed + draw}"
                name = setting_name(dose, kind)
                settings.append(Setting(name, request.asked_as, text, decides=dose >= LARGE))
        return settings

    def claims(self, evidence: Evidence) -> list[Claim]:
        bar = _bar(evidence)
        theta = _more_lost(evidence, "lost per point, ARM − MDM")
        variants = [*other_deltas(NEEDED, theta, bar=bar)]
        for label, doses in (
            ("the largest dose alone", DOSES[-1:]),
            ("without the largest dose", DOSES[:-1]),
        ):
            variants.append(vary(label, NEEDED, _more_lost(evidence, label, doses), bar=bar))
        label = "without a control"
        variants.append(
            vary(label, NEEDED, _more_lost(evidence, label, kinds={ANCHORS: 1.0}), bar=bar)
        )
        arm, mdm = (
            _lost(evidence, model, f"{kind}: lost per point, anchors − random columns")
            for kind, model in (("ARM", evidence.arm), ("MDM", evidence.mdm))
        )
        sentence = ""
        if arm and mdm:
            sentence = (
                "For each point of attention taken from anchors instead of random columns, the ARM loses "
                f"{format_number(arm)} and the MDM {format_number(mdm)}."
            )
        checks = (
            Check("the ARM needs its anchors", lies_above(arm, NEEDED.delta)),
            Check("the MDM does not need its anchors", lies_below(mdm, NEEDED.delta)),
        )
        verdict: dict[str, Any] = {"checks": checks, "variants": tuple(variants), "bar": bar}
        return [judge(NEEDED, self.name, theta, sentence=sentence, numbers=(arm, mdm), **verdict)]

    def findings(self, evidence: Evidence) -> Iterator[str]:
        for model in evidence.models:
            base, parts = evidence.right(WITH, model), []
            for kind, name in ((ANCHORS, "anchors"), (RANDOM, "random columns")):
                removed = _removed(evidence, model, kind, DOSES)
                right = [evidence.right(setting_name(dose, kind), model) for dose in DOSES]
                if removed is not None and all(right):
                    after = ", ".join(format_value(share.value, "%") for share in right if share)
                    points = ", ".join(format_value(x, "%", bare=True) for x in removed)
                    parts.append(f"{after} with {points} points of attention taken from {name}")
            if base and parts:
                yield f"{model}: {format_number(base)} right; {'; '.join(parts)}."

    def figures(self, evidence: Evidence) -> list[Picture]:
        names = [s.name for s in self.settings(evidence.request)]
        if not names:
            return []
        title = "Right answers with less attention on anchors, or on random columns"
        alt = f"{title}: 5, 10, 20 and 30 points less, for every model, with 95 % intervals."
        return [draw_answers(evidence, names, "robustness", title, alt)]


def setting_name(dose: float, kind: str) -> str:
    return f"{100 * dose:g}-points-{kind}"


def _bar(evidence: Evidence) -> str:
    """Return why this run cannot test claim 8; "" if it can."""
    if bar := no_answers(evidence.request):
        return bar
    for name, model in (("causal", evidence.arm), ("diffusion", evidence.mdm)):
        base = evidence.right(WITH, model)
        if model is None or base is None:
            return f"No {name} model was asked: add one with --model."
        if not lies_above(base, ROOM):
            return (
                f"The {name} model answers {format_number(base)} right with all of its attention, "
                "and has too little to lose: ask questions of which it answers more than "
                f"{100 * ROOM:.0f} %."
            )
        for kind in (ANCHORS, RANDOM):
            removed = _removed(evidence, model, kind, DOSES[-1:])
            if removed is None:
                return f"The {name} model was not asked with less attention on {kind}: run the study again."
            if removed[0] < REACHED * DOSES[-1]:
                return (
                    f"In the {name} model {kind} could lose {format_value(removed[0], '%')} of a head's "
                    f"attention instead of {100 * DOSES[-1]:.0f} %: use longer prompts."
                )
    return evidence.cut_off((WITH,), evidence.arm, evidence.mdm)


def _removed(
    evidence: Evidence, model: str | None, kind: str, doses: Sequence[float]
) -> np.ndarray | None:
    """Return the share of attention that was removed at each dose, mean over questions; None if unknown."""
    hidden = [evidence.hidden(setting_name(dose, kind), model) for dose in doses]
    return None if None in hidden else np.array([pair[0] for pair in hidden if pair])


def _slopes(
    evidence: Evidence, model: str | None, kind: str, doses: Sequence[float]
) -> tuple[dict[str, float], float]:
    """Return each question's answers lost per point of attention removed, and the largest possible value.

    The mean of the values over questions is the slope of a least-squares line through 0.
    """
    removed = _removed(evidence, model, kind, doses)
    gaps = [evidence.gap_by_id(setting_name(dose, kind), WITH, model) for dose in doses]
    if removed is None or not removed.any() or not all(gaps):
        return {}, 0.0
    ids = list(gaps[-1])
    # Contribution of each question; the mean of all contributions is the slope of all answers.
    scale = sum(x**2 * len(gap) for x, gap in zip(removed, gaps, strict=True)) / len(ids)
    slopes = {
        id: -sum(x * gap.get(id, 0.0) for x, gap in zip(removed, gaps, strict=True)) / scale
        for id in ids
    }
    return slopes, float(removed.sum() / scale)


_BEYOND = {ANCHORS: 1.0, RANDOM: -1.0}


def _combined(
    evidence: Evidence,
    signs: dict[tuple[str | None, str], float],
    label: str,
    doses: Sequence[float],
) -> Number | None:
    """Return the mean over questions of a sum of slopes; `signs` maps (model, kind of column) to a sign.

    Questions that were not asked in every setting are left out.
    """
    parts = {place: _slopes(evidence, *place, doses) for place in signs}
    first = next(iter(parts.values()))[0]
    ids = [id for id in first if all(id in slopes for slopes, _ in parts.values())]
    sums = [sum(signs[place] * slopes[id] for place, (slopes, _) in parts.items()) for id in ids]
    bound = sum(largest for _, largest in parts.values())
    (model, kind), *_ = signs
    return number(
        np.array(sums),
        label,
        PER,
        level=NEEDED.level,
        null=0.0,
        bounds=(-bound, bound) if sums else None,
        clusters=evidence.clusters(ids, setting_name(doses[-1], kind), model),
    )


def _more_lost(
    evidence: Evidence,
    label: str,
    doses: Sequence[float] = DOSES,
    kinds: dict[str, float] = _BEYOND,
) -> Number | None:
    """Return the answers lost per point of attention, ARM − MDM; `kinds` are signs of kinds of columns."""
    models = {evidence.arm: 1.0, evidence.mdm: -1.0}
    signs = {(model, kind): a * b for model, a in models.items() for kind, b in kinds.items()}
    return _combined(evidence, signs, label, doses)


def _lost(evidence: Evidence, model: str | None, label: str) -> Number | None:
    """Return the answers that a model loses per point of attention, anchors − random columns."""
    return _combined(evidence, {(model, kind): s for kind, s in _BEYOND.items()}, label, DOSES)
