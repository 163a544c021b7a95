"""Decide claims 1, 2 and 4: on a fixed sink, on anchors that differ over prompts, and over layers."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from jaxtyping import Bool, Float, Int

from ...measures.library.strongest import NAMES
from ...measures.result import Result
from ...stats.existence import LEAST, real_layers
from ...stats.intervals import DIFFERENCES, SHARES
from ..anchored import align_prompts, by_halves, count_moves, names_of
from ..claim import Check, Claim, Number, format_number, lies_above
from ..evidence import Evidence
from ..numbers import average_networks, number
from ..verdict import ARM, MDM, Rule, judge, other_deltas, vary

BINS = 10  # parts of a text; anchors in the same part count as the same
SOME = 0.2  # smallest share of a model's layers with a real anchor for a verdict

SINK = Rule(
    "1",
    "An autoregressive model's attention has a fixed sink at the first token",
    "share of attention on position 0, ARM − MDM, mean over layers, both reading the same text",
    delta=0.1,
    unit="points",
    untrained=True,
    holds="This causal model returns to its first token, whatever the text; the diffusion model does not.",
    refuted="This causal model looks at its first token no more than the diffusion model does.",
)
DISPERSED = Rule(
    "2",
    "A diffusion model's anchors are dispersed",
    "how often two prompts have their anchors in different tenths of the text (1 − Σp², unbiased), "
    "MDM − ARM, mean over layers with a real anchor, both reading the same text",
    delta=0.1,
    unit="points",
    holds="From prompt to prompt this diffusion model's anchors stand elsewhere; the causal model's do not.",
    refuted="This diffusion model's anchors are no more dispersed than the causal model's.",
)
LAYERS = Rule(
    "4",
    "A diffusion model's anchors move over layers",
    "how often the next layer that has a real anchor has another one, MDM − ARM, both reading the same text",
    delta=0.1,
    unit="points",
    holds="From layer to layer this diffusion model changes its anchors more than the causal model does.",
    refuted="From layer to layer this diffusion model keeps its anchors as much as the causal model does.",
)
_BOTH = "The claim needs a diffusion and a causal model, traced on the same prompts: add --model."
NO_CONTROLS = (
    f"Real anchors can only be found with {LEAST} or more untrained controls: give --controls 5."
)


# Claim 1


def sink(evidence: Evidence, study: str) -> Claim:
    """Decide claim 1: a causal model has a fixed sink at the first token."""
    state = "absorption-same"
    bar = "" if evidence.arm and evidence.mdm else _BOTH
    difference = _first_apart(evidence, state)
    theta = _points(difference, "position 0, ARM − MDM")
    control = _of_controls(evidence, state)
    sides = [
        None
        if (result := evidence.result(state, model)) is None
        else number(
            _first(result), f"{kind}: attention on position 0", "%", bounds=SHARES, smooth=True
        )
        for kind, model in ((ARM.upper(), evidence.arm), (MDM.upper(), evidence.mdm))
    ]
    strongest = evidence.result("strongest-same", evidence.arm)
    at_first = None
    if strongest is not None:
        at_first = number(
            _at_first(strongest), "ARM: strongest key is position 0", "%", bounds=SHARES
        )
    variants = [*other_deltas(SINK, theta, control, bar)]
    alone = replace(SINK, untrained=False)
    decoding = _points(_first_apart(evidence, "absorption"), "while decoding")
    variants.append(vary("while decoding, without controls", alone, decoding, bar=bar))
    # By a rule: position 0 is an anchor in most layers.
    by_rule = Rule("1", SINK.text, "share of layers whose anchor is position 0", 0.5, "%")
    for name in NAMES:
        share = None if strongest is None else _at_first(strongest, name)
        theta_rule = (
            None if share is None else number(share, name, "%", level=SINK.level, bounds=SHARES)
        )
        variants.append(
            vary(f"{name}: position 0 is the anchor in most layers", by_rule, theta_rule, bar=bar)
        )
    sentence = ""
    if theta and sides[0] and sides[1]:
        sentence = (
            f"Position 0 receives {format_number(sides[0])} of attention in the ARM and "
            f"{format_number(sides[1])} in the MDM, reading the same text: a difference of "
            f"{format_number(theta)}"
        )
        sentence += (
            f", against {format_number(control)} with untrained weights." if control else "."
        )
    return judge(
        SINK,
        study,
        theta,
        control=control,
        bar=bar,
        sentence=sentence,
        numbers=(*sides, at_first),
        checks=(
            Check("the strongest key is position 0 in most layers", lies_above(at_first, 0.5)),
        ),
        variants=tuple(variants),
    )


def _first(result: Result) -> Float[np.ndarray, " n"]:
    """Return the share of attention on position 0 by example, as a mean over layers and steps."""
    values = result.examples["first"].transpose("example", ...).values
    return np.asarray(np.nanmean(values.reshape(len(values), -1), 1), float)


def _first_apart(
    evidence: Evidence, key: str, seed: int | None = None
) -> Float[np.ndarray, " n"] | None:
    """Return the share of attention on position 0, ARM − MDM, by prompt; None if a model was not measured.

    With `seed`, compare the models' untrained controls instead of the models.
    """
    results = [evidence.result(key, m, control=seed) for m in (evidence.arm, evidence.mdm)]
    if results[0] is None or results[1] is None:
        return None
    arm, mdm = (_first(result) for result in results if result is not None)
    _, rows = align_prompts(results[0], results[1])
    return np.asarray(arm[rows[0]] - mdm[rows[1]])


def _points(values: np.ndarray | None, label: str) -> Number | None:
    if values is None:
        return None
    return number(values, label, "points", level=SINK.level, bounds=DIFFERENCES, smooth=True)


def _of_controls(evidence: Evidence, key: str) -> Number | None:
    """Return the share on position 0, ARM − MDM, of untrained controls; None for fewer than two pairs.

    The interval is for one further pair of networks.
    """
    by_seed = (_first_apart(evidence, key, seed) for seed in evidence.request.control_seeds)
    differences = [difference for difference in by_seed if difference is not None]
    if len(differences) < 2 or len({len(difference) for difference in differences}) > 1:
        return None
    label = "position 0, ARM − MDM, untrained"
    return average_networks(
        np.stack(differences), label, "points", level=SINK.level, bounds=DIFFERENCES
    )


def _at_first(result: Result, rule: str = "") -> np.ndarray:
    """Return, by example, the share of layers whose strongest key is position 0.

    With `rule`, the key must also pass the anchor rule of this name.
    """
    first = (result.examples["place"] == 0).transpose("example", "layer").values
    if rule:
        passes = result.examples["passes"].sel(rule=rule)
        first = first & (passes.transpose("example", "layer").values > 0.5)
    return np.asarray(first.mean(1), float)


# Claims 2 and 4


@dataclass(frozen=True, eq=False)
class Anchors:
    """The strongest keys of a model in one state, and the values that distinguish anchors from noise.

    A cell is a layer, or a layer and head; n is the number of prompts.
    """

    place: Float[np.ndarray, "n cells"]
    position: Float[np.ndarray, "n cells"]  # share of the length
    share: Float[np.ndarray, "n cells"]
    controls: Float[np.ndarray, "k n cells"]  # shares in untrained networks
    passes: Bool[np.ndarray, "rules n cells"]

    def real(self, chosen: np.ndarray, rule: str = "") -> Bool[np.ndarray, " cells"]:
        """Return whether each cell has a real anchor in the chosen examples.

        With `rule`, return instead whether the strongest key of each cell passes this rule in most of these
        examples.
        """
        if rule:
            return np.asarray(self.passes[NAMES.index(rule)][chosen].mean(0) > 0.5)
        return real_layers(self.share[chosen], self.controls[:, chosen])


Compare = Callable[
    [Anchors, Anchors, str], tuple[Number | None, tuple[Number | None, Number | None]]
]


def dispersed(evidence: Evidence, study: str) -> Claim:
    """Decide claim 2: a diffusion model's anchors are dispersed over prompts."""
    alternatives = (
        ("each head", "strongest-heads-same", "", _dispersion),
        ("the same position", "strongest-same", "", partial(_dispersion, bins=None)),
    )
    return _decide_comparison(
        evidence, study, DISPERSED, _dispersion, "disperse over prompts", *alternatives
    )


