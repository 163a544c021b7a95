"""Evidence built so that a claim about attention is true, and so that it is false.

Traces are made from attention that is known (`planted`), measured like any other, and handed to the
study. A pool of examples is made once; a draw takes some of them, as a run takes some prompts.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
import xarray as xr
from planted import softmax, trace_of  # type: ignore[import-not-found]

from floatscope.measures.base import Measure
from floatscope.measures.result import Result
from floatscope.studies import STUDIES, Request, request_of
from floatscope.studies.claim import Claim
from floatscope.studies.evidence import Evidence
from floatscope.trace import Trace

Rng = np.random.Generator
Examples = dict[tuple[str, str, int | None], Result]  # by measure, model and the control's seed
Made = dict[tuple[str, str, int | None], tuple[Measure, list[xr.Dataset]]]

LAYERS, HEADS, SIZE = 12, 1, 48  # as many layers as the pair has
MORE = 8  # heads, as many as the pair has, where a claim sums over them
OF = {
    "1": "floating",
    "2": "floating",
    "4": "floating",
    "5": "geometry",
    "6a": "structure",
    "6b": "structure",
}
KEYS = {
    "1": ("absorption-same", "strongest-same"),
    "2": ("strongest-same",),
    "4": ("strongest-same",),
    "5": ("kinds-same",),
    "6a": ("structure-same",),
    "6b": ("structure-same",),
}
TRUE, FALSE, EQUAL = "true", "false", "equal"  # equal: both models alike, which is no effect either
NOISE = "untrained"  # both models as untrained as their controls
STRUCTURE = np.arange(SIZE) % 4 == 2  # every fourth token is a newline


def attention(
    rng: Rng,
    boost: Any,
    *,
    causal: bool = False,
    steps: int = 1,
    size: int = SIZE,
    heads: int = HEADS,
) -> np.ndarray:
    """(step, layer, head, query, key): noise, and what `boost` (…, key) adds to the scores."""
    score = rng.normal(0, 0.5, (steps, LAYERS, heads, size, size)) + boost
    if causal:
        score = np.where(np.tril(np.ones((size, size), bool)), score, -np.inf)
    return softmax(score)


def at(rng: Rng, keys: np.ndarray, size: int = SIZE) -> np.ndarray:
    """A boost (step, layer, 1, 1, key) at one key of every step and layer; of varying strength."""
    keys = np.atleast_2d(keys)
    boost = np.zeros((*keys.shape, size))
    np.put_along_axis(boost, keys[..., None], rng.uniform(2.5, 4.0), -1)
    return boost[:, :, None, None]


def one(number: str, truth: str, model: str, rng: Rng) -> Trace:
    """A trace of one example: `model` is "mdm", "arm", or either of them "untrained"."""
    trained, causal = "untrained" not in model and truth != NOISE, "arm" in model
    places = np.zeros(LAYERS, int)  # where anchors stand, layer by layer
    if number == "1" and (truth != TRUE or not causal):
        places = rng.integers(4, SIZE - 8, LAYERS)
    elif number == "2" and ((truth == TRUE and not causal) or (truth == FALSE and causal)):
        places[:] = rng.integers(1, SIZE - 8)
    elif number == "4" and ((truth == TRUE and not causal) or (truth == FALSE and causal)):
        new = rng.random(LAYERS) < 0.7  # else a layer keeps the anchor of the one before
        fresh = rng.permutation(np.arange(1, SIZE - 8))[:LAYERS]
        places = fresh[np.maximum.accumulate(np.where(new, np.arange(LAYERS), 0))]
    astray = rng.random(LAYERS) < 0.08  # now and then an anchor stands elsewhere, in every model
    places = np.where(astray, rng.integers(1, SIZE - 8, LAYERS), places)
    boost = at(rng, places) if trained else 0.0
    extra, classes = {}, None
    if number in ("5", "6a", "6b"):
        classes = np.where(STRUCTURE, "whitespace", "content")[None]
        depth = np.linspace(1, -1, LAYERS)[:, None, None, None]
        if number != "5" and trained:
            turn = _turn(number, truth, causal) + rng.normal(0, 0.04)  # as prompts of the pair
            boost = turn * depth * STRUCTURE
        if number == "5":
            boost = 1.5 * STRUCTURE if trained else 0.0
            extra = _geometry(rng, truth, trained)
    tokens = np.where(STRUCTURE, "\n", "word").tolist()
    made = attention(rng, boost, causal=causal, heads=MORE if number == "5" else HEADS)
    return trace_of(made, causal=causal, classes=classes, tokens=tokens, extra=extra)


def _turn(number: str, truth: str, causal: bool) -> float:
    """How much the scores of structure fall over depth. Claim 6b is false where both models turn alike."""
    turns = truth == TRUE and not causal
    return 0.6 if turns or (number == "6b" and truth == FALSE) else 0.0


def _geometry(rng: Rng, truth: str, trained: bool) -> dict[str, np.ndarray]:
    """Anchors (newlines) win by angle everywhere; by norm in the first layers, or in all of them."""
    shape = (1, LAYERS, MORE, SIZE)
    cosine, norm = (0.2 + rng.normal(0, 0.02, shape), 1 + rng.normal(0, 0.05, shape))
    if trained:
        cosine[..., STRUCTURE] += 0.3
        norm[:, : LAYERS // 3 if truth == TRUE else LAYERS, :, STRUCTURE] += 0.8
    return {"cosine": cosine, "key_norm": norm, "query_norm": np.full(shape, 4.0), "score": cosine}


class Planted(Evidence):
    """Evidence from examples that are known; what no claim here needs is not there."""

    mdm, arm = "mdm", "arm"
    models: ClassVar = {"mdm": {}, "arm": {}}

    def __init__(self, examples: Examples, request: Request) -> None:
        self._examples, self.request = examples, request

    def result(
        self, key: str, model: str | None, domain: str = "questions", control: int | None = None
    ) -> Result | None:
        return self._examples.get((key, model or "", control))

    def control(self, key: str, model: str | None) -> Result | None:
        found = (self.result(key, model, control=seed) for seed in self.request.control_seeds)
        every = [one for one in found if one is not None]
        if not every:
            return None
        together = xr.concat([one.examples for one in every], "example")
        return replace(every[0], examples=together)

    def accuracy_difference(self, *args: Any, **kwargs: Any) -> None:
        return None


@cache
def pool(number: str, truth: str, size: int = 48, seed: int = 0) -> tuple[Request, Made]:
    """Measured examples: (key, model, control's seed) → the measure, and one dataset each."""
    rng = np.random.default_rng([seed, *number.encode(), len(truth)])
    request = request_of({"studies": [OF[number]], "models": ["a"]})
    measures = STUDIES[OF[number]].measures(request)
    made: Made = {}
    for model in ("mdm",) if number == "5" else ("mdm", "arm"):
        for network in (None, *request.control_seeds):
            kind = model if network is None else f"untrained {model}"
            traces = [one(number, truth, kind, rng) for _ in range(size)]
            for key in KEYS[number]:
                made[key, model, network] = (
                    measures[key],
                    [measures[key].example(t) for t in traces],
                )
    return request, made


def draw(number: str, truth: str, rng: Rng, n: int = 16, size: int = 48) -> Claim:
    """The claim of n examples, as many prompts for every model."""
    request, made = pool(number, truth, size)
    chosen = rng.choice(size, n, replace=False)
    examples = chosen_of(made, chosen)
    study = STUDIES[OF[number]]
    claims = study.claims(Planted(examples, request))
    return next(claim for claim in claims if claim.number == number)


def chosen_of(made: Made, chosen: np.ndarray) -> Examples:
    """The results of some examples of a pool, as a run of these prompts would give them."""
    examples: Examples = {}
    for place, (measure, each) in made.items():
        result = measure.summarise([each[i] for i in chosen], place[1])
        named = result.examples.assign_coords(example=[f"prompt {i}" for i in chosen])
        examples[place] = Result(result.data, measure, named, place[1], result.values)
    return examples


def attention_claim(number: str) -> Callable[[bool, Rng, int], Claim]:
    """Draws of one claim: (truth, generator, examples) → the claim."""

    def plant(true: bool, rng: Rng, n: int) -> Claim:
        return draw(number, TRUE if true else FALSE, rng, n, size=160)

    return plant
