"""Study whether the key that masked rows attend to most changes while the answer is revealed."""

from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from ...measures import Movement as MovementMeasure
from ...measures.base import Measure
from ...measures.result import Result
from ...stats.existence import real_layers
from ...stats.intervals import Sample
from ...stats.intervals.student import Interval
from ...stats.movement import moving_layers
from ..anchored import align_prompts
from ..answer import FRONTIER
from ..claim import Claim, Number, format_number
from ..evidence import Evidence
from ..long_answers import LONG, at_length, content_tokens
from ..numbers import number
from ..request import Request
from ..study import Shows, Study
from ..verdict import MDM, Rule, judge, other_deltas, vary
from .floating_claims import LEAST, NO_CONTROLS

KEY = "movement-states"

STEPS = Rule(
    "3",
    "A diffusion model's anchors move over denoising steps",
    "number of layers with a real anchor in which more than half of the texts change the key that masked "
    f"rows look at most, in answers of {LONG} content tokens or more",
    delta=2,
    of_layers=0.1,
    unit="layers",
    count=True,
    models=(MDM,),
    holds="While the answer fills in, some layers of this diffusion model turn to other anchors.",
    refuted="While the answer fills in, this diffusion model's layers keep their anchors.",
)


class Movement(Study):
    """The study `movement`: whether masked rows change the key that they attend to most (claim 3)."""

    name = "movement"
    question = (
        "While the answer is revealed, do masked positions change the token they look at most?"
    )
    rules = (STEPS,)
    method = """\
states    the start, ¼, ½ and ¾ of the content, and the last step at which 8 rows are still masked; their
          canvases are read again, one forward each
change    neighbouring states are compared on the rows that are masked in both; a reference key is kept until
          another key has at least twice its share of the attention of those rows, mean over heads
moving layer: more than half of the texts change the reference key at least once
controls  the same network with the entries of every matrix permuted, and each head's queries scaled until its
          mean entropy over masked rows of unfinished texts is that of the trained head; they read the
          same canvases
real anchor: a layer whose reference key receives more than in the controls (Student's t on logarithms of the
          networks' mean shares, k − 1 degrees of freedom, corrected over layers)
θ         moving layers with a real anchor, bounded by simultaneous intervals (Clopper and Pearson's,
          corrected over layers) of the share of moving texts: below by layers that surely move and
          have a real anchor, above by layers that may move
Untrained networks of equal sharpness move in nearly every layer: movement says nothing without strength."""
    shows: ClassVar[Shows] = {
        KEY: (
            "Where anchors move, and how strong they are",
            "Layer by head: share of attention on the reference key of masked rows, share of texts in which "
            "it changes, and its correlation with the frontier of revealed text.",
        ),
    }

    def measures(self, request: Request) -> dict[str, Measure]:
        return {
            KEY: MovementMeasure(),
            "movement-1.5-states": MovementMeasure(factor=1.5),
            "movement-3-states": MovementMeasure(factor=3),
        }

    def controlled(self, request: Request) -> tuple[str, ...]:
        return (KEY,)  # how strong an anchor is does not depend on the factor

    def claims(self, evidence: Evidence) -> list[Claim]:
        return [decide(evidence, self.name)]

    def findings(self, evidence: Evidence) -> Iterator[str]:
        for model, result in evidence.results(KEY).items():
            moved, share = (result.data[name].values for name in ("moved", "share"))
            if np.isnan(moved).all():
                continue
            move, stay = moved > 0.5, moved <= 0.5
            parts = [
                f"{layers.sum()} layers {does} in most texts (their key has "
                f"{100 * share[layers].mean():.1f} % of the masked rows' attention)"
                for layers, does in ((move, "change their strongest key"), (stay, "keep it"))
                if layers.any()
            ]
            yield f"{model}: {'; '.join(parts)}."


