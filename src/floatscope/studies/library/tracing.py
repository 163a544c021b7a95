"""Study where and when the answer enters, and whether it passes directly to the rows that write it."""

from typing import ClassVar

import numpy as np

from ...measures.result import Result
from ...stats.intervals import SHARES
from ...stats.thirds import thirds
from ..anchored import names_of, pseudo_values
from ..claim import Check, Claim, Number, format_number, format_value, lies_above
from ..evidence import Evidence
from ..experiments.answer_tracing import ANSWER, SPAN, AnswerTracing, shares
from ..experiments.base import Experiment
from ..long_answers import no_answers, no_passages
from ..numbers import number
from ..request import Request
from ..study import Shows, Study
from ..verdict import CAUSAL, MDM, Rule, judge, other_deltas

KEY = "answer-tracing"
# effect of the passage's answer above which it can be traced, in nats per token
LEAST = 0.5
NEAR = 0.01  # share of the gap: values this close to 0 or 1 differ from it by rounding
FEW = 5  # fewest questions off these ends for which their spread is used

STRAIGHT = Rule(
    "12",
    "The answer goes straight from its tokens in the passage to the rows that write it",
    "share of what the right answer in the passage is worth (log-probability, clean − corrupted run) that is "
    "left when all positions but the answer's tokens in the passage and the answer's rows are held as in the "
    "corrupted run, in all layers, MDM",
    delta=0.5,
    unit="%",
    holds="This diffusion model takes the answer from the passage's own tokens and needs no other position.",
    refuted="In this diffusion model most of the answer reaches its rows by way of other positions.",
    family=CAUSAL,
    models=(MDM,),
)


class Tracing(Study):
    """The study `tracing`: whether the answer passes directly to the rows that write it (claim 12)."""

    name = "tracing"
    question = (
        "Where and when does the answer enter, and does it go straight to the rows that write it?"
    )
    rules = (STRAIGHT,)
    by_name = True
    method = """\
clean run: the prompt as it is; corrupted run: another question's answer of as many tokens in its passages
both follow the clean prompt's decoding: at each step that reveals tokens of the gold answer, these are
        scored, with the same tokens on both canvases; the parts add up to the answer's log-probability in
        that order
gap    = clean − corrupted
patch: the clean run's residual at the input of one layer, at the positions of one group, put into the
        corrupted run at one step; what it brings back is given as a share of the gap, both added up over
        questions
groups: the answer's tokens in the passages (where the prompts differ), the rest of the gold passage, other
        passages, question, template, the rows of the answer (the position before it too, where logits are
        shifted)
θ      = (direct − corrupted) / gap. direct: the clean run with every position outside the answer's tokens in
        the passage and the answer's rows held at its corrupted value in all layers (path patching)
not testable: no diffusion model; the gap's interval is not above 0.5 nats a token, as with untrained weights
Patched at layer 0, the answer's tokens in the passage restore the clean run exactly, and the answer's rows
nothing: between those ends lies the finding."""

    shows: ClassVar[Shows] = {
        KEY: (
            "Where and when the answer enters",
            "Share of the gap between clean and corrupted run that one patch of the residual restores: by "
            "layer and group of positions, and by step and layer for the answer's tokens in the passage and "
            "the answer's rows.",
        )
    }

    def experiments(self, request: Request) -> dict[str, Experiment]:
        return {} if no_answers(request) or no_passages(request) else {KEY: AnswerTracing()}

    def claims(self, evidence: Evidence) -> list[Claim]:
        result = evidence.result(KEY, evidence.mdm)
        worth = _worth(result, "MDM: effect of the passage's answer, per token")
        control = _worth(
            evidence.control(KEY, evidence.mdm),
            "untrained MDM: effect of the passage's answer, per token",
        )
        bar = no_answers(evidence.request) or _bar(evidence, result, worth)
        theta = _direct(result, "MDM: direct share", STRAIGHT.level)
        arm = _direct(evidence.result(KEY, evidence.arm), "ARM: direct share", 0.95)
        first = _restored_share(
            result, SPAN, "first", "MDM: in the passage's tokens, first third of the layers"
        )
        last = _restored_share(
            result, ANSWER, "last", "MDM: at the answer's rows, last third of the layers"
        )
        sentence = ""
        if result is not None and theta and worth:
            sentence = (
                f"The answer in the passage adds {format_number(worth)} per token to the gold answer's "
                f"log-probability in the MDM; {format_number(theta)} of this pass directly from its tokens; "
                f"{_crossing(result)}."
            )
        checks = (
            Check(
                "in the first third of the layers the answer is in the passage's tokens",
                lies_above(first, 0.5),
            ),
            Check(
                "in the last third of the layers the answer is at its rows", lies_above(last, 0.5)
            ),
        )
        return [
            judge(
                STRAIGHT,
                self.name,
                theta,
                bar=bar,
                sentence=sentence,
                numbers=(arm, first, last, worth, control),
                checks=checks,
                variants=tuple(other_deltas(STRAIGHT, theta, bar=bar)),
            )
        ]

    def findings(self, evidence: Evidence) -> list[str]:
        if why := no_answers(evidence.request) or no_passages(evidence.request):
            return [why]
        results = evidence.results(KEY)
        return [f"{model}: {_finding(result)}." for model, result in results.items()]