def over_layers(evidence: Evidence, study: str) -> Claim:
    """Decide claim 4: a diffusion model's anchors move over layers."""
    return _decide_comparison(evidence, study, LAYERS, _layer_moves, "change from layer to layer")


def _decide_comparison(
    evidence: Evidence,
    study: str,
    rule: Rule,
    compare: Compare,
    does: str,
    *alternatives: tuple[str, str, str, Compare],
) -> Claim:
    """Decide claim 2 or 4 on the difference between the models, MDM − ARM, over real anchors.

    The MDM and the ARM read the same text. `does` is the verb of the sentence. `alternatives` are further
    variants, each with a label, the key of a measure, a rule, and a comparison.
    """
    key = "strongest-same"
    theta, (mdm, arm), layer_counts, bar = _at_state(evidence, key, compare)
    variants = [*other_deltas(rule, theta, bar=bar)]
    for label, other, how, comparison in (
        *((f"anchors by {name}", key, name, compare) for name in NAMES),
        *alternatives,
    ):
        varied, _, _, barred = _at_state(evidence, other, comparison, how)
        variants.append(vary(label, rule, varied, bar=barred))
    sentence = ""
    if mdm and arm:
        sentence = (
            f"Anchors {does}: {format_number(mdm)} in the MDM, {format_number(arm)} in the ARM, "
            "reading the same text."
        )
    return judge(
        rule,
        study,
        theta,
        bar=bar,
        sentence=sentence,
        numbers=(mdm, arm, *layer_counts),
        variants=tuple(variants),
    )


