"""Claims 1 to 4: a fixed sink, dispersed anchors, and whether they move over steps and layers."""

from collections.abc import Callable

import numpy as np

from ...measures.library.strongest import NAMES
from ...measures.result import Result
from ...stats.intervals import DIFFERENCES, SHARES, entropy, entropy_difference
from ...stats.intervals.student import Interval
from ..anchored import SOME, UNTRAINED, by_prompt, existing, moves, names_of, places, together
from ..claim import Check, Claim, Number, Variant, above, said
from ..evidence import Evidence
from ..long_answers import LONG, at_length, content_tokens
from ..numbers import number
from ..verdict import LEVEL, Rule, judge, other_deltas, vary

BINS = 10

SINK = Rule(
    1,
    "An autoregressive model's attention has a fixed sink at the first token",
    "attention on position 0 over what uniform attention gives it, mean over the ARM's layers",
    delta=2.0,
    unit="×",
    untrained=True,
    holds="The causal model returns to its first token, whatever the text.",
    refuted="The causal model does not favour its first token.",
)
DISPERSED = Rule(
    2,
    "A diffusion model's anchors are dispersed",
    "dispersion over prompts of the places of anchors, MDM − ARM, both reading the same text",
    delta=0.1,
    unit="points",
    holds="From prompt to prompt the diffusion model's anchors stand elsewhere; the causal model's do not.",
    refuted="The diffusion model's anchors are no more dispersed than the causal model's.",
)
STEPS = Rule(
    3,
    "A diffusion model's anchors move over denoising steps",
    "how often the anchor of the rows still masked is another key after a quarter of the content is "
    f"revealed, in answers of {LONG} content tokens or more",
    delta=0.25,
    unit="%",
    holds="As the answer fills in, the diffusion model's masked positions turn to other anchors.",
    refuted="The diffusion model's masked positions keep their anchors while the answer fills in.",
)
LAYERS = Rule(
    4,
    "A diffusion model's anchors move over layers",
    "how often the next layer that has an anchor has another one, MDM − ARM, both reading the same text",
    delta=0.1,
    unit="points",
    holds="From layer to layer the diffusion model changes its anchors more than the causal model does.",
    refuted="From layer to layer the diffusion model keeps its anchors as much as the causal model does.",
)


# Claim 1


def sink(evidence: Evidence, study: str) -> Claim:
    bar = "" if evidence.arm else "No causal model was in the run: add one with --model."
    state = "absorption-same"
    theta = _first(evidence.result(state, evidence.arm), "ARM: position 0 over uniform", LEVEL)
    control = _first(_control(evidence, state, evidence.arm), "untrained ARM", LEVEL)
    mdm = _first(evidence.result(state, evidence.mdm), "MDM: position 0 over uniform")
    strongest = evidence.result("strongest-same", evidence.arm)
    at_first = None
    if strongest is not None:
        at_first = number(
            _at_first(strongest), "ARM: strongest key is position 0", "%", bounds=SHARES
        )
    variants = [*other_deltas(SINK, theta, control, bar)]
    while_decoding = _first(evidence.result("absorption", evidence.arm), "while decoding", LEVEL)
    of_control = _first(_control(evidence, "absorption", evidence.arm), "untrained", LEVEL)
    variants.append(vary("while decoding", SINK, while_decoding, of_control, bar))
    # By a rule: position 0 is an anchor in most layers, or heads.
    by_rule = Rule(1, SINK.text, "share of layers whose anchor is position 0", 0.5, "%")
    for name in NAMES:
        share = None if strongest is None else _at_first(strongest, name)
        theta_rule = None if share is None else number(share, name, "%", level=LEVEL, bounds=SHARES)
        variants.append(
            vary(f"{name}: position 0 is the anchor in most layers", by_rule, theta_rule, bar=bar)
        )
    sentence = ""
    if theta:
        sentence = (
            f"Position 0 receives {said(theta)} what uniform attention would give it in the ARM"
        )
        sentence += f", {said(control)} with untrained weights" if control else ""
        sentence += f", {said(mdm)} in the MDM." if mdm else "."
    return judge(
        SINK,
        study,
        theta,
        control=control,
        bar=bar,
        sentence=sentence,
        numbers=(mdm, at_first),
        checks=(_check("the strongest key is position 0 in most layers", at_first, 0.5),),
        variants=tuple(variants),
    )