def _finding(result: Result) -> str:
    worth = _worth(result, "")
    if worth is None or not lies_above(worth, LEAST):
        small = f" ({format_number(worth)} a token)" if worth else ""
        return f"the passage's answer is worth too little to be traced{small}"
    gap = result.data["gap"]
    step = int(gap["step"].values[int(gap.values.argmax())])
    part = format_value(float(gap.max() / gap.sum()), "%")
    return f"{_crossing(result)}; {part} of it enters at step {step}"


def crossing(result: Result) -> int | None:
    """Return the first layer at which the answer's rows restore more than its passage tokens, or None."""
    data = shares(result).sum("step")
    over = np.flatnonzero(data.sel(group=ANSWER).values > data.sel(group=SPAN).values)
    return int(data["layer"].values[over[0]]) if len(over) else None


def _crossing(result: Result) -> str:
    layer = crossing(result)
    where = "at no layer" if layer is None else f"from the input of layer {layer} on"
    return f"{where} the answer's rows hold more of it than its tokens in the passage"


def _direct(result: Result | None, label: str, level: float) -> Number | None:
    if result is None:
        return None
    return _of_gap(result, _values(result, "direct"), label, level)


def _restored_share(result: Result | None, group: str, part: str, label: str) -> Number | None:
    """Return the share of the gap that patching a group restores, as a mean over a third of the layers.

    `part` is "first" or "last".
    """
    if result is None:
        return None
    layers = result.data["layer"].values
    depth = thirds(len(layers))[part]
    values = (
        result.examples["restored"].sel(group=group).isel(layer=depth).mean("layer").sum("step")
    )
    return _of_gap(result, values.values, label, 0.95)


def _of_gap(result: Result, part: np.ndarray, label: str, level: float) -> Number | None:
    """Return a part's share of the gap, both summed over questions, with an interval over questions.

    If almost all questions have a share of 0, or almost all questions a share of 1, the shares differ only by
    rounding errors. Rounding errors do not show how much another question could differ. The interval is then
    computed as for shares.
    """
    gap = _gaps(result)

    def share(rows: np.ndarray) -> float:
        return float(part[rows].sum() / gap[rows].sum())

    pseudo = pseudo_values(share, names_of(result))
    if pseudo is None:
        return None
    ends = [abs(pseudo - end) < NEAR for end in (0, 1)]
    if len(pseudo) - max(int(on.sum()) for on in ends) >= FEW:
        return number(pseudo, label, "%", level=level)
    pseudo = np.clip(np.select(ends, [0.0, 1.0], pseudo), 0, 1)
    return number(pseudo, label, "%", level=level, bounds=SHARES)


def _worth(result: Result | None, label: str) -> Number | None:
    if result is None:
        return None
    return number(_gaps(result) / _values(result, "tokens"), label, "nats")


def _values(result: Result, name: str) -> np.ndarray:
    return np.asarray(result.examples[name].values, float)


def _gaps(result: Result) -> np.ndarray:
    return np.asarray(result.examples["gap"].sum("step").values, float)


def _bar(evidence: Evidence, result: Result | None, worth: Number | None) -> str:
    if why := no_passages(evidence.request):
        return why
    if evidence.mdm is None:
        return "There is no diffusion model in this run: add one with --model."
    if result is None or worth is None:
        return (
            "No question could be used: they need gold passages that contain the answer literally."
        )
    # The whole interval must lie above, because the effect in untrained weights varies as much.
    if not lies_above(worth, LEAST):
        return (
            f"The answer in the passage adds {format_number(worth)} per token, not clearly more than "
            f"{LEAST:g}: there is nothing to trace. Ask questions that the model answers from its passages."
        )
    return ""
