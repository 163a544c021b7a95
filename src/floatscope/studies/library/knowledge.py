"""Study how much a model gains from passages."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ...stats.intervals import DIFFERENCES
from ...tasks.conditions import Condition
from ...tasks.world_questions import has_known, passages_of
from ..claim import Check, Claim, Number, Variant, format_number, format_value, lies_above
from ..draw import Picture, draw_answers
from ..evidence import Evidence
from ..gains import TWICE, Gains, Unpaired, aligned
from ..long_answers import no_answers
from ..numbers import number
from ..request import Request
from ..setting import KNOWN, Setting
from ..study import Study
from ..verdict import Rule, judge, other_deltas, vary

CLOSED, WITH = "closed-book", "with-passages"
_SCORES = {"exact_match": "exact match", "f1": "F1"}  # beside the contained answer


class Knowledge(Study):
    """The study `knowledge`: how much a diffusion and a causal model gain from passages (claim 7)."""

    name = "knowledge"
    options = ("gain_questions",)
    question = "How much does a model gain from passages?"
    rules = (
        Rule(
            "7",
            "Diffusion models gain about twice as much from passages",
            f"gain of the MDM − {TWICE:g} × gain of the ARM, paired by question",
            delta=0.0,
            unit="points",
            holds="Passages help this diffusion model far more than this autoregressive one.",
            refuted="Passages do not help this diffusion model anything like twice as much as the other.",
        ),
    )
    method = """\