def _at_state(
    evidence: Evidence, key: str, compare: Compare, rule: str = ""
) -> tuple[
    Number | None, tuple[Number | None, Number | None], tuple[Number | None, Number | None], str
]:
    """Return the difference MDM − ARM, the value of each model, its number of layers with anchors, and a bar.

    The bar is the reason why the claim cannot be tested; "" if the claim can be tested.
    """
    unknown = (None, None)
    results = [evidence.result(key, model) for model in (evidence.mdm, evidence.arm)]
    if results[0] is None or results[1] is None:
        return None, unknown, unknown, _BOTH
    names, _ = align_prompts(results[0], results[1])
    sides = [_anchors(evidence, key, model, names) for model in (evidence.mdm, evidence.arm)]
    if sides[0] is None or sides[1] is None:
        return None, unknown, unknown, NO_CONTROLS
    mdm, arm = sides[0], sides[1]
    indices = np.arange(len(names))
    layer_counts, bar = [], ""
    for kind, side in (("MDM", mdm), ("ARM", arm)):
        real = side.real(indices, rule)
        label = f"{kind}: layers with a real anchor"
        layer_counts.append(Number(label, float(real.sum()), unit=f"of {real.size}"))
        if real.sum() < max(2, SOME * real.size) and not bar:
            bar = (
                f"Only {real.sum()} of {real.size} layers of the {kind} have a real anchor, stronger than in "
                "untrained networks of equal sharpness: too few to say where anchors are."
            )
    if bar:
        return None, unknown, (layer_counts[0], layer_counts[1]), bar
    theta, of_each = compare(mdm, arm, rule)
    return theta, of_each, (layer_counts[0], layer_counts[1]), ""


