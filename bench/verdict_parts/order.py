"""Claim 9, planted: answers that are filled from their ends, or from left to right."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from floatscope.measures import DecodingOrder
from floatscope.studies.claim import Claim
from floatscope.studies.library import STUDIES
from verdict_parts.evidence import MDM, Planted

LENGTH, STEPS, END = 10, 5, 1  # the demo's length and steps
LONG = 96  # positions of a long answer, of which half or more are content
NOISE = 0.12  # of places, as shares of the way from first to last
SAMPLERS = ("confidence", "entropy", "margin", "position-calibrated")


def order(true: bool, rng: np.random.Generator, n: int) -> Claim:
    return STUDIES["decoding"].claims(evidence_of(true, rng, n))[0]


def evidence_of(true: bool, rng: np.random.Generator, n: int, *, long: bool = False) -> Planted:
    """n answers. True: the nearer to an end, the earlier; false: the further left, the earlier."""
    evidence = Planted("decoding")
    make = _long if long else _decoding
    decodings = [make(true, rng) for _ in range(n)]
    measure = DecodingOrder(frequencies=evidence.request.frequencies)
    found = measure.of_decodings(decodings, MDM, (END,))
    for sampler in SAMPLERS:
        name = f"sampler-{sampler}"
        evidence._orders[name, MDM] = found
        right = rng.uniform(size=n) < (0.9 if sampler == "position-calibrated" and true else 0.5)
        evidence._answers[name, MDM] = {"id": np.arange(n).astype(str), "contains": right * 1.0}
    return evidence


def _long(true: bool, rng: np.random.Generator) -> SimpleNamespace:
    """A long text as planted, after all end tokens behind it: the canvas is filled from its end then."""
    content = int(rng.integers(LONG // 2, LONG * 2 // 3))
    place = np.arange(content)
    late = np.minimum(place, content - 1 - place) if true else place
    score = late / late.max() + rng.normal(0, NOISE, content)
    step = np.zeros(LONG, int)
    step[np.argsort(score)] = 1 + np.arange(content)
    final = np.where(np.arange(LONG) < content, rng.integers(100, 4000, LONG), END)
    steps = content + 1
    return SimpleNamespace(
        prompt=SimpleNamespace(ids=()),
        change=(step == np.arange(steps)[:, None]).astype(np.int8),
        block=np.zeros((steps, 1), int),
        canvas=final[None],
    )


def _decoding(true: bool, rng: np.random.Generator) -> SimpleNamespace:
    """Content tokens and an end that differ from answer to answer; two positions a step."""
    place = np.arange(LENGTH)
    late = np.minimum(place, LENGTH - 1 - place) if true else place
    score = late / late.max() + rng.normal(0, NOISE, LENGTH)
    step = np.empty(LENGTH, int)
    step[np.argsort(score)] = np.arange(LENGTH) * STEPS // LENGTH
    content = rng.integers(3, LENGTH + 1)
    final = np.where(place < content, rng.integers(100, 4000, LENGTH), END)
    return SimpleNamespace(
        prompt=SimpleNamespace(ids=()),
        change=(step == np.arange(STEPS)[:, None]).astype(np.int8),
        block=np.zeros((STEPS, 1), int),
        canvas=final[None],
    )
