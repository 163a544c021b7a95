"""Decoding: which positions and tokens does a sampler reveal first, and does it matter?"""

from functools import partial
from typing import TYPE_CHECKING

from ..measures.figures import SHARE_MAP, canvas
from .claim import Claim, Number, above, below, said, verdict
from .draw import dots
from .findings import Findings
from .request import Request
from .study import Picture, Setting, Study

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMES = (
    *("confidence", "entropy", "margin", "random", "position-calibrated"),
    *("threshold", "factor", "entropy-bound", "remask"),
)
CONFIDENCE, CALIBRATED = "sampler-confidence", "sampler-position-calibrated"


def sampler_names(length: int, steps: int | None) -> tuple[str, ...]:
    """What `samplers.all_samplers` compares, known without loading any of it."""
    blocks = any(length % parts == 0 and (steps or length) >= parts for parts in (4, 2, 5))
    return (*NAMES, "semi-autoregressive") if blocks else NAMES


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
        names = sampler_names(request.length, request.steps)
        return [Setting(f"sampler-{n}", request.asked_as, sampler=n) for n in names]

    def claims(self, found: Findings) -> list[Claim]:
        model = found.mdm
        numbers: list[Number] = []
        tests: list[bool | None] = []
        boundary, trivial = (self._number(found, CONFIDENCE, v) for v in ("boundary", "trivial"))
        repaired = found.apart(CALIBRATED, CONFIDENCE, model, "calibrated − confidence, right")
        sentence = "No diffusion model was in the run."
        if boundary:
            numbers.append(boundary)
            tests.append(below(boundary, 0.0))
            sentence = (
                f"With confidence the ends differ from the middle by {said(boundary)} in rank"
            )
            if trivial:
                numbers.append(trivial)
                tests.append(above(trivial, trivial.null))
                sentence += f"; {said(trivial)} of the first reveals are trivial"
            if repaired:
                numbers.append(repaired)
                tests.append(above(repaired, 0.0))
                sentence += f"; calibration changes the share right by {said(repaired)}"
            sentence += "."
        text = "Decoding order is biased to the ends and to trivial tokens; calibration repairs it"
        return [Claim(9, text, verdict(tests), sentence, tuple(numbers), self.name)]

    def _number(self, found: Findings, setting: str, value: str) -> Number | None:
        order = found.order(setting, found.mdm)
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

    def findings(self, found: Findings) -> list[str]:
        every = {s.name: found.right(s.name, found.mdm) for s in self.settings(found.request)}
        there = {name: n for name, n in every.items() if n is not None}
        if not there:
            return []
        best, worst = (f(there, key=lambda n: there[n].value) for f in (max, min))
        return [
            f"{found.mdm}: from {said(there[worst])} right ({worst.removeprefix('sampler-')}) to "
            f"{said(there[best])} ({best.removeprefix('sampler-')})."
        ]

    def figures(self, found: Findings) -> list[Picture]:
        names = [s.name for s in self.settings(found.request)]
        if found.mdm is None:
            return []
        series = {found.mdm: [found.right(name, found.mdm) for name in names]}
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
                partial(_maps, found, names),
            ),
        ]


def _maps(found: Findings, names: list[str]) -> "Figure":
    orders = {name: found.order(name, found.mdm) for name in names}
    there = {name: order for name, order in orders.items() if order is not None}
    columns = min(5, len(there))
    rows = -(-len(there) // columns)
    with canvas(rows, columns, width=1.6, height=1.7) as (figure, axes):
        for axis in axes.flat[len(there) :]:
            axis.set_visible(False)
        for axis, (name, order) in zip(axes.flat, there.items(), strict=False):
            data = order.data
            image = axis.pcolormesh(
                data["place"], data["time"], data["map"], cmap=SHARE_MAP, vmin=0, vmax=1
            )
            image.set_edgecolor("face")
            axis.set_title(name.removeprefix("sampler-"), fontsize=7)
        for axis in axes[:, 0]:
            axis.set_ylabel("steps done")
        for axis in axes[-1]:
            axis.set_xlabel("place in the answer")
        figure.colorbar(image, ax=axes, label="P(revealed)", shrink=0.8)
    return figure
