"""Knowledge: how much does a model gain from passages?"""

import numpy as np

from ...tasks.conditions import Condition
from ..claim import Claim, Number, above, said, short, verdict
from ..draw import Picture, of_answers
from ..evidence import Evidence
from ..request import Request
from ..setting import KNOWN, Setting
from ..study import Study

CLOSED, WITH = "closed-book", "with-passages"
TWICE = 1.5  # "about twice" begins here


class Knowledge(Study):
    name = "knowledge"
    question = "How much does a model gain from passages?"
    decides = (7,)
    method = """\
right: a right answer (any alias, SQuAD's normalisation) is contained in what was said
gain  = with passages − closed book, question by question, on one template, one number of masks and one
        decoding budget; closed book keeps nothing of the retrieval scaffolding
claim: the MDM's gain exceeds 0, the ARM's, and 1.5 times the ARM's (intervals above 0); not tested
        where the ARM gains so much that the MDM could not
flatness: the same questions with the gold passage at every place of a sweep"""

    def settings(self, request: Request) -> list[Setting]:
        settings = [
            Setting(CLOSED, "closed-book"),
            Setting(WITH, request.asked_as),
            *(
                Setting(f"gold-{place}", self._at(request, place))
                for place in self._places(request)
            ),
        ]
        if request.data.startswith("world:") and request.data not in ("world:names", "world:hard"):
            settings += [
                Setting("known-closed-book", "closed-book", people=KNOWN),
                Setting("known-with-passages", request.asked_as, people=KNOWN),
            ]
        return settings

    def _places(self, request: Request) -> list[int]:
        """First, middle and last passage, where their number is known."""
        n = Condition.parse(request.asked_as).passages
        if n is None and request.data.startswith("world:"):
            from ...tasks.world import LEVELS

            level = LEVELS.get(request.data.partition(":")[2])
            n = None if level is None else level.passages
        return [] if n is None or n < 2 else sorted({0, n // 2, n - 1})

    def _at(self, request: Request, place: int) -> str:
        words = [] if request.asked_as == "as-is" else [request.asked_as]
        return ",".join([*words, f"gold={place}"])

    def claims(self, evidence: Evidence) -> list[Claim]:
        of_mdm, of_arm = (evidence.gap_by_id(WITH, CLOSED, m) for m in (evidence.mdm, evidence.arm))
        both = [i for i in of_mdm if i in of_arm]  # asked of both models
        mdm, arm = (np.array([gain[i] for i in both]) for gain in (of_mdm, of_arm))
        numbers = [
            evidence.apart(WITH, CLOSED, m, f"{k}: gain from passages")
            for k, m in (("MDM", evidence.mdm), ("ARM", evidence.arm))
        ]
        tests: list[bool | None] = [None]
        sentence = "It takes a diffusion and an autoregressive model, asked the same, to compare."
        gain_mdm, gain_arm = numbers
        if both and gain_mdm and gain_arm:
            apart = evidence.between(mdm, arm, "MDM − ARM")
            twice = evidence.between(mdm, TWICE * arm, "MDM − 1.5 × ARM")
            numbers += [apart, twice]
            sentence = (
                f"Passages raise the share of right answers by {said(gain_mdm)} in the MDM and "
                f"{said(gain_arm)} in the ARM; the difference is {said(apart)}."
            )
            closed = evidence.right(CLOSED, evidence.mdm)
            if closed and TWICE * gain_arm.value >= 1 - closed.value:
                # Whatever it does, the MDM cannot gain so much more: a ceiling is no refutation.
                sentence += " The ARM gains so much that 1.5 times as much cannot be: not a test."
            else:
                tests = [above(gain_mdm, 0.0), above(apart, 0.0), above(twice, 0.0)]
        kept = tuple(n for n in numbers if n is not None)
        text = "Diffusion models gain about twice as much from passages"
        return [Claim(7, text, verdict(tests), sentence, kept, self.name)]

    def findings(self, evidence: Evidence) -> list[str]:
        lines = []
        for model in evidence.models:
            closed, read = (evidence.right(s, model) for s in (CLOSED, WITH))
            if closed is None or read is None:
                continue
            line = f"{model}: {said(closed)} right closed-book, {said(read)} with passages"
            places = self._sweep(evidence, model)
            if places:
                values = [n.value for n in places.values()]
                line += f"; from {short(min(values), '%')} to {short(max(values), '%')} over gold positions"
            lines.append(line + ".")
            if read.value > 0.95:
                lines.append("With passages it is near the ceiling: a gain cannot be larger there.")
        return lines

    def _sweep(self, evidence: Evidence, model: str) -> dict[int, Number]:
        every = {p: evidence.right(f"gold-{p}", model) for p in self._places(evidence.request)}
        return {p: n for p, n in every.items() if n is not None}

    def figures(self, evidence: Evidence) -> list[Picture]:
        names = [s.name for s in self.settings(evidence.request)]
        alt = "Share of right answers in every condition, for every model, with 95 % intervals."
        return [of_answers(evidence, names, "knowledge", "Right answers by condition", alt)]
