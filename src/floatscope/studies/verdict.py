"""Decide a claim from its primary quantity θ, by a rule that is registered before the run.

- holds: the whole interval of θ is beyond δ, the smallest effect that matters. Some rules also require the
  interval to be beyond θ for untrained weights.
- refuted: the whole interval is on the other side of δ.
- undecided: the interval contains δ, or there are fewer than 20 examples. The reason says how many examples
  would decide the claim.
- not testable: the run has a floor, a ceiling or a missing model. The reason says what would make the claim
  testable.

Intervals are wide enough for all claims of a family to be right together in 95 of 100 runs. The claims of a
family are counted over all registered studies. The package has two families: claims of the literature on
attention, and causal questions. Other quantities are shown beside the primary quantity and never decide a
claim. This module measures nothing.
"""

import math
from dataclasses import dataclass, replace

from ..registry import STUDIES
from ..stats.intervals import MANY, needed
from .claim import CONTROL, THETA, Check, Claim, Curve, Number, Variant, format_number, format_value

# Families of claims that are judged together, because their errors add up. New claims of one family do not
# change the level of another.
LITERATURE, CAUSAL = "literature", "causal"
LEAST = 20  # examples that a verdict needs
HOLDS, REFUTED, UNDECIDED, NOT_TESTABLE = "holds", "refuted", "undecided", "not testable"
MDM, ARM = "mdm", "arm"  # the first diffusion model of a run, and the first causal one
_GRID = (0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 4.0)  # multiples of δ at which a curve gives the verdict
_AROUND_ZERO = (-0.2, -0.1, -0.05, 0.0, 0.05, 0.1, 0.2)  # deltas of a curve if δ is 0


def claims_together(family: str) -> int:
    """Return the number of claims in a family, over all registered studies including plugins; at least 1.

    The claims of a family are judged together. A rule that no study declares is judged alone.
    """
    declared = {rule for study in STUDIES.values() for rule in study.rules if rule.family == family}
    return max(len(declared), 1)


def level_of(family: str) -> float:
    """Return the level of the intervals that decide the claims of a family.

    At this level, all claims of the family are right together in 95 of 100 runs.
    """
    return 1 - 0.05 / claims_together(family)


