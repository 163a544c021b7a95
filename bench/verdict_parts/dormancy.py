"""Claims 10a and 10b, planted: heads that switch between domains, and anchors with small values."""

from __future__ import annotations

import numpy as np
import xarray as xr

from floatscope.measures import Dormancy, ExtremeTokens
from floatscope.studies.claim import Claim
from floatscope.studies.library import STUDIES
from verdict_parts.evidence import ARM, MDM, Planted

LAYERS, HEADS = 12, 8  # the pair's
CROSSING = 0.15  # share of heads, where the claim is true
DRAINED = 0.33  # 2.4 against 7.6 in LLaDA
SPREAD = 0.05  # over examples; the pair's heads have 0.01 to 0.1


def switching(true: bool, rng: np.random.Generator, n: int) -> Claim:
    """n examples of each domain. True: 15 % of heads rest in one alone; false: none, but most differ."""
    evidence = Planted("dormancy")
    for model in (MDM, ARM):
        questions, prose = _means(true, rng)
        for domain, mean in (("questions", questions), ("prose", prose)):
            result = Dormancy().summarise(_examples(mean, rng, n), model)
            evidence.planted["dormancy", model, domain] = result
    return STUDIES["dormancy"].claims(evidence)[0]


def draining(true: bool | str, rng: np.random.Generator, n: int) -> Claim:
    """True: an anchor's value has a third of the others' norm, as published. False: nine tenths or more.
    "equal": the claim's third, which untrained weights earn too."""
    evidence = Planted("dormancy")
    drain = {True: DRAINED, False: 1.0, "equal": DRAINED}[true]
    noise = DRAINED if true == "equal" else 1.0
    for model, middle in ((MDM, drain), (ARM, DRAINED)):
        for network in (None, *evidence.request.control_seeds):
            examples = _ratios(middle if network is None else noise, rng, n)
            name = model if network is None else f"untrained {model} {network}"
            result = ExtremeTokens().summarise(examples, name)
            evidence.planted["extreme-tokens-same", name, "questions"] = result
    return STUDIES["dormancy"].claims(evidence)[1]


def _ratios(middle: float, rng: np.random.Generator, n: int) -> list[xr.Dataset]:
    """Layers have means of their own; examples rise and fall together over layers."""
    by_layer = rng.normal(0, 0.3, LAYERS)
    by_example = rng.normal(0, 0.1, (n, 1)) + rng.normal(0, 0.05, (n, LAYERS))
    logs = by_layer - by_layer.mean() + by_example
    one = np.ones(LAYERS)
    return [
        xr.Dataset(
            {
                "drain": ("layer", middle * np.exp(each)),
                "drain_null": ("layer", one),
                "peak": ("layer", np.exp(-each) / middle),
                "peak_null": ("layer", one),
            }
        )
        for each in logs
    ]


def _means(true: bool, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    heads = LAYERS * HEADS
    rests = rng.uniform(size=heads) < 0.4
    low, high = rng.uniform(0.03, 0.2, (2, heads)), rng.uniform(0.4, 0.7, (2, heads))
    one, two = np.where(rests, high, low)  # another mean in each domain, on the same side
    if true:
        crossing = rng.permutation(heads)[: round(CROSSING * heads)]
        two[crossing] = np.where(rests, low[1], high[1])[crossing]
        one[crossing] = np.where(rests, high[0], low[0])[crossing]
    return one, two


def _examples(mean: np.ndarray, rng: np.random.Generator, n: int) -> list[xr.Dataset]:
    """Heads of one example rise and fall together; masses are skewed as shares are."""
    z = np.sqrt(0.3) * rng.normal(size=(n, 1)) + np.sqrt(0.7) * rng.normal(size=(n, len(mean)))
    wide = np.sqrt(np.log1p((SPREAD / mean) ** 2))
    mass = (mean * np.exp(wide * z - wide**2 / 2)).clip(0, 1).reshape(n, LAYERS, HEADS)
    dims = ("layer", "head")
    return [
        xr.Dataset({"mass": (dims, one), "mass_null": (dims, np.full(one.shape, 0.01))})
        for one in mass
    ]
