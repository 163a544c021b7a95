"""Study in which layer and at which step a model knows the token that will be revealed."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import ClassVar

import numpy as np
import xarray as xr

from ...measures import Foresight, LogitLens
from ...measures.base import Measure
from ...measures.result import Result
from ...stats.intervals import DIFFERENCES, SHARES
from ..claim import Claim, Number, format_number
from ..draw import Picture
from ..evidence import Evidence
from ..numbers import average_networks, number, overall, subtract_controls
from ..request import Request
from ..study import Shows, Study
from ..verdict import CAUSAL, MDM, Rule, judge, other_deltas, vary

FORESIGHT, LENS = "foresight", "logit-lens"

KNOWS = Rule(
    "13",
    "A diffusion model knows a token before it reveals it",
    "how often the arg-max of a masked position, at the steps before its reveal, is the content token "
    "revealed there in the end, beyond how often it is another prompt's at that place, MDM − untrained "
    "networks",
    delta=0.2,
    unit="points",
    holds="In this diffusion model tokens are settled at masked positions well before they are revealed.",
    refuted="What this diffusion model reveals at a position was not settled there before the step.",
    family=CAUSAL,
    models=(MDM,),
)


class Lens(Study):
    """The study `lens`: whether a diffusion model knows a token before the token is revealed (claim 13)."""

    name = "lens"
    question = "When does a layer, and when does a step, know the token that will be revealed?"
    rules = (KNOWS,)
    by_name = True
    method = """\
lens: each layer's output at masked positions, read with the final norm and head (LogitLens)
known = share of masked content positions and steps before the reveal whose arg-max is the token that is
        revealed there in the end; content: no end tokens, which fill an answer up
θ     = known, in the last layer, decoding by decoding − its null − the same of untrained networks
null: the tokens that other prompts' answers have at the same place, where those are content. A model that
        says the same whatever the prompt is at its null
control: the same with permuted weights, which decode by themselves: what counts is how often a network knows
        the token that it reveals itself. They keep to what they say, and the prompt decides that in part.
        Several networks, whose variance is in the interval: one network differs from another
other choices: a null of the tokens at other places of the same answer, at which one word everywhere is,
        whatever decides it (answers of two content tokens or more)
commitment layer and step: from where on the final token is the arg-max and stays it (LogitLens)
not testable: no diffusion model, fewer than two controls, or fewer than two decodings with content that
        waits for a step or more"""

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

    def controlled(self, request: Request) -> tuple[str, ...]:
        return (FORESIGHT,)  # controls decode by themselves

    def claims(self, evidence: Evidence) -> list[Claim]:
        result = evidence.result(FORESIGHT, evidence.mdm)
        controls = evidence.controls(FORESIGHT, evidence.mdm)
        by_prompt = _values(result)
        bar = ""
        if evidence.mdm is None:
            bar = "There is no diffusion model in this run: add one with --model."
        elif len(by_prompt) < 2:
            bar = (
                f"Only {len(by_prompt)} decodings have a content token that waits for its reveal: "
                "decode longer answers, in more steps (--length, --steps)."
            )
        elif len(controls) < 2:
            bar = "There are fewer than two untrained controls in this run: give --controls 5."

        def beyond(
            label: str, values_of: Callable[[Result | None], dict[str, float]]
        ) -> Number | None:
            networks = [values_of(control) for control in controls]
            return subtract_controls(
                values_of(result),
                networks,
                label,
                "points",
                level=KNOWS.level,
                bounds=DIFFERENCES,
            )

        theta = beyond("MDM: known beyond other prompts' tokens, − untrained networks", _values)
        by_network = [
            [values.get(name, np.nan) for name in by_prompt] for values in map(_values, controls)
        ]
        untrained = average_networks(
            np.array(by_network), "untrained networks: the same difference", "points"
        )
        before_reveal = _estimate(result, "early", "MDM: known before the reveal")
        null = _estimate(result, "early_null", "MDM: another prompt's token")
        lens = evidence.result(LENS, evidence.mdm)
        lead = overall(lens, "lead", "MDM: steps committed before the reveal", "steps")
        deep = overall(lens, "commit_layer", "MDM: commitment layer, at the reveal")
        variants = [*other_deltas(KNOWS, theta, bar=bar)]
        for label, values in (
            ("two thirds of the way up the layers", partial(_values, depth=2 / 3)),
            ("half of the way up", partial(_values, depth=1 / 2)),
            ("beyond tokens of other places of the same answer", _elsewhere),
        ):
            variants.append(vary(label, KNOWS, beyond(label, values), bar=bar))
        sentence = ""
        if before_reveal and null:
            sentence = (
                f"Before its reveal, a content token is already the arg-max at its position at "
                f"{format_number(before_reveal)} of the steps; another prompt's token is at "
                f"{format_number(null)}."
            )
        return [
            judge(
                KNOWS,
                self.name,
                theta,
                bar=bar,
                sentence=sentence,
                numbers=(before_reveal, null, untrained, lead, deep),
                variants=tuple(variants),
            )
        ]

    def figures(self, evidence: Evidence) -> list[Picture]:
        """Return the figures of the study, without figures of foresight for causal models.

        A causal model predicts each position only once, and has no foresight to draw.
        """
        causal = {name for name in evidence.models if evidence.kind(name) == "ARM"}
        return [
            picture
            for picture in super().figures(evidence)
            if not any(
                picture.title.endswith(f": {name}") and picture.name.startswith(FORESIGHT)
                for name in causal
            )
        ]

    def findings(self, evidence: Evidence) -> Iterator[str]:
        for model, result in evidence.results(LENS).items():
            layer, step, lead = (
                overall(result, name, "", unit)
                for name, unit in (("commit_layer", ""), ("commit_step", ""), ("lead", "steps"))
            )
            if layer is None:
                continue
            line = (
                f"{model}: a revealed token is the arg-max from layer {format_number(layer)} on, "
                "at its step"
            )
            if step and lead:
                line += (
                    f"; in the last layer from step {format_number(step)} on, "
                    f"{format_number(lead)} before its reveal"
                )
            yield f"{line}."


def _values(result: Result | None, depth: float = 1.0) -> dict[str, float]:
    """Return, by prompt, how often the token is known − its null, in the layer at `depth`.

    `depth` is a share of the model's depth; by default 1, the last layer. Return {} without a result.
    """
    if result is None:
        return {}
    examples = result.examples
    if depth == 1.0:
        return _by_prompt(examples["early"] - examples["early_null"])
    layer = round(depth * (examples.sizes["layer"] - 1))
    return _by_prompt((examples["known"] - examples["known_null"]).isel(layer=layer))


def _elsewhere(result: Result | None) -> dict[str, float]:
    """Return, by prompt, how often the token is known − how often the token of another place is.

    The other places are in the same answer. Return {} without a result.
    """
    if result is None:
        return {}
    return _by_prompt(result.examples["elsewhere"] - result.examples["elsewhere_null"])


def _by_prompt(values: xr.DataArray) -> dict[str, float]:
    """Return an array's values by prompt id, without NaN."""
    pairs = zip(map(str, values["example"].values), map(float, values.values), strict=True)
    return {name: value for name, value in pairs if not np.isnan(value)}


def _estimate(result: Result | None, name: str, label: str) -> Number | None:
    if result is None:
        return None
    return number(
        np.array([*_by_prompt(result.examples[name]).values()]), label, "%", bounds=SHARES
    )
