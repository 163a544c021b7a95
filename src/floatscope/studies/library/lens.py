"""Lens: when does a layer, and when does a step, know the token that will be revealed?"""

from dataclasses import replace
from typing import ClassVar

import numpy as np

from ...measures import Foresight, LogitLens
from ...measures.base import Measure
from ...measures.result import Result
from ...stats.intervals import SHARES
from ..anchored import by_prompt, names_of
from ..claim import Claim, Number, said
from ..draw import Picture
from ..evidence import Evidence
from ..numbers import number, overall
from ..request import Request
from ..study import Shows, Study
from ..verdict import CAUSAL, Rule, judge, other_deltas, vary

FORESIGHT, LENS = "foresight", "logit-lens"

KNOWS = Rule(
    13,
    "A diffusion model knows a token before it reveals it",
    "how often the arg-max of a masked position, at the steps before its reveal, is the content token "
    "revealed there in the end, beyond how often it is another prompt's at that place, MDM",
    delta=0.2,
    unit="points",
    untrained=True,
    holds="Tokens are settled at masked positions well before they are revealed.",
    refuted="What is revealed at a position was not there before: it comes with the step.",
    family=CAUSAL,
)


class Lens(Study):
    name = "lens"
    question = "When does a layer, and when does a step, know the token that will be revealed?"
    rules = (KNOWS,)
    by_name = True
    method = """\
lens: each layer's output at masked positions, read with the final norm and head (LogitLens)
known = share of masked content positions and steps before the reveal whose arg-max is the token that is
        revealed there in the end; content: no end tokens, which fill an answer up
θ     = known, in the last layer, decoding by decoding − its null
null: the tokens that other prompts' answers have at the same place, where those are content. A model that
        says the same whatever the prompt is at its null
control: the same with permuted weights (of several the one that earns most), which keep to what they
        say, and the prompt decides that in part
other choices: a null of the tokens at other places of the same answer, at which one word everywhere is,
        whatever decides it (answers of two content tokens or more)
commitment layer and step: from where on the final token is the arg-max and stays it (LogitLens)
not testable: no diffusion model, or fewer than two decodings with content that waits for a step or more"""

    shows: ClassVar[Shows] = {
        FORESIGHT: (
            "Known before it is revealed",
            "Share of masked content positions whose arg-max is already the token revealed there later: by "
            "layer, and by how many steps the reveal is away, with the null of other prompts' tokens.",
        ),
        LENS: (
            "Logit lens",
            "By layer: how often the arg-max is the final token, how often it is committed at the reveal, "
            "and the entropy of the lens's distribution.",
        ),
    }

    def measures(self, request: Request) -> dict[str, Measure]:
        return {FORESIGHT: Foresight(), LENS: LogitLens()}

    def claims(self, evidence: Evidence) -> list[Claim]:
        result, control = evidence.result(FORESIGHT, evidence.mdm), _control(evidence)
        bar = (
            "" if evidence.mdm else "There is no diffusion model in this run: add one with --model."
        )
        each = _beyond(result)
        waiting = 0 if each is None else int((~np.isnan(each)).sum())
        if not bar and waiting < 2:
            bar = (
                f"In {waiting} decodings a content token waits for its reveal: decode longer answers, in "
                "more steps (--length, --steps)."
            )
        level = KNOWS.level
        theta = _number(each, "MDM: known beyond other prompts' tokens", level)
        untrained = _number(_beyond(control), "untrained MDM", level)
        known = _of(result, "early", "MDM: known before the reveal")
        null = _of(result, "early_null", "MDM: another prompt's token")
        lens = evidence.result(LENS, evidence.mdm)
        lead = overall(lens, "lead", "MDM: steps committed before the reveal", "steps")
        deep = overall(lens, "commit_layer", "MDM: commitment layer, at the reveal")
        variants = [*other_deltas(KNOWS, theta, untrained, bar)]
        for label, layer in (
            ("two thirds of the way up the layers", 2 / 3),
            ("half of the way up", 1 / 2),
        ):
            here, there = (_number(_beyond(one, layer), label, level) for one in (result, control))
            variants.append(vary(label, KNOWS, here, there, bar=bar))
        label = "beyond tokens of the same answer's other places"
        here, there = (_number(_elsewhere(one), label, level) for one in (result, control))
        variants.append(vary(label, KNOWS, here, there, bar=bar))
        sentence = ""
        if known and null:
            sentence = (
                f"While it waits for its reveal, a content token is the arg-max at its place at "
                f"{said(known)} of the steps; another prompt's token at {said(null)}."
            )
        return [
            judge(
                KNOWS,
                self.name,
                theta,
                control=untrained,
                bar=bar,
                sentence=sentence,
                numbers=(known, null, lead, deep),
                variants=tuple(variants),
            )
        ]

    def figures(self, evidence: Evidence) -> list[Picture]:
        """Foresight of diffusion models alone: a causal one predicts a position once."""
        causal = {name for name in evidence.models if evidence.kind(name) == "ARM"}
        return [
            picture
            for picture in super().figures(evidence)
            if not any(
                picture.title.endswith(f": {name}") and picture.name.startswith(FORESIGHT)
                for name in causal
            )
        ]

    def findings(self, evidence: Evidence) -> list[str]:
        lines = []
        for model, result in evidence.results(LENS).items():
            layer, step, lead = (
                overall(result, name, "", unit)
                for name, unit in (("commit_layer", ""), ("commit_step", ""), ("lead", "steps"))
            )
            if layer is None:
                continue
            line = (
                f"{model}: a revealed token is the arg-max from layer {said(layer)} on, at its step"
            )
            if step and lead:
                line += (
                    f"; in the last layer from step {said(step)} on, {said(lead)} before its reveal"
                )
            lines.append(f"{line}.")
        return lines


