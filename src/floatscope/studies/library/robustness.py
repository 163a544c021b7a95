"""Robustness: does a model need its anchors, and its structure?"""

from ..claim import Claim, Number, above, below, said, verdict
from ..draw import Picture, of_answers
from ..evidence import Evidence
from ..request import Request
from ..setting import Setting
from ..study import Study
from .knowledge import WITH

KINDS = {"anchors": "", "random": ",control=random", "matched": ",control=matched"}
MARKUP = "mask-tokens:classes=special|whitespace|punctuation|template"
BREAKS, TOUCHES = -0.25, -0.10  # difference from a control, in shares
ROOM = 0.25  # a model that answers less than this has nothing to lose


class Robustness(Study):
    name = "robustness"
    question = "Does a model need its anchors, and its structure?"
    decides = (8,)
    method = """\
anchors: the k keys that received most at the step before, per head and layer, are hidden (2510.15731); they
         are those of the attention as it would be without the mask
controls: as many columns at random; and the nearest columns that are not anchors
structure: special tokens, whitespace, punctuation and template are hidden in the first or the last third
         of the layers, with the same controls
difference = share right with anchors hidden − with random columns hidden, paired by question
claim: at the largest k the ARM loses more than 25 points against both controls, the MDM less than 10; a
         model that answers less than a quarter without any mask is not tested"""

    def settings(self, request: Request) -> list[Setting]:
        settings = [Setting(WITH, request.asked_as)]
        for k in request.columns:
            for kind, control in KINDS.items():
                text = f"mask-columns:k={k}{control},seed={request.seed}"
                settings.append(Setting(f"mask-{k}-{kind}", request.asked_as, text))
        for where in ("first", "last"):
            for kind, control in KINDS.items():
                text = f"{MARKUP},layers={{{where}}}{control},seed={request.seed}"
                name = f"structure-{where}-{'chosen' if kind == 'anchors' else kind}"
                settings.append(Setting(name, request.asked_as, text))
        return settings

    def claims(self, evidence: Evidence) -> list[Claim]:
        numbers: list[Number] = []
        tests: list[bool | None] = []
        parts = []
        k = evidence.request.columns[-1]
        for kind, model in (("ARM", evidence.arm), ("MDM", evidence.mdm)):
            every = [
                self._against(evidence, model, n, control, f"{kind}, k = {n}: anchors − {control}")
                for n in evidence.request.columns
                for control in ("random", "matched")
            ]
            numbers += [n for n in every if n is not None]
            random, matched = every[-2:]
            base = evidence.right(WITH, model)
            if random is None or matched is None or base is None:
                tests.append(None)
                parts.append(f"the {kind} was not tested")
            elif not above(base, ROOM):
                tests.append(None)  # nothing to lose: a floor would pass for robustness
                parts.append(f"the {kind} answers too little to lose anything ({said(base)} right)")
            else:
                both = [
                    below(n, BREAKS) if kind == "ARM" else above(n, TOUCHES)
                    for n in (random, matched)
                ]
                tests.append(all(both))
                parts.append(
                    f"the share right changes by {said(random)} in the {kind} (against columns at the "
                    f"same places: {said(matched)})"
                )
        sentence = (
            f"With {k} anchors hidden instead of {k} random columns " + "; ".join(parts) + "."
        )
        text = "Masking sinks breaks autoregressive models and hardly touches diffusion models"
        return [Claim(8, text, verdict(tests), sentence, tuple(numbers), self.name)]

    def _against(
        self, evidence: Evidence, model: str | None, k: int, control: str, label: str
    ) -> Number | None:
        return evidence.apart(f"mask-{k}-anchors", f"mask-{k}-{control}", model, label)

    def findings(self, evidence: Evidence) -> list[str]:
        lines = []
        for model in evidence.models:
            parts = []
            for where in ("first", "last"):
                random, matched = (
                    evidence.apart(f"structure-{where}-chosen", f"structure-{where}-{c}", model)
                    for c in ("random", "matched")
                )
                if random and matched:
                    parts.append(
                        f"in the {where} third of the layers by {said(random)} (against the tokens "
                        f"beside it: {said(matched)})"
                    )
            if parts:
                lines.append(
                    f"{model}: hiding structure instead of random columns changes the share right "
                    + ", ".join(parts)
                    + "."
                )
        return lines

    def figures(self, evidence: Evidence) -> list[Picture]:
        names = [s.name for s in self.settings(evidence.request)]
        alt = "Share of right answers with columns hidden, for every model, with 95 % intervals."
        return [of_answers(evidence, names, "robustness", "Right answers with columns hidden", alt)]
