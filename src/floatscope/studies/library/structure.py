"""Structure: do shallow layers look at structure and deep layers at content?"""

from typing import ClassVar

from ...measures import AttentionEntropy
from ...measures import Structure as Measured
from ...measures.align import by_example
from ...measures.base import Measure
from ..anchored import together
from ..claim import Check, Claim, Number, below, said
from ..evidence import Evidence
from ..numbers import number, thirds
from ..request import Request
from ..study import Shows, Study
from ..verdict import LEVEL, Rule, judge, other_deltas, vary

TREND = Rule(
    6,
    "Shallow layers attend to structure, deep layers to content",
    "slope of ln(structure index) over depth, MDM − ARM, both reading the same text",
    delta=-0.25,
    more=False,
    untrained=True,
    holds="Going deeper, the diffusion model turns from structure to content more than the causal one.",
    refuted="Going deeper, the diffusion model turns to content no more than the causal model does.",
)


class Structure(Study):
    name = "structure"
    question = "Do shallow layers look at structure and deep layers at content?"
    rules = (TREND,)
    method = """\
class lift = mass on a class of tokens / what uniform attention would give it
structure index = lift of structural tokens (special, whitespace, punctuation, template, function words)
                  / lift of content tokens; masks are neither
trend = slope of ln(index) against relative depth (0 first layer, 1 last); null 0
The first position is left out (Structure(skip=1)): a fixed sink there would pass for an interest in
structure. Token classes know English function words."""

    shows: ClassVar[Shows] = {
        "structure": (
            "Attention by class of token",
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
        theta, sides, bar = _apart(evidence, "structure-same")
        control, _, _ = _apart(evidence, "structure-same", untrained=True)
        mdm, arm = sides
        variants = [*other_deltas(TREND, theta, control, bar)]
        for label, key in (
            ("position 0 counted", "structure-whole-same"),
            ("while decoding", "structure"),
        ):
            one, _, barred = _apart(evidence, key)
            other, _, _ = _apart(evidence, key, untrained=True)
            variants.append(vary(label, TREND, one, other, barred))
        sentence = ""
        if mdm and arm:
            sentence = (
                f"The logarithm of the structure index changes by {said(mdm)} over the MDM's depth and "
                f"by {said(arm)} over the ARM's, both reading the same text."
            )
        needs = [_markup(evidence, control) for control in ("random", "matched")]
        checks = [Check("the MDM's own trend falls", below(mdm, 0.0))]
        checks += [
            Check(
                f"hiding markup in the MDM's first layers hurts more than hiding {other}",
                below(need, 0.0),
            )
            for need, other in zip(needs, ("random columns", "columns beside it"), strict=True)
        ]
        return [
            judge(
                TREND,
                self.name,
                theta,
                control=control,
                bar=bar,
                sentence=sentence,
                numbers=(mdm, arm, *needs),
                checks=tuple(checks),
                variants=tuple(variants),
            )
        ]

    def findings(self, evidence: Evidence) -> list[str]:
        return [
            f"{model}: a structural token gets {first} what a content token gets in the "
            f"first third of the layers, {last} in the last (both over uniform)."
            for model, first, last in thirds(evidence, "structure", "index")
        ]


def _apart(
    evidence: Evidence, key: str, *, untrained: bool = False
) -> tuple[Number | None, tuple[Number | None, Number | None], str]:
    """The difference of trends prompt by prompt, both trends, and what bars a test."""
    models = (evidence.mdm, evidence.arm)
    read = evidence.control if untrained else evidence.result
    results = [None if model is None else read(key, model) for model in models]
    if results[0] is None or results[1] is None:
        bar = "It takes a diffusion and a causal model, traced on the same prompts: add --model."
        return None, (None, None), bar
    if not untrained:  # several controls trace a prompt several times, a model does so once
        together(results[0], results[1])
    both = by_example(*(result.examples["trend"] for result in results if result is not None))
    if both is None:
        return (
            None,
            (None, None),
            "The two models were traced on different prompts: trace the same.",
        )
    mdm, arm = both
    of = "untrained: " if untrained else ""
    theta = number(mdm - arm, f"{of}trend of the index, MDM − ARM", level=LEVEL, null=0.0)
    sides = (
        number(mdm, f"{of}MDM: trend of the index"),
        number(arm, f"{of}ARM: trend of the index"),
    )
    return theta, sides, ""


def _markup(evidence: Evidence, control: str) -> Number | None:
    """What hiding markup costs beyond hiding other columns, where the run asked (`robustness`)."""
    return evidence.apart(
        "structure-first-chosen",
        f"structure-first-{control}",
        evidence.mdm,
        f"MDM, first layers: markup hidden − {control} columns hidden",
    )
