"""How often each interval holds the truth: samples from distributions that are known, many times.

    python bench/coverage.py                    # full size, ten minutes; writes coverage.json
    python bench/coverage.py --trials 400       # a look, without writing

Asked for: at 95 %, at least 93 % with 20 and 40 examples and 90 % with 8; at 99.5 %, at least 99 %
with 20 and 40. A case marked `short` is known to fall below that. An interval that is not there (NaN)
decides nothing: it is counted apart, and what is asked for is asked of the others. The percentile
bootstrap that these intervals replaced is measured beside them.
"""

import argparse
import json
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from chosen_anchors import population
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
    failed: bool = False  # with Student's interval, clipped to the bounds, or without clusters
    short: bool = False  # known to cover less often than asked for
    most: int = TRIALS  # trials, where a sample takes long to make


def cases() -> Iterator[Case]:
    yield from _means()
    yield from _shares()
    yield from _bounded()
    yield from _differences()
    yield from _ratios()
    yield from _entropies()
    yield from _clusters()
    yield from _questions()
    yield from _controls()
    yield from _chosen()


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


def _bounded() -> Iterator[Case]:
    def mean(values: np.ndarray, **options: Any) -> Interval:
        return intervals.mean(values, bounds=(0, 1), **options)

    def smooth(values: np.ndarray, **options: Any) -> Interval:
        return intervals.mean(values, bounds=(0, 1), smooth=True, **options)

    def betting(values: np.ndarray, *, level: float) -> Interval:
        return intervals.bounded(values, (0, 1), level)

    def beta(a: float, b: float) -> Callable[..., Sample]:
        return lambda g, *size: (g.beta(a, b, size),)

    def mixture(rest: float, spread: float) -> Callable[..., Sample]:
        """6 % from 0 to .3, the others at `rest`, up or down by `spread`."""

        def draw(g: np.random.Generator, *size: int) -> Sample:
            others = rest + spread * g.uniform(-1, 1, size)
            return (np.where(g.random(size) < 0.06, 0.3 * g.random(size), others),)

        return draw

    def low(rest: float) -> float:
        return 0.06 * 0.15 + 0.94 * rest

    kind = "bounded"
    yield Case(kind, "6 % low, the rest .995", low(0.995), mixture(0.995, 0), mean)
    name = "6 % low, the rest .995 ± .001"
    yield Case(kind, name, low(0.995), mixture(0.995, 0.001), mean, failed=True)
    name = "6 % low, the rest .9 ± .05"
    yield Case(kind, name, low(0.9), mixture(0.9, 0.05), mean, failed=True)
    name = "6 % low, the rest .8 ± .1"
    yield Case(kind, name, low(0.8), mixture(0.8, 0.1), mean, failed=True, short=True)
    for a, b in ((0.5, 0.05), (1.9, 0.1)):
        yield Case(kind, f"beta({a:g}, {b:g})", a / (a + b), beta(a, b), mean, failed=True)
    for a, b in ((9, 1), (1, 1), (20, 20)):
        yield Case(kind, f"beta({a:g}, {b:g})", a / (a + b), beta(a, b), mean)
    yield Case("bounded, smooth", "beta(30, 1000)", 30 / 1030, beta(30, 1000), smooth)
    kind, name = "bounded, betting", "6 % low, the rest .9 ± .05"
    yield Case(kind, name, low(0.9), mixture(0.9, 0.05), betting, failed=True)
    yield Case(kind, "beta(20, 20)", 0.5, beta(20, 20), betting)


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


def _questions() -> Iterator[Case]:
    """n paragraphs of two questions each; `alike` is the correlation of their answers."""

    def asked(p: float, alike: float) -> Callable[..., Sample]:
        def draw(g: np.random.Generator, n: int, trials: int) -> Sample:
            own = g.random((n, 2, trials)) < p
            shared = (g.random((n, 1, trials)) < p) & np.ones((1, 2, 1), bool)
            same = g.random((n, 1, trials)) < alike
            return (np.where(same, shared, own).reshape(2 * n, trials) * 1.0,)

        return draw

    def share(x: np.ndarray, **options: Any) -> Interval:
        return intervals.mean(x, clusters=np.arange(len(x)) // 2, bounds=(0, 1), **options)

    for p, alike in ((0.6, 0.5), (0.6, 1.0), (0.9, 0.5), (0.9, 1.0)):
        name = f"share of {p:g}, correlation {alike:g}"
        yield Case("two questions a paragraph", name, p, asked(p, alike), share, failed=True)


def _controls(k: int = 5) -> Iterator[Case]:
    """A trained network and five controls on the same prompts; training adds nothing.

    `apart`: the standard deviation between networks; between prompts of one network it is .7, and
    the trained network has another 1 of its own.
    """

    def drawn(apart: float, skewed: bool = False, trained: float = 1.0) -> Callable[..., Sample]:
        def draw(g: np.random.Generator, n: int, trials: int) -> Sample:
            ease = g.normal(size=(n, trials))
            own = (
                g.lognormal(size=ease.shape) - np.exp(0.5) if skewed else g.normal(size=ease.shape)
            )
            first = ease + own + trained * apart * g.normal(size=trials)
            networks = apart * g.normal(size=(k, 1, trials))
            return first, ease + networks + 0.7 * g.normal(size=(k, n, trials))

        return draw

    def fixed(trained: np.ndarray, controls: np.ndarray, *, level: float) -> Interval:
        return intervals.beyond_controls(trained, controls, level=level, fixed=True)

    kind, interval = "beyond 5 controls", intervals.beyond_controls
    for apart in (0.0, 0.3, 1.0):
        name = f"networks apart by {apart:g}"
        yield Case(kind, name, 0.0, drawn(apart), interval, bootstrap=False, failed=apart > 0)
    name = "networks apart by 0.3, lognormal prompts"
    yield Case(kind, name, 0.0, drawn(0.3, skewed=True), interval, bootstrap=False)
    kind = "beyond the mean of 5 controls"
    for apart in (0.0, 0.3, 1.0):
        name = f"networks apart by {apart:g}"
        yield Case(kind, name, 0.0, drawn(apart, trained=0.0), fixed, bootstrap=False)


def _chosen() -> Iterator[Case]:
    """Claim 5: one value per example that stands for the example, and for the choice of anchors."""
    for name, apart, failed in (
        ("one kind of token is strongest", 1.0, False),
        ("kinds of token are nearly as strong", 0.2, True),
    ):
        truth, draw = population(apart)
        kind, mean = "anchors chosen apart", intervals.mean
        yield Case(kind, name, truth, draw, mean, bootstrap=False, failed=failed, most=5000)


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


def measure(case: Case, n: int, trials: int) -> Iterator[dict[str, Any]]:
    """A row for every level, of the same samples."""
    seed = zlib.crc32(f"{case.kind} {case.name} {n}".encode())
    sample = case.draw(np.random.default_rng(seed), n, min(trials, case.most))
    for level in LEVELS:
        found: dict[str, Any] = {"kind": case.kind, "name": case.name, "n": n, "level": level}
        found["failed"], found["short"] = case.failed, case.short
        found |= covered(case.interval(*sample, level=level), case.truth)
        if case.bootstrap:
            some = [x[:, : min(trials, 4000)].astype(float) for x in sample]  # it is slow
            gaps = some[0] - some[1] if len(some) > 1 else some[0]
            found["bootstrap"] = covered(percentile(gaps, level), case.truth)["covers"]
        yield found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--trials", type=int, default=TRIALS)
    trials = parser.parse_args().trials
    rows = [row for case in cases() for n in SIZES for row in measure(case, n, trials)]
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
