"""How often each interval holds the truth: samples from distributions that are known, many times.

    python bench/coverage.py                    # full size, half a minute; writes coverage.json
    python bench/coverage.py --trials 400       # a look, without writing

Asked for: at 95 %, at least 93 % with 20 and 40 examples and 90 % with 8; at 99.5 %, at least 99 %
with 20 and 40. An interval that is not there (NaN) decides nothing: it is counted apart, and what is
asked for is asked of the others. The percentile bootstrap that these intervals replaced is measured
beside them.
"""

import argparse
import json
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from floatscope.stats import intervals

SIZES = (8, 20, 40)
LEVELS = (0.95, 0.995)
TRIALS = 20_000
LEAST = {(0.95, 8): 0.90, (0.95, 20): 0.93, (0.95, 40): 0.93, (0.995, 20): 0.99, (0.995, 40): 0.99}
BINS = 10
Interval = tuple[np.ndarray, np.ndarray, np.ndarray]
Sample = tuple[np.ndarray, ...]  # (n, trials) each


@dataclass(frozen=True)
class Case:
    """`draw(rng, n, trials)` gives samples whose `truth` is known; `interval` is what is measured."""

    kind: str
    name: str
    truth: float
    draw: Callable[[np.random.Generator, int, int], Sample]
    interval: Callable[..., Interval]
    bootstrap: bool = True  # can the percentile bootstrap of a mean be measured beside it?


def cases() -> Iterator[Case]:
    yield from _means()
    yield from _shares()
    yield from _differences()
    yield from _ratios()
    yield from _entropies()
    yield from _clusters()


def _means() -> Iterator[Case]:
    mean = intervals.mean
    yield Case("mean", "normal", 0.0, lambda g, *size: (g.normal(size=size),), mean)
    half = np.exp(0.5)
    yield Case("mean", "lognormal, σ = 1", half, lambda g, *size: (g.lognormal(size=size),), mean)


def _shares() -> Iterator[Case]:
    def some(p: float) -> Callable[..., Sample]:
        return lambda g, *size: ((g.random(size) < p) * 1.0,)

    def bounded(values: np.ndarray, **options: Any) -> Interval:
        return intervals.mean(values, bounds=(0, 1), **options)

    for p in (0.5, 0.9, 0.95, 0.98):
        yield Case("share", f"{p:g}", p, some(p), bounded)

    def between(g: np.random.Generator, *size: int) -> Sample:
        return (np.where(g.random(size) < 0.9, 1.0, g.random(size)),)

    def layers(g: np.random.Generator, *size: int) -> Sample:
        return (g.binomial(8, g.beta(1.9, 0.1, size)) / 8,)

    yield Case("share", "1 in nine of ten, else anything from 0 to 1", 0.95, between, bounded)
    yield Case("share", "mean over 8 layers, 0.95", 0.95, layers, bounded)


def _differences() -> Iterator[Case]:
    def pairs(first: float, second: float) -> Callable[..., Sample]:
        def draw(g: np.random.Generator, *size: int) -> Sample:
            u = g.random(size)
            a, b = u < first, (u >= first) & (u < first + second)
            both = (u >= first + second) & (g.random(size) < 0.5)
            return (a | both) * 1.0, (b | both) * 1.0

        return draw

    for first, second in ((0.03, 0.0), (0.10, 0.0), (0.05, 0.05), (0.20, 0.10)):
        name = f"{100 * (first - second):.0f} points, {100 * (first + second):.0f} % discordant"
        draw = pairs(first, second)
        yield Case("paired shares", name, first - second, draw, intervals.difference)

    def gains(g: np.random.Generator, *size: int) -> Sample:
        a, b = ((g.random(size) < p) * 1.0 - (g.random(size) < 0.1) for p in (0.5, 0.3))
        return a, 1.5 * b

    yield Case("paired means", "gain − 1.5 × gain", 0.4 - 0.3, gains, intervals.difference)
    apart, half = intervals.independent, np.exp(0.5)
    both = "two samples"

    def normal(g: np.random.Generator, *size: int) -> Sample:
        return g.normal(1, 1, size), g.normal(0.5, 3, size)

    def skewed(g: np.random.Generator, *size: int) -> Sample:
        return g.lognormal(size=size), g.normal(0, 1, size)

    def rates(g: np.random.Generator, *size: int) -> Sample:
        return (g.random(size) < 0.95) * 1.0, (g.random(size) < 0.8) * 1.0

    def shares(a: np.ndarray, b: np.ndarray, **options: Any) -> Interval:
        return apart(a, b, bounds=(0, 1), **options)

    yield Case(both, "normal, σ = 1 and 3", 0.5, normal, apart, bootstrap=False)
    yield Case(both, "lognormal and normal", half, skewed, apart, bootstrap=False)
    yield Case(both, "shares of .95 and .8", 0.15, rates, shares, bootstrap=False)


def _ratios() -> Iterator[Case]:
    def lognormal(shared: float) -> Callable[..., Sample]:
        def draw(g: np.random.Generator, *size: int) -> Sample:
            z, own = g.normal(size=size) * shared, np.sqrt(1 - shared**2)
            return np.exp(z + own * g.normal(size=size)), np.exp(z + own * g.normal(size=size))

        return draw

    def near(g: np.random.Generator, *size: int) -> Sample:
        return g.normal(1.1, 0.2, size), g.normal(1, 0.2, size)

    def ratio(name: str, truth: float, draw: Callable[..., Sample]) -> Case:
        return Case("ratio", name, truth, draw, intervals.ratio, bootstrap=False)

    yield ratio("lognormals", 1.0, lognormal(0.0))
    yield ratio("lognormals, correlated", 1.0, lognormal(0.6))
    yield ratio("normal, 1.1 to 1", 1.1, near)


