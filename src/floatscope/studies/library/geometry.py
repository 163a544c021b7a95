"""Geometry: do anchors win by angle or by norm, and how does that change with depth?"""

from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import numpy as np
import xarray as xr

from ...measures import Geometry as Measured
from ...measures import KindsOfKey
from ...measures.base import Measure
from ...measures.library.kinds import advantage
from ...measures.result import Result
from ...stats.anchors import RULES
from ...stats.thirds import thirds as layer_thirds
from ...trace import Trace
from ..anchored import by_prompt, jackknife, names_of
from ..claim import Check, Claim, Number, above, below, said
from ..evidence import Evidence
from ..numbers import number, overall, third
from ..request import Request
from ..study import Shows, Study
from ..verdict import LEVEL, Rule, judge, other_deltas, vary

KINDS = "kinds-same"
RULED = "geometry-rules-same"
VARIED = tuple(
    f"anchors by {rule.__name__}, {where}, not chosen apart"
    for rule in RULES
    for where in ("each head", "head mean")
)
NORM = Rule(
    5,
    "Shallow anchors win by angle and norm, deep ones by angle",
    "the norm's share of the anchors' advantage in score, first third of the MDM's layers − last "
    "third; anchors are kinds of token chosen on other prompts than those measured",
    delta=0.1,
    unit="points",
    untrained=True,
    holds="In shallow layers anchors win by norm as well as angle; in deep layers the norm counts for less.",
    refuted="The norm counts for no more in shallow layers than in deep ones.",
)


@dataclass(frozen=True)
class PartsByRule(Measure):
    """Angle and norm of the anchors that each rule finds on the prompt measured: to see what hangs on it."""

    units: ClassVar[dict[str, str]] = {"angle": "q·k", "norm": "q·k"}

    def one(self, trace: Trace) -> xr.Dataset:
        at, order = {"step": -1}, ("layer", "head", "key")
        cosine = trace.cosine.isel(at).transpose(*order).values
        norms = (trace.query_norm * trace.key_norm).isel(at).transpose(*order).values
        received = trace.received.isel(at).transpose(*order).values
        parts: list[tuple[np.ndarray, np.ndarray]] = []
        for rule in RULES:
            for each_head in (True, False):
                c = received if each_head else received.mean(1, keepdims=True)
                # Where a rule finds none, the key that receives most stands in.
                strongest = c == np.nanmax(c, -1, keepdims=True)
                passes = rule().passes(c)
                anchor = np.where(passes.any(-1, keepdims=True), passes, strongest)
                parts.append(_parts(cosine, norms, np.broadcast_to(anchor, cosine.shape)))
        dims = ("choice", "layer")
        angle, norm = (np.array([p[i].mean(1) for p in parts]) for i in range(2))
        coords = {"choice": list(VARIED), "layer": trace.data["layer"].values}
        return xr.Dataset({"angle": (dims, angle), "norm": (dims, norm)}, coords)


