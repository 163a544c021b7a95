"""Write the answers of a run: one sentence on whether attention floats, and one for each question."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from .claim import Claim, format_number, format_value
from .verdict import HOLDS, NOT_TESTABLE, REFUTED, UNDECIDED

# Claims that compare a diffusion model with a causal one: they say where it moves more, not that it moves.
_COMPARED = {"4": "over layers", "2": "from prompt to prompt"}

STEPS, SINK = "3", "1"
FRONTIER = "moving layers: correlation with the frontier"
FLOATS = "Does attention float?"
# The questions of the package's claims, in plain words; a claim with a name for it answers a part.
_QUESTIONS: dict[str, dict[str, str]] = {
    FLOATS: {
        "3": "Over denoising steps",
        "4": "From layer to layer",
        "2": "From prompt to prompt",
    },
    "Does the causal model rest on its first token?": {"1": ""},
    "Does the norm of keys matter more in shallow layers?": {"5": ""},
    "Do layers turn from structure to content?": {"6a": "", "6b": "More than in the causal model"},
    "Do passages help diffusion models 1.5 times as much as causal ones?": {"7": ""},
    "Do diffusion models need their anchors less than causal ones?": {"8": ""},
    "What is revealed first?": {
        "9a": "The ends",
        "9b": "Frequent tokens",
        "9c": "A calibrated order helps",
    },
    "Do heads rest on anchors in one kind of text and work in another?": {"10a": ""},
    "Do anchors pass on less than other tokens?": {"10b": ""},
    "Does the answer need the retrieval heads?": {"11": ""},
    "Does the answer go straight from its passage to its place?": {"12": ""},
    "Is a token known before it is revealed?": {"13": ""},
}
# A claim that compares two models, told with the number of each: where it holds, and where it is refuted.
_SIDES = {
    SINK: (
        "The first token receives {of_arm} of attention in {arm}, and {of_mdm} in {mdm}.",
        "The first token receives {of_arm} of attention in {arm}, hardly more than in {mdm} ({of_mdm}).",
    ),
    "4": (
        "In {mdm} the next layer has another anchor in {of_mdm} of cases, in {arm} in {of_arm}.",
        "In {mdm} the next layer has another anchor in {of_mdm} of cases, hardly more than in {arm} "
        "({of_arm}).",
    ),
    "2": (
        "Of pairs of prompts, {of_mdm} have their anchors in different places in {mdm}, and {of_arm} in "
        "{arm}.",
        "Of pairs of prompts, {of_mdm} have their anchors in different places in {mdm}, hardly more than in "
        "{arm} ({of_arm}).",
    ),
    "7": (
        "Right answers rise by {of_mdm} in {mdm} and by {of_arm} in {arm}: more than 1.5 times as much.",
        "Right answers rise by {of_mdm} in {mdm} and by {of_arm} in {arm}: less than 1.5 times as much.",
    ),
}


@dataclass(frozen=True)
class ModelClaim:
    """A claim, with the first diffusion model and the first causal model of its run."""

    claim: Claim
    mdm: str | None
    arm: str | None


@dataclass(frozen=True)
class Part:
    """The contribution of one claim to the answer of a question.

    Args:
        claim (Claim): The claim.
        name (str): Name of the part of the question that the claim answers; "" for the whole question.
        text (str): The answer, as a sentence; "" if the claim was not testable.
        verdict (str): Text that replaces the claim's verdict, such as "in some layers"; "" (by default) if
            the verdict is not replaced.
    """

    claim: Claim
    name: str
    text: str
    verdict: str = ""


@dataclass(frozen=True)
class Answered:
    """A question and the answers of its claims. A claim without a question forms a question of its own."""

    question: str
    parts: tuple[Part, ...]


def answered(tested: Iterable[ModelClaim]) -> list[Answered]:
    """Return the questions of the tested claims with their answers, "Does attention float?" first."""
    remaining = {model_claim.claim.number: model_claim for model_claim in tested}
    questions = []
    for question, names in _QUESTIONS.items():
        present = {number: remaining.pop(number) for number in names if number in remaining}
        if present:
            parts = tuple(_part(source, names[number]) for number, source in present.items())
            questions.append(Answered(question, parts))
    questions += [Answered(f"{m.claim.text}?", (_part(m, ""),)) for m in remaining.values()]
    return questions


def _part(source: ModelClaim, name: str) -> Part:
    """Return a claim's contribution to its question: one sentence about the models of its run."""
    claim, text, verdict = source.claim, source.claim.plain, ""
    mdm, arm = _side(claim, "MDM"), _side(claim, "ARM")
    if claim.verdict == NOT_TESTABLE:
        text = ""
    elif claim.verdict == UNDECIDED:
        pass
    elif claim.number == STEPS:
        text = _over_steps(source)
        verdict = "in some layers" if claim.verdict == HOLDS else ""
    elif claim.number in _SIDES and mdm and arm:
        template = _SIDES[claim.number][claim.verdict == REFUTED]
        text = template.format(mdm=source.mdm, arm=source.arm, of_mdm=mdm, of_arm=arm)
    return Part(claim, name, text, verdict)


def _over_steps(source: ModelClaim) -> str:
    layers = _moving(source.claim)
    if source.claim.verdict == REFUTED:
        moving = layers and f" ({layers} move)"
        return f"{source.mdm} keeps its anchors while the answer fills in{moving}."
    frontier = next((n for n in source.claim.numbers if n.label == FRONTIER), None)
    along = ""
    if frontier and frontier.low is not None and frontier.low > 0:
        along = " and follows the boundary between revealed and masked text"
    return (
        f"In {layers or 'some layers'} of {source.mdm} the anchor, the most attended key, moves{along}; in "
        "the other layers it stays."
    )


def _moving(claim: Claim) -> str:
    """Return the number of moving layers as text, as in "4 of 12 layers (interval 3 to 6)"."""
    theta, text = claim.theta, _layers(claim).strip(" ()")
    if theta is None or theta.low is None or theta.high is None:
        return text
    return f"{text.partition(' [')[0]} (interval {theta.low:.0f} to {theta.high:.0f})"


def _side(claim: Claim, kind: str) -> str:
    """Return the value of the model of this kind in a claim that compares two models; "" if it has none."""
    for number in claim.numbers:
        if number.label.startswith(f"{kind}: ") and number.unit in ("%", "points"):
            return format_value(number.value, number.unit)
    return ""


def answer(tested: Iterable[ModelClaim]) -> str:
    """Return one sentence on where attention moves and where it rests; "" if no such claim was decided."""
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
    """Return clauses about one diffusion model: where attention moves, where it stays, what is undecided."""
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
    """Return the number of moving layers as text, as in " (4 of 12 layers [3, 6])"; "" if not measured."""
    theta = claim.theta
    if theta is None:
        return ""
    total = next((n.unit for n in claim.numbers if n.unit.startswith("of ")), "")
    if total and theta.unit == "layers":
        theta = replace(theta, unit=f"{total} layers")
    return f" ({format_number(theta)})"


def _sink(model_claim: ModelClaim | None) -> list[str]:
    """Return the clause of claim 1: whether the causal model rests on its first token; [] if undecided."""
    if model_claim is None or model_claim.arm is None:
        return []
    rests = f"{model_claim.arm} rests on its first token"
    other = model_claim.mdm or "a diffusion model"
    return {HOLDS: [rests], REFUTED: [f"{rests} no more than {other}"]}.get(
        model_claim.claim.verdict, []
    )