def _first(result: Result | None, label: str, level: float = 0.95) -> Number | None:
    if result is None:
        return None
    lift = result.examples["first"] / result.examples["first_null"]
    values = lift.transpose("example", ...).values
    each = np.nanmean(values.reshape(len(values), -1), 1)
    return number(by_prompt(each, names_of(result)), label, "×", level=level)


def _at_first(result: Result, rule: str = "") -> np.ndarray:
    """Per example, the share of layers whose strongest key is position 0 (and passes a rule)."""
    first = (result.examples["place"] == 0).transpose("example", "layer").values
    if rule:
        passes = result.examples["passes"].sel(rule=rule)
        first = first & (passes.transpose("example", "layer").values > 0.5)
    return np.asarray(first.mean(1), float)


# Claims 2 and 4


def dispersed(evidence: Evidence, study: str) -> Claim:
    return _compared(evidence, study, DISPERSED, _dispersion, "disperse over prompts")


def over_layers(evidence: Evidence, study: str) -> Claim:
    return _compared(evidence, study, LAYERS, _layer_moves, "change from layer to layer")


Compared = Callable[
    [np.ndarray, np.ndarray, float], tuple[Number | None, Number | None, Number | None]
]


def _compared(evidence: Evidence, study: str, rule: Rule, compare: Compared, does: str) -> Claim:
    """A difference between the models at the same state, over anchors that exist in both."""
    key = "strongest-same"
    theta, sides, there, bar = _at_state(evidence, key, compare, UNTRAINED)
    variants = [*other_deltas(rule, theta, bar=bar)]
    for label, other, how in (
        *((f"anchors by {name}", key, name) for name in NAMES),
        ("each head", "strongest-heads-same", UNTRAINED),
        ("while decoding", "strongest", UNTRAINED),
    ):
        one, _, _, barred = _at_state(evidence, other, compare, how)
        variants.append(vary(label, rule, one, bar=barred))
    sentence = ""
    mdm, arm = sides
    if mdm and arm:
        sentence = f"Anchors {does}: {said(mdm)} in the MDM, {said(arm)} in the ARM, reading the same text."
    return judge(
        rule,
        study,
        theta,
        bar=bar,
        sentence=sentence,
        numbers=(mdm, arm, *there),
        variants=tuple(variants),
    )


def _at_state(
    evidence: Evidence, key: str, compare: Compared, how: str
) -> tuple[Number | None, tuple[Number | None, ...], tuple[Number | None, ...], str]:
    """The difference, both sides, the share of places with an anchor, and what bars a test."""
    nothing: tuple[Number | None, ...] = (None, None)
    results = [evidence.result(key, model) for model in (evidence.mdm, evidence.arm)]
    if results[0] is None or results[1] is None:
        bar = "It takes a diffusion and a causal model, traced on the same prompts: add --model."
        return None, nothing, nothing, bar
    _, at = together(results[0], results[1])
    kept = []
    for result, model in zip(results, (evidence.mdm, evidence.arm), strict=True):
        assert result is not None
        kept.append(places(result, _control(evidence, key, model), how, "position"))
    if kept[0] is None or kept[1] is None:
        return (
            None,
            nothing,
            nothing,
            "There is no untrained control in this run: give --controls 1.",
        )
    mdm, arm = kept[0][at[0]], kept[1][at[1]]
    there = tuple(
        existing(p, f"{k}: places with an anchor") for k, p in (("MDM", mdm), ("ARM", arm))
    )
    for kind, share in zip(("MDM", "ARM"), there, strict=True):
        if share is None or share.value < SOME:
            few = "no" if share is None else said(share)
            bar = f"The {kind} has an anchor in {few} of its layers: too few to say where they are."
            return None, nothing, there, bar
    theta, of_mdm, of_arm = compare(mdm, arm, LEVEL)
    return theta, (of_mdm, of_arm), there, ""


