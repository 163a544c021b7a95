"""Structure: do shallow layers look at structure and deep layers at content?"""

from typing import ClassVar

from ...measures import AttentionEntropy
from ...measures import Structure as Measured
from ...measures.base import Measure
from ..claim import Claim, below, said, verdict
from ..evidence import Evidence
from ..numbers import overall, thirds
from ..request import Request
from ..study import Shows, Study


class Structure(Study):
    name = "structure"
    question = "Do shallow layers look at structure and deep layers at content?"
    decides = (6,)
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
        return {"structure": Measured(skip=1), "entropy": AttentionEntropy()}

    def claims(self, evidence: Evidence) -> list[Claim]:
        mdm, arm = (
            overall(evidence.result("structure", m), "trend", f"{k}: trend of the index over depth")
            for k, m in (("MDM", evidence.mdm), ("ARM", evidence.arm))
        )
        tests: list[bool | None] = [None]
        sentence = "No diffusion model was in the run."
        if mdm:
            tests = [below(mdm, 0.0)] + ([below(mdm, arm.low)] if arm else [])
            sentence = (
                f"The logarithm of the structure index changes by {said(mdm)} over the MDM's depth"
            )
            sentence += f", by {said(arm)} over the ARM's." if arm else "."
        numbers = tuple(n for n in (mdm, arm) if n is not None)
        text = "Shallow layers attend to structure, deep layers to content"
        return [Claim(6, text, verdict(tests), sentence, numbers, self.name)]

    def findings(self, evidence: Evidence) -> list[str]:
        return [
            f"{model}: a structural token gets {first} what a content token gets in the "
            f"first third of the layers, {last} in the last (both over uniform)."
            for model, first, last in thirds(evidence, "structure", "index")
        ]
