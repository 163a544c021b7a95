"""Geometry: do anchors win by angle or by norm, and how does that change with depth?"""

from typing import ClassVar

from ...measures import Geometry as Measured
from ...measures.base import Measure
from ..claim import Claim, above, below, said, verdict
from ..evidence import Evidence
from ..numbers import overall, third
from ..request import Request
from ..study import Shows, Study

QUARTER = 0.25  # "by angle" means: the norm adds less than a quarter of what the angle adds


class Geometry(Study):
    name = "geometry"
    question = "Do anchors win by angle or by norm, and how does that change with depth?"
    decides = (5,)
    method = """\
For every head: n = ‖q‖·‖k‖, c = cos(q, k), a = mean over anchors, o = mean over the other keys
score advantage  n_a·c_a − n_o·c_o = angle + norm
angle = ½ (c_a − c_o)(n_a + n_o)        norm = ½ (n_a − n_o)(c_a + c_o)
Anchors by ZScore(3) in each head; where it finds none, the key that receives most stands in. Means over
steps and heads; null 0. "First" and "last" are thirds of the layers. claim: angle and norm
above 0 in the first third; in the last, angle above 0 and norm below a quarter of the angle."""

    shows: ClassVar[Shows] = {
        "geometry": (
            "Anchors minus the rest",
            "Score, cosine and norm product of anchors minus the rest; angle and norm parts of the "
            "advantage; share due to the angle; all by layer with intervals.",
        ),
    }

    def measures(self, request: Request) -> dict[str, Measure]:
        return {"geometry": Measured()}

    def claims(self, evidence: Evidence) -> list[Claim]:
        result = evidence.result("geometry", evidence.mdm)
        parts = {
            (where, what): overall(
                result, what, f"{where} third: {what}", "q·k", third(result, where)
            )
            for where in ("first", "last")
            for what in ("angle", "norm")
        }
        numbers = tuple(n for n in parts.values() if n is not None)
        tests: list[bool | None] = [None]
        sentence = (
            "No diffusion model was in the run." if evidence.mdm is None else "No anchors found."
        )
        if len(numbers) == 4:
            first_angle, first_norm, last_angle, last_norm = numbers
            tests = [
                above(first_angle, 0.0),
                above(first_norm, 0.0),
                above(last_angle, 0.0),
                below(last_norm, QUARTER * last_angle.value),
            ]
            sentence = (
                f"In the first third of the MDM's layers anchors gain {said(first_angle)} by angle "
                f"and {said(first_norm)} by norm; in the last third {said(last_angle)} by angle and "
                f"{said(last_norm)} by norm."
            )
        text = "Shallow anchors win by angle and norm, deep ones by angle"
        return [Claim(5, text, verdict(tests), sentence, numbers, self.name)]

    def findings(self, evidence: Evidence) -> list[str]:
        lines = []
        for model in evidence.models:
            result = evidence.result("geometry", model)
            rank = overall(result, "key_rank", "", "%", third(result, "last"))
            if rank:
                where = "small" if below(rank, 0.5) else "large" if above(rank, 0.5) else "ordinary"
                lines.append(
                    f"{model}: in the last third an anchor's key norm is {where}: larger than that of "
                    f"{said(rank)} of the other keys."
                )
        return lines
