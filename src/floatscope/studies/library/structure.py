"""Study whether shallow layers attend to structure and deep layers to content."""

from typing import ClassVar

import numpy as np

from ...measures import AttentionEntropy
from ...measures import Structure as Measured
from ...measures.base import Measure
from ...measures.result import Result
from ..anchored import align_prompts
from ..claim import Check, Claim, Number, format_number, lies_below
from ..evidence import Evidence
from ..numbers import average_networks, number, overall, thirds
from ..request import Request
from ..study import Shows, Study
from ..verdict import MDM, Rule, judge, other_deltas, vary

OWN = Rule(
    "6a",
    "Shallow layers of a diffusion model attend to structure, deep layers to content",
    "slope of ln(structure index) over depth in the MDM, which reads the prompt with its gold answer",
    delta=-0.25,
    above=False,
    untrained=True,
    holds="Going deeper, this diffusion model turns from structure to content.",
    refuted="Going deeper, this diffusion model does not turn from structure to content.",
    models=(MDM,),
)
APART = Rule(
    "6b",
    "A diffusion model turns from structure to content more than an autoregressive one",
    "slope of ln(structure index) over depth, MDM − ARM, both reading the same text",
    delta=-0.25,
    above=False,
    untrained=True,
    holds="Going deeper, this diffusion model turns from structure to content more than the causal one.",
    refuted="Going deeper, this diffusion model turns to content no more than the causal model does.",
)
STATE = "structure-same"
OTHER_STATES = {"position 0 counted": "structure-whole-same", "while decoding": "structure"}
NO_MDM = "There is no diffusion model in this run: add one with --model."
NO_PAIR = "The claim needs a diffusion and a causal model, traced on the same prompts: add --model."


class Structure(Study):
    """The study `structure`: attention to structure and to content, by depth (claims 6a and 6b)."""

    name = "structure"
    question = "Do shallow layers look at structure and deep layers at content?"
    rules = (OWN, APART)
    method = """\
class lift = mass on a class of tokens / what uniform attention would give it
structure index = lift of structural tokens (special, whitespace, punctuation, template, function words)
                  / lift of content tokens; masks are neither
slope = of ln(index) against relative depth (0 first layer, 1 last); null 0. Claim 6a: in the MDM itself;
        claim 6b: the MDM's minus the ARM's, prompt by prompt. Untrained weights must earn less
The first position is left out (Structure(skip=1)): a fixed sink there would pass for an interest in
structure. Token classes know English function words."""

    shows: ClassVar[Shows] = {
        STATE: (
            "Attention by class of token, reading the prompt with its gold answer",
            "Left: lift of each token class by layer. Right: the structure index by layer, with interval.",
        ),
    }

    def measures(self, request: Request) -> dict[str, Measure]:
        return {
            "structure": Measured(skip=1),
            "structure-same": Measured(skip=1),
            "structure-whole-same": Measured(),
            "entropy": AttentionEntropy(),
        }

    def claims(self, evidence: Evidence) -> list[Claim]:
        return [self._decide_slope(evidence), self._decide_difference(evidence)]

    def _decide_slope(self, evidence: Evidence) -> Claim:
        """Decide claim 6a, on the slope of the diffusion model (MDM)."""
        bar = "" if evidence.mdm else NO_MDM
        theta, control = _own_trends(evidence, STATE)
        variants = [*other_deltas(OWN, theta, control, bar)]
        for choice, key in OTHER_STATES.items():
            variants.append(vary(choice, OWN, *_own_trends(evidence, key), bar))
        sentence = ""
        if theta:
            sentence = (
                f"The logarithm of the structure index changes by {format_number(theta)} over the "
                "MDM's depth: by a factor of "
                f"{np.exp(theta.value):.2g} from the first layer to the last."
            )
        return judge(
            OWN,
            self.name,
            theta,
            control=control,
            bar=bar,
            sentence=sentence,
            variants=tuple(variants),
        )

    def _decide_difference(self, evidence: Evidence) -> Claim:
        """Decide claim 6b, on the slope of the MDM − the slope of the causal model (ARM), by prompt."""
        theta, sides, bar = _difference(evidence, STATE)
        control = _untrained_difference(evidence, STATE)
        variants = [*other_deltas(APART, theta, control, bar)]
        for choice, key in OTHER_STATES.items():
            varied, _, barred = _difference(evidence, key)
            untrained = _untrained_difference(evidence, key)
            variants.append(vary(choice, APART, varied, untrained, barred))
        mdm, arm = sides
        sentence = ""
        if mdm and arm:
            sentence = (
                f"The logarithm of the structure index changes by {format_number(mdm)} over the "
                "MDM's depth and by "
                f"{format_number(arm)} over the ARM's, both reading the same text."
            )
        return judge(
            APART,
            self.name,
            theta,
            control=control,
            bar=bar,
            sentence=sentence,
            numbers=sides,
            checks=(Check("the MDM's own slope falls", lies_below(mdm, 0.0)),),
            variants=tuple(variants),
        )

    def findings(self, evidence: Evidence) -> list[str]:
        return [
            f"{model}: a structural token gets {first} the attention of a content token in the "
            f"first third of the layers, and {last} in the last (both over uniform)."
            for model, first, last in thirds(evidence.results(STATE), "index")
        ]


