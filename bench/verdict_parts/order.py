"""Claims 9a to 9c, planted: which places and tokens of an answer come first, and what calibration wins."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np

from floatscope.measures import DecodingOrder
from floatscope.stats.frequencies import read_frequencies
from floatscope.studies.claim import Claim
from floatscope.studies.library import STUDIES
from verdict_parts.evidence import MDM, Planted

LENGTH, STEPS, END = 10, 5, 1  # the demo's length and steps
LONG = 96  # positions of a long answer, of which half or more are content
NOISE = 0.12  # of places, as shares of the way from first to last
NOISY = 0.5  # of frequencies' ranks: the first quarter has some rare tokens
SAMPLERS = ("confidence", "position-calibrated")
TRUE, FALSE, EQUAL = (
    "true",
    "false",
    "equal",
)  # equal: a random order, and samplers that answer alike
CONFIDENT = 0.45  # right by confidence
RIGHT = {TRUE: 0.95, FALSE: 0.05, EQUAL: CONFIDENT}  # by calibration


def order_claim(number: str) -> Callable[[bool | str, np.random.Generator, int], Claim]:
    """Draws of one claim: (truth, generator, examples) → the claim."""

    def plant(truth: bool | str, rng: np.random.Generator, n: int) -> Claim:
        named = truth if isinstance(truth, str) else TRUE if truth else FALSE
        evidence = evidence_of(named, rng, n, long=number != "9c")
        claims = STUDIES["decoding"].claims(evidence)
        return next(claim for claim in claims if claim.number == number)

    return plant


def evidence_of(truth: str, rng: np.random.Generator, n: int, *, long: bool = False) -> Planted:
    """n answers. True: ends and frequent tokens first; false: from left to right, and rare tokens first."""
    evidence = Planted("decoding")
    make = _long if long else _decoding
    decodings = [make(truth, rng) for _ in range(n)]
    measure = DecodingOrder(frequencies=evidence.request.frequencies)
    found = measure.of_decodings(decodings, MDM, (END,))
    hard = rng.random(n)  # a question is as hard for both samplers, but for one in ten
    for sampler in SAMPLERS:
        name = f"sampler-{sampler}"
        evidence._orders[name, MDM] = found
        own = np.where(rng.random(n) < 0.1, rng.random(n), hard)
        right = own < (CONFIDENT if sampler == "confidence" else RIGHT[truth])
        evidence._answers[name, MDM] = {"id": np.arange(n).astype(str), "contains": right * 1.0}
    return evidence


def _long(truth: str, rng: np.random.Generator) -> SimpleNamespace:
    """A long text as planted, after all end tokens behind it: the canvas is filled from its end then."""
    content = int(rng.integers(LONG // 2, LONG * 2 // 3))
    when = np.argsort(_late(truth, content, rng))
    step = np.zeros(LONG, int)
    step[when] = 1 + np.arange(content)
    final = np.full(LONG, END)
    final[when] = _tokens(truth, content, rng)
    return _decoded(step, final, content + 1)


def _decoding(truth: str, rng: np.random.Generator) -> SimpleNamespace:
    """Content tokens and an end that differ from answer to answer; two positions a step."""
    step = np.empty(LENGTH, int)
    step[np.argsort(_late(truth, LENGTH, rng))] = np.arange(LENGTH) * STEPS // LENGTH
    content = rng.integers(3, LENGTH + 1)
    final = np.where(np.arange(LENGTH) < content, rng.integers(100, 4000, LENGTH), END)
    return _decoded(step, final, STEPS)


def _late(truth: str, size: int, rng: np.random.Generator) -> np.ndarray:
    """How late each place is revealed: the nearer to an end, the earlier; or the further left."""
    if truth == EQUAL:
        return rng.random(size)
    place = np.arange(size)
    late = np.minimum(place, size - 1 - place) if truth == TRUE else place
    return late / late.max() + rng.normal(0, NOISE, size)


def _tokens(truth: str, size: int, rng: np.random.Generator) -> np.ndarray:
    """Tokens in the order of their reveals: by falling frequency, by rising frequency, or in any order."""
    token = rng.integers(100, 4000, size)
    rank = np.argsort(np.argsort(read_frequencies("pair")[token])) / size
    sign = {TRUE: -1, FALSE: 1, EQUAL: 0}[truth]
    return token[np.argsort(sign * rank + rng.normal(0, NOISY, size))]


def _decoded(step: np.ndarray, final: np.ndarray, steps: int) -> SimpleNamespace:
    return SimpleNamespace(
        prompt=SimpleNamespace(ids=()),
        change=(step == np.arange(steps)[:, None]).astype(np.int8),
        block=np.zeros((steps, 1), int),
        canvas=final[None],
    )