right: a right answer (any alias, SQuAD's normalisation) is contained in what was said
gain  = with passages − closed book, question by question, on one template, one number of masks and one
        decoding budget; closed book keeps nothing of the retrieval scaffolding
θ     = gain of the MDM − 1.5 × gain of the ARM, over the questions that both were asked both ways
not testable: a model is missing; a model knows less than 20 % or more than 60 % without passages, or more
        than 95 % with them; 1.5 times the ARM's gain is more than the MDM could gain; more than half of
        the answers of a setting have no end token within the length
flatness: the same questions with the gold passage at every place of a sweep
(Published as "about twice", 2601.07894: a ratio of gains of different models, with another prompt for one of
them. A difference from 1.5 times has an interval where a ratio of small gains has none.)"""

    def settings(self, request: Request) -> list[Setting]:
        if no_answers(request):
            return []
        prefix = "" if request.asked_as == "as-is" else f"{request.asked_as},"
        settings = [
            Setting(CLOSED, "closed-book", questions=request.gain_questions, decides=True),
            Setting(WITH, request.asked_as, questions=request.gain_questions, decides=True),
            *(Setting(f"gold-{n}", f"{prefix}gold={n}") for n in self._places(request)),
        ]
        if has_known(request.data):
            settings += [
                Setting("known-closed-book", "closed-book", people=KNOWN),
                Setting("known-with-passages", request.asked_as, people=KNOWN),
            ]
        return settings

    def _places(self, request: Request) -> list[int]:
        """Return the indices of the first, middle and last passage; [] if their number is unknown."""
        n = Condition.parse(request.asked_as).passages
        n = passages_of(request.data) if n is None else n
        return [] if n is None or n < 2 else sorted({0, n // 2, n - 1})

    def claims(self, evidence: Evidence) -> list[Claim]:
        rule, models = self.rules[0], (evidence.mdm, evidence.arm)
        tables = [evidence.answers(s, m) for m in models for s in (CLOSED, WITH)]
        available = [table for table in tables if table is not None]
        bar = no_answers(evidence.request)
        if not bar and None in models:
            missing = "diffusion" if evidence.mdm is None else "autoregressive"
            bar = f"No {missing} model is in the run: add one with --model."
        elif not bar and len(available) < len(tables):
            bar = "Questions must be asked without and with passages: give data with passages."
        try:
            paired = aligned(available) if not bar else []
        except Unpaired as error:
            bar = str(error)
        if bar:
            return [judge(rule, self.name, None, bar=bar, sentence="There is nothing to compare.")]
        gains = Gains.from_tables(paired)
        cut = evidence.cut_off((CLOSED, WITH), *models)
        bar, theta = cut or gains.bar(), gains.theta()
        mdm, arm, difference = (
            number(values, label, "points", null=0.0, bounds=bounds, clusters=gains.clusters)
            for values, label, bounds in (
                (gains.mdm, "MDM: gain from passages", DIFFERENCES),
                (gains.arm, "ARM: gain from passages", DIFFERENCES),
                (gains.mdm - gains.arm, "MDM − ARM", (-2, 2)),
            )
        )
        checks = tuple(
            Check(label, None if n is None else lies_above(n, 0.0))
            for label, n in (
                ("the MDM gains", mdm),
                ("the ARM gains", arm),
                ("the MDM gains more than the ARM", difference),
            )
        )
        variants = (
            *other_deltas(rule, theta, bar=bar),
            *(_varied(f"{f:g}× instead of {TWICE:g}×", rule, gains, cut, f) for f in (1, 2)),
            *(
                _varied(name, rule, Gains.from_tables(paired, key), cut)
                for key, name in _SCORES.items()
                if not np.isnan(paired[0][key]).all()
            ),
            *_by_people(rule, gains, paired[0].get("known"), cut),
        )
        n_asked = max(len(table["id"]) for table in available)
        sentence = (
            f"Passages raise the share of right answers by {_words(mdm)} in the MDM and {_words(arm)} "
            f"in the ARM, over {len(gains.mdm)} of {n_asked} questions."
        )
        return [
            judge(
                rule,
                self.name,
                theta,
                bar=bar,
                sentence=sentence,
                numbers=(mdm, arm, difference),
                checks=checks,
                variants=variants,
            )
        ]

    def findings(self, evidence: Evidence) -> Iterator[str]:
        for model in evidence.models:
            closed, read = (evidence.right(s, model) for s in (CLOSED, WITH))
            if closed is None or read is None:
                continue
            line = f"{model}: {format_number(closed)} right closed-book, {format_number(read)} with passages"
            places = self._sweep(evidence, model)
            if places:
                values = [n.value for n in places.values()]
                line += (
                    f"; from {format_value(min(values), '%')} to {format_value(max(values), '%')} "
                    "over gold positions"
                )
            yield line + "."
            for setting in (CLOSED, WITH):
                if note := evidence.cut_note(setting, model):
                    yield f"{model}, {setting}: {note}."
            if read.value > 0.95:
                yield "With passages it is near the ceiling: a gain cannot be larger there."

    def _sweep(self, evidence: Evidence, model: str) -> dict[int, Number]:
        shares = {p: evidence.right(f"gold-{p}", model) for p in self._places(evidence.request)}
        return {p: n for p, n in shares.items() if n is not None}

    def figures(self, evidence: Evidence) -> list[Picture]:
        names = [s.name for s in self.settings(evidence.request)]
        if not names:
            return []
        alt = "Share of right answers in every condition, for every model, with 95 % intervals."
        return [draw_answers(evidence, names, "knowledge", "Right answers by condition", alt)]


def _words(number: Number | None) -> str:
    return "an unknown amount" if number is None else format_number(number)


def _varied(label: str, rule: Rule, gains: Gains, cut: str, factor: float = TWICE) -> Variant:
    """Return a variant of claim 7 for other gains or another factor; `cut` makes it untestable."""
    other = replace(rule, quantity=f"gain of the MDM − {factor:g} × gain of the ARM")
    return vary(label, other, gains.theta(factor), bar=cut or gains.bar(factor))


def _by_people(rule: Rule, gains: Gains, is_known: np.ndarray | None, cut: str) -> list[Variant]:
    """Return the variants of claim 7 for known and for unseen people; [] unless the run has both."""
    if is_known is None:
        return []
    groups = {"known people alone": is_known == True, "unseen people alone": is_known == False}  # noqa: E712
    if not all(members.any() for members in groups.values()):
        return []
    return [_varied(name, rule, gains.among(members), cut) for name, members in groups.items()]