def _own_trends(evidence: Evidence, key: str) -> tuple[Number | None, Number | None]:
    """Return the MDM's slope of ln(structure index), and the slope of its untrained controls."""
    result = None if evidence.mdm is None else evidence.result(key, evidence.mdm)
    if result is None:
        return None, None
    label, level = "MDM: slope of ln(index)", OWN.level
    theta = number(result.examples["trend"].values, label, level=level, null=0.0)
    networks = evidence.controls(key, evidence.mdm)
    untrained = "untrained: slope of ln(index)"
    return theta, overall(networks, "trend", untrained, level=level)


def _difference(
    evidence: Evidence, key: str
) -> tuple[Number | None, tuple[Number | None, Number | None], str]:
    """Return slope of the MDM − slope of the ARM, each slope, and why the slopes cannot be compared.

    The reason is "" if the slopes can be compared.
    """
    results = [evidence.result(key, model) for model in (evidence.mdm, evidence.arm)]
    if results[0] is None or results[1] is None:
        return None, (None, None), NO_PAIR
    mdm, arm = _slopes(results[0], results[1])
    label = "slope of ln(index)"
    theta = number(mdm - arm, f"{label}, MDM − ARM", level=APART.level, null=0.0)
    return theta, (number(mdm, f"MDM: {label}"), number(arm, f"ARM: {label}")), ""


def _untrained_difference(evidence: Evidence, key: str) -> Number | None:
    """Return slope of the MDM − slope of the ARM for untrained weights, averaged over pairs of controls.

    The interval is for one further pair of networks. Return None without controls, or if the pairs of
    controls have different numbers of prompts.
    """
    gaps = []
    for seed in evidence.request.control_seeds:
        results = [evidence.result(key, m, control=seed) for m in (evidence.mdm, evidence.arm)]
        if results[0] is not None and results[1] is not None:
            mdm, arm = _slopes(results[0], results[1])
            gaps.append(mdm - arm)
    if len({len(gap) for gap in gaps}) != 1:
        return None
    label = "untrained: slope of ln(index), MDM − ARM"
    return average_networks(np.stack(gaps), label, level=APART.level)


def _slopes(mdm: Result, arm: Result) -> tuple[np.ndarray, np.ndarray]:
    """Return the slopes of the MDM and of the ARM by prompt, on the prompts that both have read."""
    _, places = align_prompts(mdm, arm)
    return mdm.examples["trend"].values[places[0]], arm.examples["trend"].values[places[1]]
