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
        k = found.request.columns[-1]
        for kind, model in (("ARM", found.arm), ("MDM", found.mdm)):
            every = [
                self._against(found, model, n, control, f"{kind}, k = {n}: anchors − {control}")
                for n in found.request.columns
                for control in ("random", "matched")
            ]
            numbers += [n for n in every if n is not None]
            random, matched = every[-2:]
            base = found.right(WITH, model)
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
        self, found: Findings, model: str | None, k: int, control: str, label: str
    ) -> Number | None:
        return found.apart(f"mask-{k}-anchors", f"mask-{k}-{control}", model, label)

    def findings(self, found: Findings) -> list[str]:
        lines = []
        for model in found.models:
            parts = []
            for where in ("first", "last"):
                random, matched = (
                    found.apart(f"structure-{where}-chosen", f"structure-{where}-{c}", model)
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

    def figures(self, found: Findings) -> list[Picture]:
        names = [s.name for s in self.settings(found.request)]
        series = {model: [found.right(name, model) for name in names] for model in found.models}
        alt = "Share of right answers with columns hidden, for every model, with 95 % intervals."
        return [
            Picture(
                "robustness", "Right answers with columns hidden", alt, partial(dots, series, names)
            )
        ]