def _parts(
    cosine: np.ndarray, norms: np.ndarray, anchor: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Of (layer, head, key): the two parts of the anchors' advantage, (layer, head) each."""
    there = ~np.isnan(cosine)

    def sides(values: np.ndarray) -> list[np.ndarray]:
        return [
            np.where(of, np.nan_to_num(values), 0).sum(-1) / np.maximum(of.sum(-1), 1)
            for of in (anchor & there, ~anchor & there)
        ]

    (c_a, c_o), (n_a, n_o) = sides(cosine), sides(norms)
    return (c_a - c_o) * (n_a + n_o) / 2, (n_a - n_o) * (c_a + c_o) / 2


class Geometry(Study):
    name = "geometry"
    question = "Do anchors win by angle or by norm, and how does that change with depth?"
    rules = (NORM,)
    method = """\
For every head: n = ‖q‖·‖k‖, c = cos(q, k), a = mean over anchors, o = mean over the other keys
score advantage  n_a·c_a − n_o·c_o = angle + norm
angle = ½ (c_a − c_o)(n_a + n_o)        norm = ½ (n_a − n_o)(c_a + c_o)
In the claim an anchor is a kind of token (the first position, each structural token by its text, content):
the one with the highest mean lift in this head over one half of the prompts, measured in the other half, all
reading the same text (prompt and gold answer). What is chosen for its attention on the same prompts wins by
angle in any model. θ sums over the heads and layers of a third; interval: leave one prompt out.
In the figures: anchors by ZScore(3) in each head; where it finds none, the key that receives most stands in.
Means over steps and heads; null 0. "First" and "last" are thirds of the layers."""

    shows: ClassVar[Shows] = {
        "geometry": (
            "Anchors minus the rest",
            "Score, cosine and norm product of anchors minus the rest; angle and norm parts of the "
            "advantage; share due to the angle; all by layer with intervals.",
        ),
    }

    def measures(self, request: Request) -> dict[str, Measure]:
        return {"geometry": Measured(), KINDS: KindsOfKey(), RULED: PartsByRule()}

    def claims(self, evidence: Evidence) -> list[Claim]:
        theta, numbers, bar = _by_kind(evidence, evidence.result(KINDS, evidence.mdm))
        untrained = _control(evidence, KINDS)
        control, _, _ = _by_kind(evidence, untrained, "untrained: ")
        # Untrained weights whose anchors have no advantage on other prompts earn nothing to exceed.
        rule = NORM if untrained is None or control else replace(NORM, untrained=False)
        variants = [*other_deltas(rule, theta, control, bar)]
        for label in VARIED:
            one, barred = _by_rule(evidence.result(RULED, evidence.mdm), label)
            other, _ = _by_rule(_control(evidence, RULED), label)
            variants.append(vary(label, NORM, one, other, barred))
        sentence = ""
        first, last = numbers
        if first and last:
            sentence = (
                f"Of the advantage in score that a kind of token has where it is the anchor of other "
                f"examples, the norm makes up {said(first)} in the first third of the MDM's layers and "
                f"{said(last)} in the last."
            )
        return [
            judge(
                rule,
                self.name,
                theta,
                control=control,
                bar=bar,
                sentence=sentence,
                numbers=numbers,
                checks=(
                    Check("the norm helps in the first third", above(first, 0.0)),
                    Check("it hardly does in the last", below(last, 0.25)),
                ),
                variants=tuple(variants),
            )
        ]

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


def _control(evidence: Evidence, key: str) -> Result | None:
    return None if evidence.mdm is None else evidence.control(key, evidence.mdm)


def _by_kind(
    evidence: Evidence, result: Result | None, label: str = ""
) -> tuple[Number | None, tuple[Number | None, Number | None], str]:
    """θ, its two thirds, and what bars a test."""
    if result is None:
        return None, (None, None), "No diffusion model was in the run: add one with --model."
    names = names_of(result)
    return _shares(*advantage(result.examples, names), names, label)


def _by_rule(result: Result | None, choice: str) -> tuple[Number | None, str]:
    """The same from anchors that a rule finds on the prompts measured."""
    if result is None:
        return None, "No diffusion model was in the run: add one with --model."
    parts = [
        result.examples[name].sel(choice=choice).transpose("example", "layer").values[..., None]
        for name in ("angle", "norm")
    ]
    theta, _, bar = _shares(parts[0], parts[1], names_of(result), "")
    return theta, bar


def _shares(
    angle: np.ndarray, norm: np.ndarray, names: list[str], label: str
) -> tuple[Number | None, tuple[Number | None, Number | None], str]:
    """Of (example, layer, head): the norm's share of all advantage in a third of the layers."""
    where = layer_thirds(angle.shape[1])

    def share(kept: np.ndarray, third: str) -> float:
        of_norm, of_angle = (np.nansum(p[kept][:, where[third]]) for p in (norm, angle))
        both = of_norm + of_angle
        return float(of_norm / both) if both > 0 else float("nan")

    for part, layers in where.items():  # a share of nothing can be anything
        sums = np.nansum((angle + norm)[:, layers].reshape(len(angle), -1), 1)
        if not above(number(by_prompt(sums, names), "advantage"), 0.0):
            bar = f"Anchors win nothing in the {part} third, on prompts they were not chosen on."
            return None, (None, None), bar
    thirds = tuple(
        jackknife(partial(share, third=t), names, f"{label}{t} third: the norm's share", "%", 0.95)
        for t in where
    )
    if thirds[0] is None or thirds[1] is None:
        bar = "Anchors have no advantage in score on prompts other than those they were chosen on."
        return None, (None, None), bar
    theta = jackknife(
        lambda kept: share(kept, "first") - share(kept, "last"),
        names,
        f"{label}the norm's share, first third − last",
        "points",
        LEVEL,
    )
    return theta, (thirds[0], thirds[1]), ""