@dataclass(frozen=True)
class Rule:
    """A rule that decides a claim: the quantity, the direction and the smallest effect that matters.

    Rules are registered before the run.

    Args:
        number (str): Number of the claim, such as "9a".
        text (str): The claim, as a sentence without a full stop.
        quantity (str): The primary quantity θ, in words.
        delta (float): The smallest effect δ that matters.
        unit (str): Unit of θ and δ, as in `Number`; "" by default.
        above (bool): Whether the claim says that θ is above δ (True, by default) or below δ.
        untrained (bool): Whether θ must also be beyond θ for untrained weights; False by default.
        holds (str): The finding in one plain sentence without numbers, if the claim holds; "" by default.
        refuted (str): The finding if the claim is refuted, as for `holds`; "" by default.
        family (str): Family of claims that are judged together; LITERATURE by default.
        count (bool): Whether θ is a count, for which "beyond δ" means δ or more; False by default.
        models (tuple of str): The models whose prompts θ is computed from; by default MDM and ARM, the first
            diffusion model and the first causal model of the run.
        of_layers (float): Share of the model's layers; δ is this number of layers if it is more than
            `delta`; 0 by default.
    """

    number: str
    text: str  # the claim, as a sentence without a full stop
    quantity: str  # θ, in words
    delta: float  # the smallest effect that matters
    unit: str = ""
    above: bool = True  # the claim says that θ is above δ; else below
    untrained: bool = False  # θ must also be beyond that of untrained weights
    holds: str = ""  # the finding in one plain sentence without numbers …
    refuted: str = ""  # … and the finding if the claim is refuted
    family: str = LITERATURE  # the family of claims with which it is judged
    count: bool = False  # θ is a count, which is beyond δ if it is δ or more
    models: tuple[str, ...] = (MDM, ARM)  # whose prompts θ is computed from
    of_layers: float = 0.0  # δ is this share of the model's layers, if that is more than `delta`

    @property
    def level(self) -> float:
        """Level of the interval that decides the claim."""
        return level_of(self.family)

    def for_layers(self, n: int) -> "Rule":
        """Return the rule with `delta` set to the δ for a model, if δ depends on the number of layers.

        Args:
            n (int): The model's number of layers.
        """
        if not self.of_layers:
            return self
        share = math.ceil(round(self.of_layers * n, 9))  # rounding errors must not add a layer
        return replace(self, delta=max(self.delta, share), of_layers=0.0)

    def words(self) -> str:
        """Return the rule as text: θ, δ, and when the claim holds or is refuted."""
        side, other = ("above", "below") if self.above else ("below", "above")
        theta, level = f"θ = {self.quantity}.", format_value(self.delta, self.unit)
        if self.of_layers:
            share = f"{100 * self.of_layers:.3g} % of the layers"
            theta, level = f"{theta} δ = {level}, or {share} if that is more.", "δ"
        if self.count:
            return (
                f"{theta} Holds: the lower end of the {self.level:.1%} interval of θ is {level} "
                f"or more; refuted: the upper end is less; else undecided."
            )
        beyond = ", and beyond that of untrained weights" if self.untrained else ""
        return (
            f"{theta} Holds: the {self.level:.1%} interval of θ lies {side} {level}{beyond}; "
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
    remedy: str = "",
) -> Claim:
    """Decide a claim by its rule, and return it with its verdict and numbers.

    Args:
        rule: The rule, as registered before the run.
        study: Name of the study that the claim belongs to.
        primary: θ with its interval at the rule's level; None if θ could not be measured.
        control: θ for untrained weights, with its interval.
        bar: Why this run cannot test the claim, and which run could test it; "" if this run can test it.
        sentence: What was measured, in words.
        numbers: Further quantities for the page.
        checks: Secondary tests, which never decide the claim.
        variants: The verdicts under other rules or for other numbers (`vary`).
        remedy: Advice for an undecided claim, in place of a number of examples.
    """
    verdict, why = outcome(rule, primary, control, bar, remedy=remedy)
    plain = {HOLDS: rule.holds, REFUTED: rule.refuted}.get(verdict, "")
    if not plain:
        lead = (
            "This run cannot tell whether"
            if verdict == UNDECIDED
            else "This run does not test whether"
        )
        plain = f"{lead} {rule.text[:1].lower()}{rule.text[1:]}."
    roles = ((primary, THETA), (control, CONTROL), *((n, "") for n in numbers))
    shown = tuple(replace(n, role=role) for n, role in roles if n is not None)
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
        curve=curve_of(rule, primary, control, bar),
        family=rule.family,
    )


def outcome(
    rule: Rule,
    primary: Number | None,
    control: Number | None = None,
    bar: str = "",
    *,
    plan: bool = True,
    remedy: str = "",
) -> tuple[str, str]:
    """Return the verdict on a claim, and the reason of the verdict; for arguments see `judge`.

    With `plan`, the reason of an undecided claim is the `remedy` or, without a remedy, the number of examples
    that would decide the claim. Computing this number takes a moment.
    """
    if bar:
        return NOT_TESTABLE, bar
    if primary is None:
        return NOT_TESTABLE, "θ could not be measured in this run."
    if rule.untrained and control is None:
        return NOT_TESTABLE, "There is no untrained control in this run: give --controls 1 or more."
    if rule.untrained and not _has_interval(control):
        return (
            NOT_TESTABLE,
            "Untrained weights have no interval: more examples, or examples that differ, are needed.",
        )
    if not _has_interval(primary, or_none_wide=rule.count):
        return (
            UNDECIDED,
            "θ has no interval: more examples, or examples that differ, are needed.",
        )
    if primary.n is not None and primary.n < LEAST:
        return UNDECIDED, f"A verdict needs {LEAST} examples, and there are {primary.n}."
    low, high, delta = _ends(primary, rule.above), _ends(primary, not rule.above), rule.delta
    if rule.count and math.isfinite(delta):  # between two numbers, so that neither end lies on it
        delta = math.ceil(delta) - 0.5
    sign = 1 if rule.above else -1
    level = format_value(rule.delta, rule.unit)
    theta = f"θ = {format_number(replace(primary, null=None))}"
    if sign * (high - delta) < 0:
        return REFUTED, f"{theta}: the whole interval is on the other side of {level}."
    if sign * (low - delta) > 0:
        if not rule.untrained or control is None:
            return HOLDS, f"{theta}: the whole interval is beyond {level}."
        against = format_number(replace(control, null=None))
        if sign * (low - _ends(control, not rule.above)) > 0:
            return (
                HOLDS,
                f"{theta}: the whole interval is beyond {level}, and beyond untrained weights: {against}.",
            )
        return (
            UNDECIDED,
            f"{theta} is beyond {level}, but not beyond untrained weights: {against}.",
        )
    advice = (remedy or power(primary, delta)) if plan else ""
    return UNDECIDED, f"{theta}: the interval contains {level}. {advice}".rstrip()