def _control(evidence: Evidence) -> Result | None:
    """Of several untrained networks the one that earns most: a mean would hide how they differ."""
    seeds = evidence.request.control_seeds
    if len(seeds) < 2:
        return evidence.control(FORESIGHT, evidence.mdm)
    every = (evidence.result(FORESIGHT, evidence.mdm, control=seed) for seed in seeds)
    found = [(float(each.mean()), one) for one in every if (each := _beyond(one)) is not None]
    return max(found, key=lambda pair: pair[0])[1] if found else None


def _beyond(result: Result | None, depth: float = 1.0) -> np.ndarray | None:
    """One value per prompt: known − null, in the last layer or at this share of the depth."""
    if result is None:
        return None
    examples = result.examples
    if depth == 1.0:
        each = examples["early"] - examples["early_null"]
    else:
        at = round(depth * (examples.sizes["layer"] - 1))
        each = (examples["known"] - examples["known_null"]).isel(layer=at)
    values = np.asarray(each.values, float)
    return None if np.isnan(values).all() else _by_prompt(values, result)


def _elsewhere(result: Result | None) -> np.ndarray | None:
    """One value per prompt: known − how often a token of another place of its answer is the arg-max."""
    if result is None:
        return None
    examples = result.examples
    values = np.asarray((examples["elsewhere"] - examples["elsewhere_null"]).values, float)
    return None if np.isnan(values).all() else _by_prompt(values, result)


def _by_prompt(values: np.ndarray, result: Result) -> np.ndarray:
    there = ~np.isnan(values)
    names = [name for name, is_there in zip(names_of(result), there, strict=True) if is_there]
    return by_prompt(values[there], names)


def _number(each: np.ndarray | None, label: str, level: float) -> Number | None:
    if each is None:
        return None
    # As a share of the way from −1 to 1: where all but a few stand at an end, their spread tells little.
    found = number((1 + each) / 2, label, "points", level=level, null=0.5, bounds=SHARES)
    if found is None or found.low is None or found.high is None:
        return found
    value, low, high = (2 * x - 1 for x in (found.value, found.low, found.high))
    return replace(found, value=value, low=low, high=high, null=0.0)


def _of(result: Result | None, name: str, label: str) -> Number | None:
    if result is None:
        return None
    values = np.asarray(result.examples[name].values, float)
    return (
        None
        if np.isnan(values).all()
        else number(_by_prompt(values, result), label, "%", bounds=SHARES)
    )
