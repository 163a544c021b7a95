"""Robustness: does a model need its anchors, and its structure?"""

from functools import partial

from .claim import Claim, Number, above, below, said, verdict
from .draw import dots
from .findings import Findings
from .knowledge import WITH
from .request import Request
from .study import Picture, Setting, Study

KINDS = {"anchors": "", "random": ",control=random", "matched": ",control=matched"}
MARKUP = "mask-tokens:classes=special|whitespace|punctuation|template"
BREAKS, TOUCHES = -0.25, -0.10  # difference from random columns, in shares


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
claim: at the largest k the ARM loses more than 25 points against random columns, the MDM less than 10"""

    def settings(self, request: Request) -> list[Setting]:
        found = [Setting(WITH, request.asked_as)]
        for k in request.columns:
            for kind, control in KINDS.items():
                text = f"mask-columns:k={k}{control},seed={request.seed}"
                found.append(Setting(f"mask-{k}-{kind}", request.asked_as, text))
        for where in ("first", "last"):
            for kind, control in KINDS.items():
                text = f"{MARKUP},layers={{{where}}}{control},seed={request.seed}"
                name = f"structure-{where}-{'chosen' if kind == 'anchors' else kind}"
                found.append(Setting(name, request.asked_as, text))
        return found

    def claims(self, found: Findings) -> list[Claim]:
        numbers: list[Number] = []
        tests: list[bool | None] = []
        parts = []
        for kind, model in (("ARM", found.arm), ("MDM", found.mdm)):
            for k in found.request.columns:
                one = found.apart(
                    f"mask-{k}-anchors",
                    f"mask-{k}-random",
                    model,
                    f"{kind}, k = {k}: anchors − random",
                )
                if one is not None:
                    numbers.append(one)
            if not numbers or model is None or one is None:
                tests.append(None)
                continue
            tests.append(below(one, BREAKS) if kind == "ARM" else above(one, TOUCHES))
            parts.append(f"{said(one)} in the {kind}")
        k = found.request.columns[-1]
        sentence = (
            f"Hiding {k} anchors instead of {k} random columns changes the share right by "
            + " and by ".join(parts)
            + "."
            if parts
            else "No questions were asked."
        )
        text = "Masking sinks breaks autoregressive models and hardly touches diffusion models"
        return [Claim(8, text, verdict(tests), sentence, tuple(numbers), self.name)]

    def findings(self, found: Findings) -> list[str]:
        lines = []
        for model in found.models:
            first, last = (
                found.apart(f"structure-{w}-chosen", f"structure-{w}-random", model)
                for w in ("first", "last")
            )
            if first and last:
                lines.append(
                    f"{model}: hiding structure instead of random columns changes the share right by "
                    f"{said(first)} in the first third of the layers and by {said(last)} in the last."
                )
        return lines

    def figures(self, found: Findings) -> list[Picture]:
        names = [s.name for s in self.settings(found.request)]
        series = {model: [found.right(name, model) for name in names] for model in found.models}
        alt = "Share of right answers with columns hidden, for every model, with 95 % intervals."
        return [
            Picture(
                "robustness", "Right answers with columns hidden", alt, partial(dots, series, names)
            )
        ]
