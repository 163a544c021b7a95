"""Compare the claims of several runs, with each model or each training as one unit.

The prompts of one model support a statement about that model. Five or more units support a statement about
models in general. For five or more units, each claim has a random-effects mean over the units, and a verdict
with the smallest effect δ and the level of its rule. For fewer units, the results are listed without a
verdict. This module runs no model: it reads runs with `Findings`.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy

from ..engine.plan import differences
from ..errors import UsageError
from ..stats.intervals import COUNTS, DIFFERENCES, SHARES, RandomEffects, random_effects_mean
from ..stats.intervals.means import Bounds
from .claim import Claim, Number, as_json, format_value
from .findings import Findings
from .gains import TWICE
from .registration import rules_of
from .verdict import ARM, MDM, Rule, outcome

LEAST_UNITS = 5  # of a verdict over units
_RANGES: dict[str, Bounds] = {"%": SHARES, "points": DIFFERENCES, "layers": COUNTS, "×": COUNTS}
_OTHER_RANGES: dict[str, Bounds] = {"7": (-1 - TWICE, 1 + TWICE)}  # claims, by number


@dataclass(frozen=True)
class Unit:
    """A unit of the comparison: the result of one run for one claim."""

    name: str
    claim: Claim
    weights: tuple[str, ...]  # fingerprints of the models that the claim is about


@dataclass(frozen=True)
class ClaimComparison:
    """The results of a claim for each unit (a model or a training), and for the mean over the units."""

    rule: Rule
    units: tuple[Unit, ...]
    mean: Number | None  # over units; None if nothing is decided
    effects: RandomEffects | None
    verdict: str  # verdict on the mean; "" if nothing is decided
    why: str

    def as_json(self) -> dict[str, Any]:
        """Return the comparison as a nested dict of plain values."""
        rule = self.rule
        return {
            "number": rule.number,
            "text": rule.text,
            "quantity": rule.quantity,
            "delta": rule.delta,
            "unit": rule.unit,
            "level": rule.level,
            "units": [
                {
                    "name": unit.name,
                    "verdict": unit.claim.verdict,
                    "scope": unit.claim.scope,
                    "theta": as_json(unit.claim.theta) if unit.claim.theta else None,
                }
                for unit in self.units
            ],
            "mean": asdict(self.effects) if self.effects else None,
            "verdict": self.verdict,
            "why": self.why,
        }


def compare(
    directories: Sequence[Path], numbers: Sequence[str] = ()
) -> tuple[ClaimComparison, ...]:
    """Compare the claims of several runs; `numbers`, such as "9a", selects claims (all by default).

    A unit is the first diffusion model and the first causal model of a run, or of an extra run in the run's
    directory. Raise an error if runs were registered with different rules.
    """
    findings = [Findings(directory) for directory in directories]
    _require_same_rules(findings, numbers)
    parts = [(main, part) for main in findings for part in (main, *main.extra_runs)]
    names = _names(parts)
    by_claim: dict[str, list[Unit]] = {}
    rules: dict[str, Rule] = {}
    for (_, part), name in zip(parts, names, strict=True):
        for study in part.studies:
            rules_by_number = {rule.number: rule for rule in study.rules}
            for claim in part.claims[study.name]:
                if claim.number in rules_by_number and (not numbers or claim.number in numbers):
                    rules.setdefault(claim.number, rules_by_number[claim.number])
                    unit = Unit(name, claim, _weights(part, rules_by_number[claim.number]))
                    by_claim.setdefault(claim.number, []).append(unit)
    if unknown := [number for number in numbers if number not in rules]:
        raise UsageError(
            f"no run has a claim {unknown[0]}", f"There are: {', '.join(rules) or 'none'}."
        )
    return tuple(_compare_claim(rules[number], units) for number, units in by_claim.items())


def _compare_claim(rule: Rule, units: Iterable[Unit]) -> ClaimComparison:
    units = tuple(units)
    measured = [unit for unit in units if _error(unit.claim.theta, rule) is not None]
    deltas = {unit.claim.curve.delta for unit in measured if unit.claim.curve}
    twice = [w for w, n in Counter(unit.weights for unit in measured).items() if n > 1]
    why = ""
    if len(measured) < LEAST_UNITS:
        why = (
            f"{len(measured)} of {len(units)} units have θ with an interval: fewer than {LEAST_UNITS} are "
            "listed side by side without a verdict."
        )
    elif len(deltas) > 1:
        shown = ", ".join(format_value(delta, rule.unit) for delta in sorted(deltas))
        why = f"Units have different smallest effects (δ = {shown}): listed without a verdict."
    elif twice:
        names = [unit.name for unit in measured if unit.weights == twice[0]]
        why = f"{' and '.join(names)} have the same weights and are one unit: listed without a verdict."
    if why:
        return ClaimComparison(rule, units, None, None, "", why)
    rule = replace(rule, delta=deltas.pop() if deltas else rule.delta)
    effects = _effects([unit.claim.theta for unit in measured], rule)
    control = _effects([unit.claim.control for unit in measured], rule)
    mean = _number(rule, effects)
    of_mean = replace(rule, count=False)  # the mean of counts is not a count
    verdict, why = outcome(of_mean, mean, _number(rule, control), plan=False)
    return ClaimComparison(rule, units, mean, effects, verdict, why)


def _effects(several: Sequence[Number | None], rule: Rule) -> RandomEffects | None:
    """Compute the random-effects mean of the units' numbers; None if a number has no interval."""
    estimates = [(n.value, error) for n in several if n and (error := _error(n, rule)) is not None]
    if len(estimates) < len(several):
        return None
    values, errors = np.array(estimates, float).T
    bounds = _OTHER_RANGES.get(rule.number, _RANGES.get(rule.unit))  # not every unit has any
    return random_effects_mean(values, errors, level=rule.level, bounds=bounds)


