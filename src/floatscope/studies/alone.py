"""Summarise where attention rests and how it moves, for a run with only one kind of model.

The kinds are diffusion models and causal models. The numbers come from the study `floating`. They are
compared with chance, and with untrained controls of equal sharpness. The summary also lists the claims that
need a model of the missing kind.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from ..measures.result import Result
from ..plots import POSITIVE, Figure, grid, lines
from ..plots.results import Panel
from ..stats.existence import LEAST, real_layers
from .anchored import align_prompts
from .claim import Claim, Number, format_number, format_value
from .draw import Picture
from .findings import Findings
from .numbers import overall
from .verdict import ARM, MDM, NOT_TESTABLE, Rule

SAME, LAYERS, HEADS = "absorption-same", "strongest-same", "strongest-heads-same"
_MOST = 3  # layers or heads that a sentence names
_KINDS = {MDM: "diffusion", ARM: "causal"}


@dataclass(frozen=True)
class Topic:
    """A topic of the summary, such as where attention rests.

    Args:
        title (str): Title of the topic.
        sentences (tuple of str): The findings on the topic, as sentences.
        numbers (tuple of Number): The numbers in the sentences, with chance as null; the number of the
            untrained controls follows that of the model.
    """

    title: str
    sentences: tuple[str, ...]
    numbers: tuple[Number, ...]


@dataclass(frozen=True)
class Alone:
    """The summary of a model whose run has no model of the other kind.

    Args:
        model (str): Name of the model.
        missing (str): The kind of model that the run lacks: "causal" or "diffusion".
        topics (tuple of Topic): Where attention rests, and how it moves.
        untested (tuple of Claim): The claims that need a model of the missing kind.
        pictures (tuple of Picture): The figure by layer and by head; () if heads were not measured.
    """

    model: str
    missing: str
    topics: tuple[Topic, ...]
    untested: tuple[Claim, ...]
    pictures: tuple[Picture, ...]


def alone(findings: Findings) -> Alone | None:
    """Summarise a run that has only diffusion models or only causal models; None if it has both kinds.

    Args:
        findings (Findings): The findings of the run.
    """
    parts = (findings, *findings.extra_runs)
    kinds = {kind for part in parts for kind in (MDM, ARM) if getattr(part, kind)}
    if len(kinds) != 1:
        return None
    (kind,), (missing,) = kinds, {MDM, ARM} - kinds
    model = str(getattr(findings, kind))
    rules = {rule.number: rule for part in parts for study in part.studies for rule in study.rules}
    untested = tuple(c for c in findings.verdicts if _needs(c, rules.get(c.number), missing))
    topics = (_rests(findings, model), _moves(findings, model))
    return Alone(
        model,
        _KINDS[missing],
        tuple(topic for topic in topics if topic.sentences),
        untested,
        tuple(_pictures(findings, model)),
    )


def _needs(claim: Claim, rule: Rule | None, missing: str) -> bool:
    return claim.verdict == NOT_TESTABLE and rule is not None and missing in rule.models


def _rests(findings: Findings, model: str) -> Topic:
    """Return the topic of where a model's attention rests, by layer and by head."""
    numbers: list[Number] = []
    sentences: list[str] = []
    result = findings.result(SAME, model) if SAME in findings.measures else None
    for name, subject in (("first", "The first token"), ("top", "The strongest key of a layer")):
        share = overall(result, name, subject, "%")
        if share is None:
            continue
        control = overall(findings.controls(SAME, model), name, f"{subject}, control", "%")
        against = _against(share, control)
        sentences.append(
            f"{subject} receives {format_number(replace(share, null=None))} of attention{against}."
        )
        numbers += [share, *([control] if control else [])]
    for key, cells in ((LAYERS, "layer"), (HEADS, "head")):
        strongest = findings.result(key, model) if key in findings.measures else None
        if strongest is None:
            continue
        if (real := _real(findings, key, model)) is not None:
            numbers.append(
                Number(f"{cells}s with a real anchor", float(real.sum()), unit=f"of {real.size}")
            )
        sentences.append(f"By {cells}, attention is most concentrated in {_strongest(strongest)}.")
    return Topic("Where attention rests", tuple(sentences), tuple(numbers))


