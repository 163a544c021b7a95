"""Study whether anchors win attention by angle or by norm, and how this changes with depth."""

from collections import Counter
from collections.abc import Callable, Iterator
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
from ..anchored import names_of
from ..claim import Check, Claim, Number, format_number, lies_above, lies_below
from ..evidence import Evidence
from ..numbers import number, overall, third
from ..request import Request
from ..study import Shows, Study
from ..verdict import MDM, Rule, judge, other_deltas, vary

KINDS = "kinds-same"
RULED = "geometry-rules-same"
VARIED = tuple(
    f"anchors by {rule.__name__}, {where}, not chosen apart"
    for rule in RULES
    for where in ("each head", "head mean")
)
NORM = Rule(
    "5",
    "Shallow anchors win by angle and norm, deep ones by angle",
    "the norm's share of the anchors' advantage in score, first third of the MDM's layers − last "
    "third; anchors are kinds of token, each chosen on ten prompts and measured on the others",
    delta=0.1,
    unit="points",
    untrained=True,
    holds="Shallow anchors of this diffusion model win by norm as well as angle; deep ones less by norm.",
    refuted="In this diffusion model the norm counts for no more in shallow layers than in deep ones.",
    models=(MDM,),
)

FEW = 4  # fewest prompts: two to choose by, of which one can be left out
Shares = tuple[Number | None, tuple[Number | None, Number | None], str]  # θ, both thirds, a bar
NO_MODEL: Shares = (
    None,
    (None, None),
    "No diffusion model was in the run: add one with --model.",
)


@dataclass(frozen=True)
class PartsByRule(Measure):
    """Measure the angle and norm parts of the advantage of anchors that each rule finds on the prompt itself.

    The study `geometry` uses these parts for variants of claim 5.
    """

    needs: ClassVar[tuple[str, ...]] = ("mass", "qk")
    units: ClassVar[dict[str, str]] = {"angle": "q·k", "norm": "q·k"}

    def compute(self, trace: Trace) -> xr.Dataset:
        last, order = trace.at_step(-1), ("layer", "head", "key")
        cosine, norms, received = (
            array.isel(step=0).transpose(*order).values
            for array in (last.cosine, last.query_norm * last.key_norm, last.received)
        )
        parts: list[tuple[np.ndarray, np.ndarray]] = []
        for rule in RULES:
            for each_head in (True, False):
                c = received if each_head else received.mean(1, keepdims=True)
                # If a rule finds no anchor, the key that receives most is used.
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
    """Return the angle part and the norm part of the anchors' advantage in score, each (layer, head).

    All arguments are (layer, head, key): the cosine of query and key, the product of their norms, and
    whether the key is an anchor.
    """
    valid = ~np.isnan(cosine)

    def sides(values: np.ndarray) -> list[np.ndarray]:
        return [
            np.where(selected, np.nan_to_num(values), 0).sum(-1) / np.maximum(selected.sum(-1), 1)
            for selected in (anchor & valid, ~anchor & valid)
        ]

    (c_a, c_o), (n_a, n_o) = sides(cosine), sides(norms)
    return (c_a - c_o) * (n_a + n_o) / 2, (n_a - n_o) * (c_a + c_o) / 2


class Geometry(Study):
    """The study `geometry`: whether anchors win attention by angle or by norm (claim 5)."""

    name = "geometry"
    question = "Do anchors win by angle or by norm, and how does that change with depth?"
    rules = (NORM,)
    method = """\
For every head: n = ‖q‖·‖k‖, c = cos(q, k), a = mean over anchors, o = mean over the other keys
score advantage  n_a·c_a − n_o·c_o = angle + norm
angle = ½ (c_a − c_o)(n_a + n_o)        norm = ½ (n_a − n_o)(c_a + c_o)
In the claim an anchor is a kind of token (the first position, each structural token by its text, content):
the one with the highest mean lift in this head over ten prompts, measured on the others, all reading the same
text (prompt and gold answer). What is chosen for attention on the same prompts wins by angle in any model.
θ sums over the heads and layers of a third, and over many groups of ten prompts (32 divisions).
Interval: one prompt is left out at a time, and the anchors are chosen again without it.
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
        theta, (first, last), bar = _by_kind(evidence.result(KINDS, evidence.mdm))
        untrained = evidence.control(KINDS, evidence.mdm)
        control = _control(untrained, _by_kind)
        # If the anchors of untrained weights have no advantage on other prompts, there is nothing to exceed.
        rule = NORM if untrained is None or control else replace(NORM, untrained=False)
        checks = (
            Check("the norm helps in the first third", lies_above(first, 0.0)),
            Check("it hardly does in the last", lies_below(last, 0.25)),
        )
        sentence = ""
        if first and last:
            sentence = (
                f"Of the advantage in score that a kind of token has where it is the anchor of other "
                f"examples, the norm makes up {format_number(first)} in the first third of the "
                f"MDM's layers and {format_number(last)} in the last."
            )
        variants = [*other_deltas(rule, theta, control, bar)]
        for label in VARIED:
            by_rule = partial(_by_rule, choice=label)
            varied, _, barred = by_rule(evidence.result(RULED, evidence.mdm))
            other = _control(evidence.control(RULED, evidence.mdm), by_rule)
            variants.append(vary(label, NORM, varied, other, barred))
        return [
            judge(
                rule,
                self.name,
                theta,
                control=control,
                bar=bar,
                sentence=sentence,
                numbers=(first, last),
                checks=checks,
                variants=tuple(variants),
            )
        ]

    def findings(self, evidence: Evidence) -> Iterator[str]:
        for model in evidence.models:
            result = evidence.result("geometry", model)
            rank = overall(result, "key_rank", "", "%", third(result, "last"))
            if rank:
                size = "small" if lies_below(rank, 0.5) else "ordinary"
                size = "large" if lies_above(rank, 0.5) else size
                yield (
                    f"{model}: in the last third an anchor's key norm is {size}: larger than that of "
                    f"{format_number(rank)} of the other keys."
                )


def _by_kind(result: Result | None) -> Shares:
    """Compute claim 5's θ, both thirds and the bar, with anchors chosen on prompts that are not measured."""
    if result is None:
        return NO_MODEL
    return norm_shares(*advantage(result.examples, names_of(result)))


