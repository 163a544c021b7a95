"""From a claim's one primary quantity to its verdict, by a rule that is written down before any run.

    holds         the whole interval lies beyond δ, and beyond the same quantity of untrained weights
    refuted       the whole interval lies on the other side of δ
    undecided     it straddles; how many examples would decide is said
    not testable  a floor, a ceiling, a model that is not there; what would make it testable is said

The interval is wide enough for all claims of a family to be right together in 95 of 100 runs. There are
two: what the literature says of attention, and causal questions. Other quantities are shown beside the
primary one, and never decide. Nothing is measured here.
"""

import math
from dataclasses import dataclass, replace

from ..stats.intervals import needed
from .claim import Check, Claim, Number, Variant, said, short

LITERATURE, CAUSAL = "literature", "causal"
# Claims that are judged together: their errors add up. Whoever asks more questions of another kind leaves
# those that were asked before as they were.
FAMILIES = {LITERATURE: 10, CAUSAL: 3}


def level_of(family: str) -> float:
    """Of the intervals that decide, so that a family's are right together in 95 of 100 runs."""
    return 1 - 0.05 / FAMILIES[family]


TOGETHER = FAMILIES[LITERATURE]
LEVEL = level_of(LITERATURE)
MANY = 10_000  # more examples than this are not worth naming
HOLDS, REFUTED, UNDECIDED, NOT_TESTABLE = "holds", "refuted", "undecided", "not testable"


@dataclass(frozen=True)
class Rule:
    """A claim as it is put before the run: what is measured, which way, and how much matters."""

    number: int
    text: str  # the claim, as a sentence without a full stop
    quantity: str  # θ, in words
    delta: float  # the smallest effect that matters
    unit: str = ""
    more: bool = True  # the claim says that θ is above δ; else below
    untrained: bool = False  # θ must also be beyond what untrained weights earn
    holds: str = ""  # the finding in one plain sentence without numbers …
    refuted: str = ""  # … and where it comes out the other way
    family: str = LITERATURE  # the claims that it is judged together with

    @property
    def level(self) -> float:
        """Of the interval that decides."""
        return level_of(self.family)

    def words(self) -> str:
        """The rule as a reader checks it."""
        way, other = ("above", "below") if self.more else ("below", "above")
        level = short(self.delta, self.unit)
        beyond = ", and beyond that of untrained weights" if self.untrained else ""
        return (
            f"θ = {self.quantity}. Holds: the {self.level:.1%} interval of θ lies {way} {level}{beyond}; "
            f"refuted: it lies {other} {level}; else undecided."
        )


def judge(
    rule: Rule,
    study: str,
    primary: Number | None,
    *,
    control: Number | None = None,
    bar: str = "",
    sentence: str = "",
    numbers: tuple[Number | None, ...] = (),
    checks: tuple[Check, ...] = (),
    variants: tuple[Variant, ...] = (),
) -> Claim:
    """The claim with its verdict.

    Args:
        rule: what was written down before.
        study: whose claim it is.
        primary: θ with its interval at the rule's level; None where it could not be measured.
        control: the same of untrained weights, with its interval.
        bar: why this run cannot test the claim, and what would; "" if it can.
        sentence: what was measured, in words.
        numbers: further quantities for the page.
        checks: secondary tests, which never decide.
        variants: the verdict under other choices (`vary`).
    """
    verdict, why = outcome(rule, primary, control, bar)
    plain = {HOLDS: rule.holds, REFUTED: rule.refuted}.get(verdict, "")
    if not plain:
        clause = rule.text[0].lower() + rule.text[1:]
        lead = "This run cannot tell whether" if verdict == UNDECIDED else "Not tested: whether"
        plain = f"{lead} {clause}."
    shown = tuple(n for n in (primary, control, *numbers) if n is not None)
    return Claim(
        number=rule.number,
        text=rule.text,
        verdict=verdict,
        sentence=sentence,
        numbers=shown,
        study=study,
        plain=plain,
        why=why,
        rule=rule.words(),
        checks=checks,
        variants=variants,
    )


def outcome(
    rule: Rule, primary: Number | None, control: Number | None = None, bar: str = ""
) -> tuple[str, str]:
    """Verdict and reason."""
    if bar:
        return NOT_TESTABLE, bar
    if primary is None:
        return NOT_TESTABLE, "θ could not be measured in this run."
    if rule.untrained and control is None:
        return NOT_TESTABLE, "There is no untrained control in this run: give --controls 1 or more."
    if rule.untrained and not _has_interval(control):
        return (
            NOT_TESTABLE,
            "What untrained weights earn has no interval: it takes more examples, and some variation.",
        )
    if not _has_interval(primary):
        return (
            UNDECIDED,
            "θ has no interval: it takes more examples, and some variation among them.",
        )
    low, high, delta = _ends(primary, rule.more), _ends(primary, not rule.more), rule.delta
    sign = 1 if rule.more else -1
    level = short(delta, rule.unit)
    theta = f"θ = {said(replace(primary, null=None))}"
    if sign * (high - delta) < 0:
        return REFUTED, f"{theta}: all of it on the other side of {level}."
    if sign * (low - delta) > 0:
        if not rule.untrained or control is None:
            return HOLDS, f"{theta}: all of it beyond {level}."
        against = said(replace(control, null=None))
        if sign * (low - _ends(control, not rule.more)) > 0:
            return (
                HOLDS,
                f"{theta}: all of it beyond {level}, and beyond untrained weights: {against}.",
            )
        return (
            UNDECIDED,
            f"{theta} lies beyond {level}, but untrained weights earn as much: {against}.",
        )
    return UNDECIDED, f"{theta} straddles {level}. {power(primary, delta, rule.level)}"


def power(primary: Number, delta: float, level: float = LEVEL) -> str:
    """How many examples would decide."""
    if primary.n is None or primary.low is None or primary.high is None:
        return "More examples may decide."
    n = needed(primary.value, primary.low, primary.high, primary.n, delta, level=level)
    if n is None or n > MANY:
        return f"More than {MANY:,} examples would be needed to decide: θ is about as large as δ."
    return f"About {max(n, primary.n + 1):,} examples would decide (power 80 %)."


def vary(
    what: str, rule: Rule, primary: Number | None, control: Number | None = None, bar: str = ""
) -> Variant:
    """The verdict with one choice made otherwise."""
    return Variant(what, outcome(rule, primary, control, bar)[0], primary)


def other_deltas(
    rule: Rule, primary: Number | None, control: Number | None = None, bar: str = ""
) -> list[Variant]:
    """The verdict with half and with twice the smallest effect; with ± the unit's step at δ = 0."""
    if rule.delta:
        levels = {f"δ = {short(f * rule.delta, rule.unit)}": f * rule.delta for f in (0.5, 2)}
        if rule.unit == "×":  # a lift counts from 1
            levels = {
                f"δ = {short(d, '×')}": d for d in (1 + (rule.delta - 1) / 2, 2 * rule.delta - 1)
            }
    else:
        levels = {f"δ = {short(d, rule.unit)}": d for d in (-0.05, 0.05)}
    return [vary(name, replace(rule, delta=d), primary, control, bar) for name, d in levels.items()]


def _has_interval(number: Number | None) -> bool:
    """One that can decide: there, finite, and wider than nothing."""
    if number is None or number.low is None or number.high is None:
        return False
    return math.isfinite(number.low) and math.isfinite(number.high) and number.low < number.high


def _ends(number: Number, low: bool) -> float:
    end = number.low if low else number.high
    assert end is not None
    return end