def _entropies() -> Iterator[Case]:
    rest = np.ones(BINS - 1) / (BINS - 1)
    spreads = {
        "uniform": np.full(BINS, 1 / BINS),
        "peaked": np.append(0.7, 0.3 * rest),
        "two bins of ten": np.append([0.5, 0.5], np.zeros(BINS - 2)),
        "always one": np.append(1.0, np.zeros(BINS - 1)),
    }

    def truth(p: np.ndarray) -> float:
        return float(-(p[p > 0] * np.log(p[p > 0])).sum() / np.log(BINS))

    def labels(g: np.random.Generator, p: np.ndarray, u: np.ndarray) -> np.ndarray:
        return np.searchsorted(np.cumsum(p)[:-1], u, side="right")

    def one(p: np.ndarray) -> Callable[..., Sample]:
        return lambda g, *size: (labels(g, p, g.random(size)),)

    def two(p: np.ndarray, q: np.ndarray) -> Callable[..., Sample]:
        def draw(g: np.random.Generator, *size: int) -> Sample:
            u = g.random(size)
            v = np.where(g.random(size) < 0.5, u, g.random(size))  # half of the examples agree
            return labels(g, p, u), labels(g, q, v)

        return draw

    def entropy(x: np.ndarray, **options: Any) -> Interval:
        return intervals.entropy(x, BINS, **options)

    def between(x: np.ndarray, y: np.ndarray, **options: Any) -> Interval:
        return intervals.entropy_difference(x, y, BINS, **options)

    for name, p in spreads.items():
        yield Case("entropy", name, truth(p), one(p), entropy, bootstrap=False)
    for a, b in (("uniform", "peaked"), ("peaked", "peaked"), ("uniform", "always one")):
        p, q = spreads[a], spreads[b]
        apart = truth(p) - truth(q)
        name = f"{a} − {b}"
        yield Case("entropy difference", name, apart, two(p, q), between, bootstrap=False)


def _clusters(each: int = 5) -> Iterator[Case]:
    """n clusters of five examples; the bootstrap beside it takes examples for independent."""

    def ids(values: np.ndarray) -> np.ndarray:
        return np.arange(len(values)) // each

    def normal(g: np.random.Generator, n: int, trials: int) -> Sample:
        centre = np.repeat(g.normal(size=(n, trials)), each, axis=0)
        return (centre + g.normal(size=centre.shape),)

    def right(g: np.random.Generator, n: int, trials: int) -> Sample:
        ease = np.repeat(g.beta(4.5, 0.5, (n, trials)), each, axis=0)
        return ((g.random(ease.shape) < ease) * 1.0,)

    def mean(x: np.ndarray, **options: Any) -> Interval:
        return intervals.mean(x, clusters=ids(x), **options)

    def share(x: np.ndarray, **options: Any) -> Interval:
        return intervals.mean(x, clusters=ids(x), bounds=(0, 1), **options)

    yield Case("clusters of 5", "normal", 0.0, normal, mean)
    yield Case("clusters of 5", "share of .9", 0.9, right, share)


def percentile(values: np.ndarray, level: float, draws: int = 1000) -> Interval:
    """The interval that was here before: the mean's percentiles over examples drawn again."""
    n, tail = len(values), (1 - level) / 2
    weight = np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), size=draws) / n
    low, high = np.quantile(weight @ values, [tail, 1 - tail], axis=0)
    return values.mean(0), low, high


def covered(interval: Interval, truth: float) -> dict[str, float]:
    """The share of trials that hold the truth, of those that have an interval; and of those without."""
    _, low, high = interval
    there, slack = ~np.isnan(low), 1e-9
    inside = (low <= truth + slack) & (truth <= high + slack)
    share = float(inside[there].mean()) if there.any() else float("nan")
    return {
        "covers": share,
        "absent": float(1 - there.mean()),
        "width": float(np.median((high - low)[there])) if there.any() else float("nan"),
    }


def measure(case: Case, n: int, level: float, trials: int) -> dict[str, Any]:
    seed = zlib.crc32(f"{case.kind} {case.name} {n}".encode())
    sample = case.draw(np.random.default_rng(seed), n, trials)
    found: dict[str, Any] = {"kind": case.kind, "name": case.name, "n": n, "level": level}
    found |= covered(case.interval(*sample, level=level), case.truth)
    if case.bootstrap:
        some = [x[:, : min(trials, 4000)].astype(float) for x in sample]  # it is slow
        gaps = some[0] - some[1] if len(some) > 1 else some[0]
        found["bootstrap"] = covered(percentile(gaps, level), case.truth)["covers"]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--trials", type=int, default=TRIALS)
    trials = parser.parse_args().trials
    rows = [measure(c, n, level, trials) for c in cases() for level in LEVELS for n in SIZES]
    table = Table("kind", "of", "level", "n", "covers", "bootstrap", "absent", "width")
    short = 0
    for row in rows:
        least = LEAST.get((row["level"], row["n"]))
        under = least is not None and row["covers"] < least
        short += under
        numbers = [f"{100 * row[k]:.1f}" if k in row else "–" for k in ("covers", "bootstrap")]
        numbers[0] += " !" if under else ""
        more = [f"{100 * row['absent']:.1f}", f"{row['width']:.3g}"]
        table.add_row(row["kind"], row["name"], f"{row['level']:g}", str(row["n"]), *numbers, *more)
    Console(width=120).print(table, f"{short} of {len(rows)} cells below what is asked for (!)")
    if trials >= TRIALS:
        text = json.dumps({"trials": trials, "rows": rows}, indent=1, ensure_ascii=False)
        Path(__file__).with_suffix(".json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