def _by_rule(result: Result | None, choice: str) -> Shares:
    """Compute claim 5's θ, both thirds and the bar, with anchors by a rule on the measured prompts."""
    if result is None:
        return NO_MODEL
    parts = np.stack(
        [
            result.examples[name].sel(choice=choice).transpose("example", "layer").values[..., None]
            for name in ("angle", "norm")
        ]
    )
    total = parts.sum(1)
    return norm_shares(total, total[:, None] - parts)


def _control(result: Result | None, theta_of: Callable[[Result], Shares]) -> Number | None:
    """Return the mean of claim 5's θ over untrained networks, with an interval that contains their intervals.

    The anchors of a network are chosen independently of other networks. Return None if the anchors of no
    network have an advantage.
    """
    thetas = [theta for network in _networks(result) if (theta := theta_of(network)[0]) is not None]
    if not thetas:
        return None
    ends = [(t.low, t.high) for t in thetas if t.low is not None and t.high is not None]
    low, high = min(low for low, _ in ends), max(high for _, high in ends)
    label = f"untrained: {thetas[0].label}"
    value = float(np.mean([theta.value for theta in thetas]))
    return replace(thetas[0], label=label, value=value, low=low, high=high, sample=None)


def _networks(result: Result | None) -> Iterator[Result]:
    """Yield the result of each control network, from a result with each prompt once per network."""
    if result is None:
        return
    met: Counter[str] = Counter()
    network = []
    for name in names_of(result):
        network.append(met[name])
        met[name] += 1
    for index in range(max(met.values())):
        examples = result.examples.isel(example=np.array(network) == index)
        yield replace(result, examples=examples)


def norm_shares(total: np.ndarray, without: np.ndarray) -> Shares:
    """Return the norm's share of the anchors' advantage: first third of layers − last, each third, and a bar.

    The intervals are computed by leaving out one prompt at a time. The bar is the reason why the shares are
    not defined; "" if the shares are defined.

    Args:
        total: Angle and norm of the advantage, summed over prompts: (2, layer, head).
        without: These sums without each prompt: (2, prompt, layer, head).
    """
    if without.shape[1] < FEW:
        bar = f"Choosing anchors on other prompts takes at least {FEW} prompts: raise --limit."
        return None, (None, None), bar
    where = layer_thirds(total.shape[1])

    def parts(sums: np.ndarray, part: str) -> np.ndarray:
        return sums[..., where[part], :].sum((-1, -2))

    for part in where:  # a share of zero is undefined
        won = leave_one_out(parts(total, part).sum(0), parts(without, part).sum(0))
        if not lies_above(number(won, "advantage"), 0.0):
            bar = f"In the {part} third anchors have no advantage on prompts on which they were not chosen."
            return None, (None, None), bar
    shares = {}
    for part in where:
        (angle, norm), (angles, norms) = parts(total, part), parts(without, part)
        shares[part] = norm / (angle + norm), norms / (angles + norms)
    first, last = (
        number(leave_one_out(*shares[part]), f"{part} third: the norm's share", "%")
        for part in where
    )
    gap, gaps = (early - late for early, late in zip(*shares.values(), strict=True))
    label = "the norm's share, first third − last"
    theta = number(leave_one_out(gap, gaps), label, "points", level=NORM.level)
    return theta, (first, last), ""


def leave_one_out(total: float, without: np.ndarray) -> np.ndarray:
    """Return one value per prompt, whose mean is `total` and whose standard error is the jackknife's.

    `without` has the values of the statistic without each prompt. The jackknife's correction for bias is left
    out. If anchors change when a prompt is left out, the correction multiplies the effect of this change by
    n.
    """
    return total - (len(without) - 1) * (without - without.mean())
