"""Study whether attention rests on one fixed token, or on anchors that move."""

from collections.abc import Iterator
from typing import ClassVar

from ...measures import (
    Absorption,
    Agreement,
    Dispersion,
    Drift,
    Dynamics,
    StrongestKey,
)
from ...measures.base import Measure
from ..claim import Claim, format_number
from ..evidence import Evidence
from ..numbers import overall
from ..request import Request
from ..study import Shows, Study
from . import floating_claims as claims


class Floating(Study):
    """The study `floating`: whether attention has a fixed sink, or anchors that move (claims 1, 2 and 4)."""

    name = "floating"
    question = "Does attention rest on one fixed token, or on anchors that move?"
    rules = (claims.SINK, claims.DISPERSED, claims.LAYERS)
    method = """\
mass      m_j = Σ_i A_ij / S                        share of all attention that key j receives
lift      mass over what uniform attention over the visible keys would give (a causal model's position 0
          gets H_S/S for nothing)
strongest key: the prompt's key with the highest mass, head mean
controls  the same network with the entries of every matrix permuted, and each head's queries scaled until its
          mean entropy is that of the trained head; they read the texts that the trained network decoded
real anchor: a layer whose strongest key receives more than in the controls (Student's t on
          logarithms of the networks' mean shares, k − 1 degrees of freedom, corrected over layers)
same state: every model reads the same text, prompt and gold answer, in one forward; all its rows count
absorption = Σ over keys that pass ZScore(3) of m_j
dispersion = how often two prompts have their anchors in different tenths of the text; interval: leave one
          prompt out, with real anchors chosen again
persistence = Jaccard index of the anchors of neighbouring steps (or layers)
A cached causal row never changes, so an ARM's anchors persist over steps by construction: its steps are
not compared, its layers are."""

    shows: ClassVar[Shows] = {
        "dispersion": (
            "Position of the strongest key",
            "Left: place of the strongest key by layer, one dot per example. Right: dispersion over "
            "examples and the share at position 0, with nulls.",
        ),
        "absorption": (
            "Attention on anchors",
            "Absorption, position-0 share and top-1 share by layer with nulls and intervals.",
        ),
        "drift": (
            "Drift over steps",
            "Persistence, displacement and lifetime of anchors between steps, by layer, with chance.",
        ),
        "drift-layers": (
            "Drift over layers",
            "Persistence, displacement and lifetime of anchors between layers, by step, with chance.",
        ),
    }

    def measures(self, request: Request) -> dict[str, Measure]:
        return {
            "absorption": Absorption(),
            "absorption-finished": Absorption(),
            "absorption-same": Absorption(),
            "strongest-same": StrongestKey(),
            "strongest-heads-same": StrongestKey(per_head=True),
            "dispersion": Dispersion(),
            "drift": Drift(),
            "drift-layers": Drift(over="layer"),
            "dynamics": Dynamics(),
            "agreement": Agreement(),
        }

    def claims(self, evidence: Evidence) -> list[Claim]:
        return [
            claims.sink(evidence, self.name),
            claims.dispersed(evidence, self.name),
            claims.over_layers(evidence, self.name),
        ]

    def findings(self, evidence: Evidence) -> Iterator[str]:
        for model in evidence.models:
            place = overall(evidence.result("absorption", model), "first", "", "%")
            finished = overall(evidence.result("absorption-finished", model), "first", "", "%")
            count = overall(evidence.result("absorption", model), "anchors", "", "anchors")
            if place and finished and count:
                yield (
                    f"{model}: position 0 receives {format_number(place)} of attention while decoding and "
                    f"{format_number(finished)} on the finished sequence; {format_number(count)} a layer."
                )