def _number(rule: Rule, effects: RandomEffects | None) -> Number | None:
    if effects is None:
        return None
    label = f"mean over {effects.units} units"
    return Number(
        label, effects.mean, effects.low, effects.high, unit=rule.unit, level=effects.level
    )


def _error(theta: Number | None, rule: Rule) -> float | None:
    """Return the standard error of θ: the half-width of its interval, divided by Student's quantile.

    For a count, the half-width is at least one half, because both ends of the interval may be equal. Return
    None if θ has no interval.
    """
    if theta is None or theta.low is None or theta.high is None or not theta.n or theta.n < 2:
        return None
    half = max((theta.high - theta.low) / 2, 0.5 if rule.count else 0.0)
    if not np.isfinite(half) or half <= 0:
        return None
    return float(half / scipy.special.stdtrit(theta.n - 1, (1 + theta.level) / 2))


def _weights(part: Findings, rule: Rule) -> tuple[str, ...]:
    models = {MDM: part.mdm, ARM: part.arm}
    named = (models[kind] for kind in rule.models)
    return tuple(str(part.models[name]["fingerprint"]) for name in named if name)


def _names(parts: Sequence[tuple[Findings, Findings]]) -> list[str]:
    """Return the name of each unit: its models and, if other units have them too, the run's directory."""
    models = [" and ".join(filter(None, (part.mdm, part.arm))) for _, part in parts]
    where = [
        "/".join(filter(None, (main.run.directory.name, part.label))) or str(main.run.directory)
        for main, part in parts
    ]
    names = [
        f"{place}: {name}" if models.count(name) > 1 else name
        for name, place in zip(models, where, strict=True)
    ]
    return [f"{n} ({i})" if names.count(n) > 1 else n for i, n in enumerate(names, 1)]


def _require_same_rules(findings: Sequence[Findings], numbers: Sequence[str]) -> None:
    """Refuse runs that registered different rules for the same claim; `numbers` selects claims."""
    first: dict[str, tuple[Findings, dict[str, Any]]] = {}
    for main in findings:
        if main.registered is None:
            continue
        for number, rule in rules_of(main.registered.registration).items():
            if numbers and number not in numbers:
                continue
            before, first_rule = first.setdefault(number, (main, rule))
            if conflicts := list(differences(first_rule, rule, f"claim {number}")):
                raise UsageError(
                    f"{before.run.directory} and {main.run.directory} were registered with different "
                    f"rules: {conflicts[0].replace(' now', ' in the second')}",
                    "Run both with one version of Floatscope, or choose claims that agree with --claim.",
                )
