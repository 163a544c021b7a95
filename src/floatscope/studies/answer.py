"""Write the answer in one sentence from the verdicts: does attention float in these models?"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from .claim import Claim, format_number
from .verdict import HOLDS, REFUTED, UNDECIDED

STEPS, SINK = "3", "1"
# Claims that compare a diffusion model with a causal one: they say where it moves more, not that it moves.
_COMPARED = {"4": "over layers", "2": "from prompt to prompt"}


@dataclass(frozen=True)
class ModelClaim:
    """A claim with the models of the run that it comes from."""

    claim: Claim
    mdm: str | None
    arm: str | None


def answer(tested: Iterable[ModelClaim]) -> str:
    """Say where attention floats and where it rests; "" if no such claim was tested."""
    by_number = {model_claim.claim.number: model_claim for model_claim in tested}
    moving = [by_number[n] for n in (STEPS, *_COMPARED) if n in by_number]
    parts = []
    for mdm in dict.fromkeys(model_claim.mdm for model_claim in moving if model_claim.mdm):
        if clauses := _clauses([model_claim for model_claim in moving if model_claim.mdm == mdm]):
            parts.append(f"in {mdm} {'; '.join(clauses)}")
    parts += _sink(by_number.get(SINK))
    if not parts:
        return ""
    text = "; ".join(parts)
    # A model's name at the beginning keeps its case.
    return f"Does attention float? {'I' + text[1:] if text.startswith('in ') else text}."


def _clauses(tested: Iterable[ModelClaim]) -> list[str]:
    """Say of one diffusion model where attention moves, where it does not, and where that is undecided."""
    steps: dict[str, str] = {}
    compared: dict[str, dict[str, list[str]]] = {HOLDS: {}, REFUTED: {}, UNDECIDED: {}}
    for model_claim in tested:
        verdict, number = model_claim.claim.verdict, model_claim.claim.number
        if number == STEPS:
            steps[verdict] = _layers(model_claim.claim)
        elif verdict in compared:
            arm = model_claim.arm or "a causal model"
            compared[verdict].setdefault(arm, []).append(_COMPARED[number])
    moves = [f"over denoising steps{steps[HOLDS]}"] if HOLDS in steps else []
    moves += _phrase_comparisons(compared[HOLDS])
    clauses = [f"it moves {', and '.join(moves)}"] if moves else []
    if REFUTED in steps:
        clauses.append(f"it stays over denoising steps{steps[REFUTED]}")
    for arm, where in compared[REFUTED].items():
        clauses.append(f"it moves {' and '.join(where)} no more than in {arm}")
    unknown = [f"over denoising steps{steps[UNDECIDED]}"] if UNDECIDED in steps else []
    unknown += _phrase_comparisons(compared[UNDECIDED])
    if unknown:
        clauses.append(f"this run cannot tell whether it moves {', or '.join(unknown)}")
    return clauses


def _phrase_comparisons(compared: Mapping[str, list[str]]) -> list[str]:
    return [f"more than in {arm} {' and '.join(where)}" for arm, where in compared.items()]


def _layers(claim: Claim) -> str:
    """Give the number of moving layers, as in " (4 of 12 layers [3, 6])"; "" if it was not measured."""
    theta = claim.theta
    if theta is None:
        return ""
    total = next((n.unit for n in claim.numbers if n.unit.startswith("of ")), "")
    if total and theta.unit == "layers":
        theta = replace(theta, unit=f"{total} layers")
    return f" ({format_number(theta)})"


def _sink(model_claim: ModelClaim | None) -> list[str]:
    """Say whether the causal model rests on its first token; claim 1 compares it with the other model."""
    if model_claim is None or model_claim.arm is None:
        return []
    rests = f"{model_claim.arm} rests on its first token"
    other = model_claim.mdm or "a diffusion model"
    return {HOLDS: [rests], REFUTED: [f"{rests} no more than {other}"]}.get(
        model_claim.claim.verdict, []
    )