def _moves(findings: Findings, model: str) -> Topic:
    """Return the topic of how a model's strongest key moves over steps and over layers."""
    numbers: list[Number] = []
    sentences: list[str] = []
    keys = {"drift": "step", "drift-layers": "layer"}
    if findings.kind(model) == "ARM":
        del keys["drift"]  # a cached row never changes
    for key, over in keys.items():
        result = findings.result(key, model) if key in findings.measures else None
        stay = overall(result, "stay", f"the strongest key stays, {over} to {over}", "%")
        if result is None or stay is None:
            continue
        chance = "" if stay.null is None else f" (by chance in {format_value(stay.null, '%')})"
        sentences.append(
            f"From one {over} to the next the strongest key stays the same in "
            f"{format_number(replace(stay, null=None))} of cases{chance}."
        )
        numbers.append(stay)
        if over == "step" and "layer" in result.data["stay"].dims:
            stays = result.data["stay"].values
            least = ", ".join(
                f"{result.data['layer'].values[i]} ({format_value(float(stays[i]), '%')})"
                for i in np.argsort(stays)[:_MOST]
            )
            sentences.append(f"It stays least in layers {least}.")
    return Topic("How it moves", tuple(sentences), tuple(numbers))


def _against(share: Number, control: Number | None) -> str:
    """Return a clause that compares a share with chance and with its control; "" if both are missing."""
    parts = []
    if share.null:
        parts.append(
            f"{format_value(share.value / share.null, '×')} what uniform attention would give"
        )
    if control:
        higher = share.low is not None and control.high is not None and share.low > control.high
        comparison = "more than" if higher else "not clearly more than"
        parts.append(
            f"{comparison} in the sharpness-matched control ({format_number(replace(control, null=None))})"
        )
    return f": {', and '.join(parts)}" if parts else ""


def _strongest(result: Result) -> str:
    """Return the three layers, or heads, whose strongest key has the largest share, as text."""
    share = result.data["share"]
    order = np.argsort(-share.values, axis=None)[:_MOST]
    names = []
    for i in order:
        place = np.unravel_index(i, share.shape)
        where = zip(share.dims, place, strict=True)
        name = " ".join(f"{dim} {int(share[dim].values[j])}" for dim, j in where)
        names.append(f"{name} ({format_value(float(share.values[place]), '%')})")
    return ", ".join(names)


def _real(findings: Findings, key: str, model: str) -> np.ndarray | None:
    """Return whether each layer, or head, has a real anchor; None if there are too few controls."""
    strongest, controls = findings.result(key, model), findings.controls(key, model)
    if strongest is None or len(controls) < LEAST:
        return None
    _, places = align_prompts(strongest, *controls)
    share, *untrained = (
        network.examples["share"].transpose("example", "layer", ...).values[indices]
        for network, indices in zip((strongest, *controls), places, strict=True)
    )
    return real_layers(share, np.stack(untrained))


def _pictures(findings: Findings, model: str) -> Iterator[Picture]:
    by_layer, by_head = (
        findings.result(key, model) if key in findings.measures else None for key in (SAME, HEADS)
    )
    if by_layer is None or by_head is None:
        return
    control = findings.control(SAME, model)
    untrained = findings.control(HEADS, model)
    note = "; light crosses: sharpness-matched control" if control else ""

    def draw() -> Figure:
        share = by_head.data["share"]
        labels = {"top": "strongest key", "first": "position 0"}
        drawn: list[Panel] = [
            ("share of attention (dotted: chance)", labels, POSITIVE),
            partial(grid, values=share, label="share on the strongest key", vmin=0),
        ]
        if untrained is not None:
            ratio = share / untrained.data["share"]
            span = max(2.0, float(np.exp(np.nanmax(np.abs(np.log(ratio))))))
            drawn.append(partial(grid, values=ratio, label="share / the control's (×)", span=span))
        return lines(replace(by_layer, control=control), *drawn, note=note, width=2.9)

    alt = (
        f"{model}: by layer, the share of attention on the strongest key and on position 0 with chance and "
        "control; by layer and head, the share on the head's strongest key, and the same over the control's."
    )
    yield Picture("alone", "By layer and by head, against chance and the control", alt, draw)
