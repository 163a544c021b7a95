"""Floating: does attention rest on one fixed token, or on anchors that move?"""

from typing import ClassVar

from ...measures import Absorption, Agreement, Dispersion, Drift, Dynamics
from ...measures.base import Measure
from ..claim import Claim, above, below, said, verdict
from ..evidence import Evidence
from ..numbers import along, lifted, overall
from ..request import Request
from ..study import Shows, Study


def _midway(null: float | None) -> float | None:
    """Half-way between chance and 1: below it, a state is nearer to chance than to staying."""
    return None if null is None else (1 + null) / 2


class Floating(Study):
    name = "floating"
    question = "Does attention rest on one fixed token, or on anchors that move?"
    decides = (1, 2, 3, 4)
    method = """\
mass      m_j = Σ_i A_ij / S                        share of all attention that key j receives
received  c_j = mean of A_ij over the queries that see j
anchors   ZScore(3): c_j > mean + 3·std of the head mean (2601.07894); no more than S/10 keys can pass
absorption = Σ over anchors of m_j
strongest key: arg max of c_j on the head mean; "stays": it is the same in the next state
persistence = Jaccard index of the anchors of neighbouring steps (or layers)
dispersion  = entropy over examples of the strongest key's place, over its maximum
Nulls: uniform attention over visible keys (a causal model's position 0 gets H_S/S for free);
two independent states of random attention with as many anchors. The same rule, aggregation and
normalisation for every model. A cached causal row never changes, so an ARM's anchors persist over
steps by construction: its steps are not compared, its layers are."""

    shows: ClassVar[Shows] = {
        "dispersion": (
            "Where the strongest key stands",
            "Left: place of the strongest key by layer, one dot an example. Right: dispersion over "
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
            "dispersion": Dispersion(),
            "drift": Drift(),
            "drift-layers": Drift(over="layer"),
            "dynamics": Dynamics(),
            "agreement": Agreement(),
        }

    def claims(self, evidence: Evidence) -> list[Claim]:
        return [
            self._sink(evidence),
            self._dispersed(evidence),
            self._steps(evidence),
            self._layers(evidence),
        ]

    def _sink(self, evidence: Evidence) -> Claim:
        first = {
            kind: overall(
                evidence.result("dispersion", model),
                "first",
                f"{kind}: strongest key is position 0",
                "%",
            )
            for kind, model in (("ARM", evidence.arm), ("MDM", evidence.mdm))
        }
        arm, mdm = first["ARM"], first["MDM"]
        tests: list[bool | None] = [None]
        if arm is not None:
            tests = [above(arm, 0.5), above(arm, arm.null)]
        parts = []
        if arm is not None:
            parts.append(f"The ARM's strongest key is position 0 in {said(arm)} of layer × example")
        if mdm is not None:
            parts.append(f"the MDM's in {said(mdm)}")
        return Claim(
            1,
            "An autoregressive model's attention has a fixed sink at the first token",
            verdict(tests),
            "; ".join(parts) + "." if parts else "No causal model was in the run.",
            tuple(n for n in (arm, mdm) if n is not None),
            self.name,
        )

    def _dispersed(self, evidence: Evidence) -> Claim:
        spread = [
            along(
                evidence.result("dispersion", m),
                "dispersion",
                f"{k}: dispersion over examples",
                "%",
            )
            for k, m in (("MDM", evidence.mdm), ("ARM", evidence.arm))
        ]
        absorbed = [
            overall(evidence.result("absorption", m), "absorption", f"{k}: mass on anchors", "%")
            for k, m in (("MDM", evidence.mdm), ("ARM", evidence.arm))
        ]
        tests: list[bool | None] = [None]
        if spread[0] and spread[1] and absorbed[0] and absorbed[1]:
            lifts = [lifted(n) for n in absorbed if n is not None]
            tests = [
                above(spread[0], spread[1].high),
                below(absorbed[0], absorbed[1].low),
                below(lifts[0], lifts[1].low),
            ]
            sentence = (
                f"Places of the strongest key spread over {said(spread[0])} of the maximum in the MDM "
                f"and {said(spread[1])} in the ARM; anchors absorb {said(absorbed[0])} and "
                f"{said(absorbed[1])} of attention, {said(lifts[0])} and {said(lifts[1])} what uniform "
                "attention would."
            )
        else:
            sentence = "It takes a diffusion and an autoregressive model to compare."
        return Claim(
            2,
            "A diffusion model's anchors are dispersed",
            verdict(tests),
            sentence,
            tuple(n for n in (*spread, *absorbed) if n is not None),
            self.name,
        )

    def _steps(self, evidence: Evidence) -> Claim:
        result = evidence.result("drift", evidence.mdm)
        stay = overall(result, "stay", "strongest key stays from step to step", "%")
        keep = overall(result, "persistence", "persistence of anchors (Jaccard)")
        moved = overall(result, "displacement", "displacement a step", "positions")
        front = overall(result, "frontier", "correlation with the frontier")
        tests: list[bool | None] = [None]
        sentence = "No diffusion model, or too few steps, in the run."
        if stay and keep and moved:
            # Nearer to chance than to staying; and to the right, with what is revealed.
            tests = [
                below(keep, _midway(keep.null)),
                None if moved.null is None else above(moved, moved.null / 2),
                None if front is None else above(front, 0.0),
            ]
            sentence = (
                f"From step to step the MDM's strongest key stays in {said(stay)} of cases; anchors "
                f"persist with a Jaccard index of {said(keep)} and move {said(moved)}"
                + (f"; correlation with the frontier {said(front)}." if front else ".")
            )
        numbers = tuple(n for n in (stay, keep, moved, front) if n is not None)
        text = "Its anchors move over denoising steps"
        return Claim(3, text, verdict(tests), sentence, numbers, self.name)

    def _layers(self, evidence: Evidence) -> Claim:
        mdm, arm = (
            overall(
                evidence.result("drift-layers", m), "stay", f"{k}: stays from layer to layer", "%"
            )
            for k, m in (("MDM", evidence.mdm), ("ARM", evidence.arm))
        )
        tests: list[bool | None] = [None]
        sentence = "No diffusion model was in the run."
        if mdm:
            tests = [below(mdm, _midway(mdm.null))] + ([below(mdm, arm.low)] if arm else [])
            sentence = f"From layer to layer the MDM's strongest key stays in {said(mdm)} of cases"
            sentence += f", the ARM's in {said(arm)}." if arm else "."
        numbers = tuple(n for n in (mdm, arm) if n is not None)
        text = "Its anchors move over layers"
        return Claim(4, text, verdict(tests), sentence, numbers, self.name)

    def findings(self, evidence: Evidence) -> list[str]:
        lines = []
        for model in evidence.models:
            place = overall(evidence.result("absorption", model), "first", "", "%")
            done = overall(evidence.result("absorption-finished", model), "first", "", "%")
            count = overall(evidence.result("absorption", model), "anchors", "", "anchors")
            if place and done and count:
                lines.append(
                    f"{model}: position 0 receives {said(place)} of attention while decoding and "
                    f"{said(done)} on the finished sequence; {said(count)} a layer."
                )
        return lines
