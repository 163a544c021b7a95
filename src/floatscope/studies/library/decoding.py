"""Decoding: which positions and tokens does a sampler reveal first, and does it matter?"""

from functools import partial

from ...decode.presets import presets
from ...measures.library.order import maps
from ...measures.style import Figure
from ..claim import Claim, Number, above, below, said, verdict
from ..draw import Picture, dots
from ..evidence import Evidence
from ..request import Request
from ..setting import Setting
from ..study import Study

CONFIDENCE, CALIBRATED = "sampler-confidence", "sampler-position-calibrated"


class Decoding(Study):
    name = "decoding"
    question = "Which positions and tokens does a sampler reveal first, and does it matter?"
    decides = (9,)
    method = """\
boundary = mean reveal rank of the outer fifths of the answer − that of the middle, over the length;
           negative: the ends come first
left to right = Spearman correlation of position and reveal step
trivial  = share of the first quarter of reveals whose token is more frequent in a corpus than the median
           revealed token; null: the share among all reveals. Needs token frequencies
All samplers answer the same questions with the same number of masks. claim: with confidence the ends come
first, trivial tokens come first, and calibration (2508.13021) answers more questions right"""

    def settings(self, request: Request) -> list[Setting]:
        names = presets(request.length, request.steps)
        return [Setting(f"sampler-{n}", request.asked_as, sampler=n) for n in names]

    def claims(self, evidence: Evidence) -> list[Claim]:
        boundary, trivial = (self._number(evidence, CONFIDENCE, v) for v in ("boundary", "trivial"))
        repaired = evidence.apart(
            CALIBRATED, CONFIDENCE, evidence.mdm, "calibrated − confidence, right"
        )
        base = evidence.right(CONFIDENCE, evidence.mdm)
        tests: list[bool | None] = [None, None, None]
        parts = []
        if boundary:
            tests[0] = below(boundary, 0.0)
            parts.append(f"the ends differ from the middle by {said(boundary)} in rank")
        if trivial:
            tests[1] = above(trivial, trivial.null)
            parts.append(f"{said(trivial)} of the first reveals are trivial")
        if repaired and base:
            parts.append(f"calibration changes the share right by {said(repaired)}")
            # Without frequencies only the position is calibrated; at the ceiling nothing can be won.
            if evidence.request.frequencies is None:
                parts[-1] += " (without token frequencies: not a test)"
            elif base.value > 0.97:
                parts[-1] += " (at the ceiling: not a test)"
            else:
                tests[2] = above(repaired, 0.0)
        numbers = [n for n in (boundary, trivial, repaired) if n is not None]
        sentence = "With confidence " + "; ".join(parts) + "." if parts else "Nothing to go by."
        if evidence.mdm is None:
            sentence = "No diffusion model was in the run."
        text = "Decoding order is biased to the ends and to trivial tokens; calibration repairs it"
        return [Claim(9, text, verdict(tests), sentence, tuple(numbers), self.name)]

    def _number(self, evidence: Evidence, setting: str, value: str) -> Number | None:
        order = evidence.order(setting, evidence.mdm)
        if order is None:
            return None
        data = order.data
        mean, low, high, null = (
            float(data[f"{value}{end}"]) for end in ("", "_low", "_high", "_null")
        )
        label = {"boundary": "ends − middle, rank / length", "trivial": "trivial among the first"}[
            value
        ]
        if mean != mean:  # NaN: half of the tokens or more are one, such as the end token
            return None
        return Number(label, mean, low, high, null, "%" if value == "trivial" else "", order.n)

    def findings(self, evidence: Evidence) -> list[str]:
        every = {
            s.name: evidence.right(s.name, evidence.mdm) for s in self.settings(evidence.request)
        }
        there = {name: n for name, n in every.items() if n is not None}
        if not there:
            return []
        best, worst = (f(there, key=lambda n: there[n].value) for f in (max, min))
        if there[best].value == there[worst].value:
            return [f"{evidence.mdm}: {said(there[best])} right with every sampler."]
        return [
            f"{evidence.mdm}: from {said(there[worst])} right ({worst.removeprefix('sampler-')}) to "
            f"{said(there[best])} ({best.removeprefix('sampler-')})."
        ]

    def figures(self, evidence: Evidence) -> list[Picture]:
        every = {
            s.name: evidence.right(s.name, evidence.mdm) for s in self.settings(evidence.request)
        }
        names = [name for name, right in every.items() if right]  # an older run lacks some
        if evidence.mdm is None:
            return []
        series = {evidence.mdm: [every[name] for name in names]}
        ticks = [name.removeprefix("sampler-") for name in names]
        return [
            Picture(
                "samplers",
                "Right answers by sampler",
                "Share of right answers of every sampler with 95 % intervals.",
                partial(dots, series, ticks),
            ),
            Picture(
                "order",
                "When each part of the answer is revealed",
                "One map a sampler: probability that a place of the answer is revealed by a step.",
                partial(_maps, evidence, names),
            ),
        ]


def _maps(evidence: Evidence, names: list[str]) -> Figure:
    orders = {name.removeprefix("sampler-"): evidence.order(name, evidence.mdm) for name in names}
    return maps({name: order for name, order in orders.items() if order is not None})