def power(primary: Number, delta: float) -> str:
    """Return a sentence on how many examples would decide, estimated by resampling the measured examples."""
    if primary.n is None or primary.sample is None:
        return "More examples may decide."
    n = needed(primary.sample, delta)
    if n is None:
        return f"More than {MANY:,} examples would be needed to decide: θ is about as large as δ."
    if n <= primary.n:
        return f"{primary.n:,} examples decide in four of five such runs, but not in this one: use more."
    return f"About {n:,} examples would decide (power 80 %)."


def vary(
    label: str, rule: Rule, primary: Number | None, control: Number | None = None, bar: str = ""
) -> Variant:
    """Return a variant of a claim: its label, and the verdict for another rule or another measured number."""
    return Variant(label, outcome(rule, primary, control, bar, plan=False)[0], primary)


def curve_of(
    rule: Rule, primary: Number | None, control: Number | None = None, bar: str = ""
) -> Curve | None:
    """Return a claim's verdict for a grid of δ, and the two δ at which it changes; None if not testable."""
    deltas: tuple[float, ...] = _AROUND_ZERO
    if rule.delta and rule.unit == "×":  # a lift counts from 1
        deltas = tuple(1 + factor * (rule.delta - 1) for factor in _GRID)
    elif rule.delta:
        deltas = tuple(factor * rule.delta for factor in _GRID)

    def verdict(delta: float) -> str:
        return outcome(replace(rule, delta=delta), primary, control, bar, plan=False)[0]

    verdicts = tuple(verdict(delta) for delta in deltas)
    if primary is None or NOT_TESTABLE in verdicts:
        return None
    # Beyond any δ: is there a verdict of this kind at all (20 examples, more than untrained weights)?
    easy, hard = (-math.inf, math.inf) if rule.above else (math.inf, -math.inf)
    return Curve(
        deltas=deltas,
        verdicts=verdicts,
        delta=rule.delta,
        unit=rule.unit,
        above=rule.above,
        holds_to=_ends(primary, rule.above) if verdict(easy) == HOLDS else None,
        refuted_from=_ends(primary, not rule.above) if verdict(hard) == REFUTED else None,
        count=rule.count,
    )


def other_deltas(
    rule: Rule, primary: Number | None, control: Number | None = None, bar: str = ""
) -> list[Variant]:
    """Return the variants of a claim with half and with twice its δ, or with δ = ±0.05 if δ is 0."""
    if rule.delta:
        levels = {
            f"δ = {format_value(f * rule.delta, rule.unit)}": f * rule.delta for f in (0.5, 2)
        }
        if rule.unit == "×":  # a lift counts from 1
            levels = {
                f"δ = {format_value(d, '×')}": d
                for d in (1 + (rule.delta - 1) / 2, 2 * rule.delta - 1)
            }
    else:
        levels = {f"δ = {format_value(d, rule.unit)}": d for d in (-0.05, 0.05)}
    return [vary(name, replace(rule, delta=d), primary, control, bar) for name, d in levels.items()]


def _has_interval(number: Number | None, *, or_none_wide: bool = False) -> bool:
    """Return whether a number has a finite interval; with `or_none_wide`, its two ends may be equal."""
    if number is None or number.low is None or number.high is None:
        return False
    return (
        math.isfinite(number.low)
        and math.isfinite(number.high)
        and (number.low < number.high or (or_none_wide and number.low == number.high))
    )


def _ends(number: Number, low: bool) -> float:
    end = number.low if low else number.high
    assert end is not None
    return end
