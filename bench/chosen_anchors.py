"""Samples in which anchors are chosen before they are measured, for `coverage.py`: claim 5's interval.

Heads of a few layers attend to kinds of token. How strongly varies from example to example, so that a
sample may choose another kind than all examples would; kinds that get more attention in an example have
a higher score there.
"""

from collections.abc import Callable

import numpy as np
import xarray as xr

from floatscope.measures.library.kinds import CHOOSERS, advantage
from floatscope.stats.thirds import thirds
from floatscope.studies.library.geometry import norm_shares

LAYERS, HEADS = 6, 4
PRESENT = np.array([1.0, 1.0, 1.0, 1.0, 0.9, 0.6])  # how often an example has a token of a kind
TRUTH = 20_000  # groups of examples that say what is true
SPREAD = 0.4  # of ln(lift) over examples
DIMS = ("example", "layer", "head", "kind")
Draw = Callable[[np.random.Generator, int, int], tuple[np.ndarray]]


def population(apart: float, seed: int = 0) -> tuple[float, Draw]:
    """The true θ of a population, and samples from it.

    Args:
        apart: standard deviation of ln(lift) over kinds; the smaller, the more often a sample chooses
            another anchor.
        seed: of the population.
    """
    rng = np.random.default_rng(seed)
    shape = (LAYERS, HEADS, len(PRESENT))
    strength = rng.normal(0, apart, shape)
    angle, norm = rng.uniform(0.6, 1.0, shape), rng.uniform(0.1, 0.5, shape)

    def lifts(g: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        there = np.where(g.random((n, 1, 1, len(PRESENT))) < PRESENT, 1.0, np.nan)
        shared = g.normal(size=(n, 1, 1, len(PRESENT)))
        z = np.sqrt(0.5) * shared + np.sqrt(0.5) * g.normal(size=(n, *shape))
        return there * np.exp(strength + SPREAD * z), there, z

    def values(g: np.random.Generator, n: int) -> dict[str, np.ndarray]:
        lift, there, z = lifts(g, n)
        noise = 0.1 * g.normal(size=(2, *z.shape))
        return {
            "lift": lift,
            "angle": there * (angle + 0.1 * z + noise[0]),
            "norm": there * (norm + 0.1 * z + noise[1]),
        }

    # How often ten examples choose each kind, and what it wins on others.
    lift = np.nan_to_num(lifts(rng, CHOOSERS * TRUTH)[0])
    best = lift.reshape(TRUTH, CHOOSERS, *shape).sum(1).argmax(-1)
    often = (best[..., None] == np.arange(len(PRESENT))).mean(0)
    wins = [(often * PRESENT * part).sum(-1) for part in (angle, norm)]
    first, last = (wins[1][at].sum() / (wins[0] + wins[1])[at].sum() for at in _thirds())

    def one(g: np.random.Generator, n: int) -> np.ndarray:
        examples = xr.Dataset({name: (DIMS, of) for name, of in values(g, n).items()})
        theta, _, _ = norm_shares(*advantage(examples, [str(i) for i in range(n)]))
        return np.full(n, np.nan) if theta is None or theta.sample is None else theta.sample.values

    def draw(g: np.random.Generator, n: int, trials: int) -> tuple[np.ndarray]:
        return (np.stack([one(g, n) for _ in range(trials)], axis=1),)

    return float(first - last), draw


def _thirds() -> list[slice]:
    return list(thirds(LAYERS).values())