def _anchors(evidence: Evidence, key: str, model: str | None, names: list[str]) -> Anchors | None:
    """Return a model's anchors on the prompts `names`; None if there are too few untrained controls."""
    result = evidence.result(key, model)
    controls = evidence.controls(key, model)
    if result is None or len(controls) < LEAST:
        return None

    def values(source: Result, name: str) -> np.ndarray:
        rows = [names_of(source).index(prompt) for prompt in names]
        array = source.examples[name]
        order = [d for d in ("rule", "example", "layer", "head") if d in array.dims]
        flat = np.asarray(array.transpose(*order).values, float)
        if "rule" in order:
            return flat[:, rows].reshape(len(flat), len(rows), -1)
        return flat[rows].reshape(len(rows), -1)

    return Anchors(
        place=values(result, "place"),
        position=values(result, "position"),
        share=values(result, "share"),
        controls=np.stack([values(control, "share") for control in controls]),
        passes=values(result, "passes") > 0.5,
    )


def _layer_moves(
    mdm: Anchors, arm: Anchors, rule: str
) -> tuple[Number | None, tuple[Number | None, Number | None]]:
    """Return how often anchors move from layer to layer: difference MDM − ARM, and value of each model.

    Layers with a real anchor are chosen on one half of the prompts, and moves are counted on the other half.
    """
    first = np.arange(len(mdm.place)) % 2 == 0

    def measure_moves(side: Anchors) -> Float[np.ndarray, " n"]:
        values = np.full(len(side.place), np.nan)
        for half in (first, ~first):
            real = side.real(np.flatnonzero(~half), rule)
            if half.any() and real.sum() > 1:
                values[half] = count_moves(side.place[half][:, real], 1)
        return values

    of_mdm, of_arm = measure_moves(mdm), measure_moves(arm)
    label = "moves over layers, MDM − ARM"
    return (
        number(of_mdm - of_arm, label, "points", level=LAYERS.level, bounds=DIFFERENCES),
        (
            number(of_mdm, "MDM: moves over layers", "%", bounds=SHARES),
            number(of_arm, "ARM: moves over layers", "%", bounds=SHARES),
        ),
    )


def _dispersion(
    mdm: Anchors, arm: Anchors, rule: str, bins: int | None = BINS
) -> tuple[Number | None, tuple[Number | None, Number | None]]:
    """Return the dispersion of anchors over prompts: the difference MDM − ARM, and the value of each model.

    Layers with a real anchor are chosen again in every random half of the prompts. Each text is cut into
    `bins` equal parts, and anchors in the same part count as equal. If `bins` is None, anchors at the same
    position count as equal.
    """

    def make_statistic(side: Anchors) -> Callable[[np.ndarray], float]:
        where = side.place if bins is None else np.minimum(side.position * bins, bins - 1)
        labels = where.astype(int)

        def statistic(chosen: np.ndarray) -> float:
            real = side.real(chosen, rule)
            return float(differ(labels[chosen][:, real]).mean()) if real.any() else float("nan")

        return statistic

    of_mdm, of_arm, n = make_statistic(mdm), make_statistic(arm), len(mdm.place)
    label = "dispersion over prompts"
    return (
        by_halves(
            *(lambda c: of_mdm(c) - of_arm(c), n, f"{label}, MDM − ARM", "points", DISPERSED.level),
            bounds=DIFFERENCES,
        ),
        (
            by_halves(of_mdm, n, f"MDM: {label}", "%", 0.95, bounds=SHARES),
            by_halves(of_arm, n, f"ARM: {label}", "%", 0.95, bounds=SHARES),
        ),
    )


def differ(labels: Int[np.ndarray, "n cells"]) -> Float[np.ndarray, " cells"]:
    """Return, by cell, the share of pairs of examples with different labels: an unbiased 1 − Σp².

    Each p is the share of the examples that have a label, and the sum is over labels.
    """
    n, cells = labels.shape
    n_labels = int(labels.max(initial=0)) + 1
    counts = np.bincount((labels + n_labels * np.arange(cells)).ravel(), minlength=n_labels * cells)
    counts = counts.reshape(cells, n_labels)
    return np.asarray(1 - (counts * (counts - 1)).sum(1) / (n * (n - 1)))