def decide(evidence: Evidence, study: str) -> Claim:
    """Decide claim 3: a diffusion model's anchors move over denoising steps."""
    key = "movement-states"
    rule, theta, anchored, bar = _step_moves(evidence, key)
    result = evidence.result(key, evidence.mdm)
    variants = [*other_deltas(rule, theta, bar=bar)]
    for label, other, half, noise in (
        ("another key must have 1.5 times the share", "movement-1.5-states", 0.5, False),
        ("another key must have 3 times the share", "movement-3-states", 0.5, False),
        ("only the first and the last state", "late", 0.5, False),
        ("a layer moves if a third of the texts move", key, 1 / 3, False),
        ("a layer moves if two thirds of the texts move", key, 2 / 3, False),
        ("every strongest key counts as an anchor", key, 0.5, True),
    ):
        varied_rule, varied, _, barred = _step_moves(evidence, other, half, noise)
        variants.append(vary(label, varied_rule, varied, bar=barred))
    sentence, numbers = "", [anchored]
    if theta and result is not None:
        length = content_tokens(result.examples["content"].values)
        moved = result.data["moved"].values
        movers = ", ".join(
            f"{layer} ({100 * moved[layer]:.0f} %)" for layer in np.argsort(-moved)[:4]
        )
        sentence = (
            f"{format_number(anchored) if anchored else 'None'} layers have a real anchor, and "
            f"{format_number(theta)} change it in more than half of the texts. The layers that "
            "move in most texts, with or without a "
            f"real anchor: {movers}. {at_length(length)}"
        )
        numbers += [_with_frontier(result), length]
    return judge(
        rule,
        study,
        theta,
        bar=bar,
        remedy=_remedy(anchored, rule),
        sentence=sentence,
        numbers=tuple(numbers),
        variants=tuple(variants),
    )


def _with_frontier(result: Result) -> Number | None:
    """Return the correlation of reference keys with the frontier, mean over layers that move in most texts.

    The frontier is the boundary of the revealed text. Return None if no text has a correlation.
    """
    moving = result.data["moved"].values > 0.5
    by_text = result.examples["frontier"].transpose("example", "layer").values[:, moving]
    known = ~np.isnan(by_text).all(1)
    return number(np.nanmean(by_text[known], 1), FRONTIER) if known.any() else None


def _remedy(anchored: Number | None, rule: Rule) -> str:
    """Return the remedy if too few layers have a real anchor to decide with more texts; "" otherwise."""
    if anchored is None or anchored.value >= rule.delta:
        return ""
    return (
        f"{format_number(anchored)} layers have an anchor that is stronger than in untrained "
        "networks, and the claim needs "
        f"{rule.delta:.0f}: more texts would not decide, more controls may (--controls 12)."
    )


def _step_moves(
    evidence: Evidence, key: str, half: float = 0.5, noise: bool = False
) -> tuple[Rule, Number | None, Number | None, str]:
    """Return claim 3's rule, its θ, the number of layers with a real anchor, and a bar.

    The rule has the δ for this model. The bar is the reason why the claim cannot be tested; "" if the claim
    can be tested.

    Args:
        evidence: What the run measured.
        key: The measure whose changes count, or "late" for changes between the first and the last state.
        half: Share of texts above which a layer counts as moving.
        noise: Whether every layer counts, instead of only layers with a real anchor.
    """
    value, key = ("moved_late", KEY) if key == "late" else ("moved", key)
    result, strength = (evidence.result(name, evidence.mdm) for name in (key, KEY))
    if result is None or strength is None:
        bar = "No diffusion model whose rows see the whole canvas was in the run: add one with --model."
        return STEPS, None, None, bar
    controls = evidence.controls(KEY, evidence.mdm)
    _, places = align_prompts(result, strength, *controls)
    content = result.examples["content"].values[places[0]]
    moved = result.examples[value].transpose("example", "layer").values[places[0]]
    rule = STEPS.for_layers(moved.shape[1])
    counts = (content >= LONG) & ~np.isnan(moved).any(1)
    if counts.sum() < 2:
        return rule, None, None, (
            f"The claim needs answers of {LONG} content tokens or more, and the median answer has "
            f"{np.median(content):.0f}: trace longer ones, with --data long:continuation --length 64."
        )  # fmt: skip
    if len(controls) < LEAST:
        return rule, None, None, NO_CONTROLS
    shares = [
        network.examples["share"].transpose("example", "layer").values[rows][counts]
        for network, rows in zip((strength, *controls), places[1:], strict=True)
    ]
    real = real_layers(shares[0], np.stack(shares[1:]))
    anchored = Number("layers with a real anchor", float(real.sum()), unit=f"of {real.size}")
    counted = np.ones_like(real) if noise else real

    def interval(values: np.ndarray) -> Interval:
        bounds = moving_layers(values, counted, level=STEPS.level, half=half)
        number, low, high = (np.asarray(x, float) for x in bounds[:3])
        return number, low, high

    moved = moved[counts]
    number, low, high = (float(x) for x in interval(moved))
    theta = Number(
        *("layers that move", number, low, high),
        unit="layers",
        n=len(moved),
        level=STEPS.level,
        sample=Sample(moved, interval),
    )
    return rule, theta, anchored, ""