def _layer_moves(
    mdm: np.ndarray, arm: np.ndarray, level: float
) -> tuple[Number | None, Number | None, Number | None]:
    of_mdm, of_arm = (moves(p, 1) for p in (mdm, arm))
    return (
        number(
            of_mdm - of_arm,
            "moves over layers, MDM − ARM",
            "points",
            level=level,
            bounds=DIFFERENCES,
        ),
        number(of_mdm, "MDM: moves over layers", "%", bounds=SHARES),
        number(of_arm, "ARM: moves over layers", "%", bounds=SHARES),
    )


def _dispersion(
    mdm: np.ndarray, arm: np.ndarray, level: float
) -> tuple[Number | None, Number | None, Number | None]:
    sides = [p.reshape(len(p), -1) for p in (mdm, arm)]  # (example, layer × head)
    # Layers in which both have an anchor in half of the prompts.
    usual = np.all([(~np.isnan(p)).mean(0) >= 0.5 for p in sides], axis=0)
    if not usual.any() or len(mdm) < 2:
        return None, None, None
    one, two = (
        np.where(np.isnan(p), -1, np.minimum(np.nan_to_num(p) * BINS, BINS - 1)).astype(int)
        for p in (side[:, usual] for side in sides)
    )
    n = len(mdm)

    def made(interval: Interval, label: str, unit: str, at: float) -> Number:
        value, low, high = (float(x) for x in interval)
        return Number(label, value, low, high, None, unit, n, at)

    apart = entropy_difference(one, two, BINS, level=level, average=True)
    return (
        made(apart, "dispersion, MDM − ARM", "points", level),
        made(entropy(one, BINS, average=True), "MDM: dispersion", "%", 0.95),
        made(entropy(two, BINS, average=True), "ARM: dispersion", "%", 0.95),
    )


# Claim 3


def over_steps(evidence: Evidence, study: str) -> Claim:
    theta, there, bar = _step_moves(evidence, "masked-rows", UNTRAINED)
    length = _lengths(evidence.result("masked-rows", evidence.mdm))
    variants: list[Variant] = [*other_deltas(STEPS, theta, bar=bar)]
    for label, key, how in (
        *((f"anchors by {name}", "masked-rows", name) for name in NAMES),
        ("each head", "masked-rows-heads", UNTRAINED),
    ):
        one, _, barred = _step_moves(evidence, key, how)
        variants.append(vary(label, STEPS, one, bar=barred))
    sentence = ""
    if theta:
        sentence = (
            f"After each quarter of the content, {said(theta)} of anchors are other keys. "
            f"{at_length(length)}"
        )
    return judge(
        STEPS,
        study,
        theta,
        bar=bar,
        sentence=sentence,
        numbers=(there, length),
        variants=tuple(variants),
    )


def _lengths(result: Result | None) -> Number | None:
    """Content tokens of the decodings that count: the long ones, or all where none is."""
    if result is None:
        return None
    content = result.examples["content"].values
    long = content >= LONG
    return content_tokens(content[long] if long.sum() > 1 else content)


def _step_moves(evidence: Evidence, key: str, how: str) -> tuple[Number | None, Number | None, str]:
    result = evidence.result(key, evidence.mdm)
    if result is None:
        return None, None, "No diffusion model was in the run: add one with --model."
    content = result.examples["content"].values
    long = content >= LONG
    if long.sum() < 2:
        middle = f"{np.median(content):.0f}"
        tokens = "content token" if middle == "1" else "content tokens"
        return None, None, (
            f"The answers have {middle} {tokens} (the middle one), and it takes "
            f"{LONG}: trace longer answers, with --length {2 * LONG} and --data long:continuation."
        )  # fmt: skip
    place = places(result, _control(evidence, key, evidence.mdm), how)
    if place is None:
        return None, None, "There is no untrained control in this run: give --controls 1."
    place = place[long]
    there = existing(place, "MDM: places with an anchor, masked rows")
    if there is None or there.value < SOME:
        few = "no" if there is None else said(there)
        return None, there, f"Masked rows have an anchor in {few} of cases: too few to say."
    theta = number(
        moves(place, 1),
        "another anchor after a quarter of the content",
        "%",
        level=LEVEL,
        bounds=SHARES,
    )
    return theta, there, ""


def _control(evidence: Evidence, key: str, model: str | None) -> Result | None:
    return None if model is None else evidence.control(key, model)


def _check(label: str, found: Number | None, level: float) -> Check:
    return Check(label, above(found, level))
