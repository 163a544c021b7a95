"""Agreement: whether layers, or two versions of a prompt, attend to the same keys."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, ClassVar

import numpy as np
import xarray as xr

from ...errors import UsageError
from ...plots import Axes, Figure, dots, grid, lines
from ...stats.thirds import thirds
from ...trace import Trace
from ...trace.windows import require_global
from ..base import Measure
from ..nulls import uniform_received
from ..result import Result
from .entropy import entropy_totals

_LOOK: Any = {"vmin": 0, "vmax": 1, "edgecolors": "face"}  # of maps of cosines


@dataclass(frozen=True)
class Agreement(Measure):
    """Cosine of received attention between layers, and the entropy of the deep layers.

    - `agreement`: cosine for every pair of layers, on the mean over heads, averaged over kept steps
    - `shallow_deep`: mean cosine over the pairs of a layer of the first third and a layer of the last third
    - `deep`: mean cosine over the pairs of layers within the last third
    - `deep_entropy`: mean row entropy in the last third of the layers, as a share of the maximum; null 1
      (uniform attention)

    Received attention is never negative, so unrelated layers also have a positive cosine. The null is
    therefore not 0 but the expected cosine if one layer's lifts are permuted among the keys and the length
    of its vector is kept. Pairs that do not exist are NaN.
    """

    units: ClassVar[dict[str, str]] = {
        **dict.fromkeys(("agreement", "shallow_deep", "deep"), "cosine"),
        "deep_entropy": "share of maximum",
    }
    nulls: ClassVar[dict[str, float]] = {"deep_entropy": 1.0}
    needs: ClassVar[tuple[str, ...]] = ("head_mean", "entropy_mean")

    def compute(self, trace: Trace) -> xr.Dataset:
        received = trace.mean_received.transpose("step", "layer", "key").values.astype(float)
        even = uniform_received(trace).transpose("step", "key").values
        steps = [_lengths(c, e) for c, e in zip(received, even, strict=True)]
        cosine = np.mean([c @ c.T / np.outer(length, length) for c, length, _ in steps], axis=0)
        null = np.mean([np.outer(chance, chance) for *_, chance in steps], axis=0)
        np.fill_diagonal(cosine, 1.0)  # an interval of equal values would see rounding
        layers = trace.data["layer"].values
        first, last = thirds(len(layers)).values()
        off_diagonal = ~np.eye(len(layers), dtype=bool)
        values: dict[str, Any] = {}
        for end, array in (("", cosine), ("_null", null)):
            values[f"agreement{end}"] = ("layer", "other"), array
            values[f"shallow_deep{end}"] = _mean(array[first, last][off_diagonal[first, last]])
            values[f"deep{end}"] = _mean(array[last, last][off_diagonal[last, last]])
        total, count = (part[last].sum((1, 2)) for part in entropy_totals(trace))
        return xr.Dataset(values, {"other": layers}).assign(deep_entropy=np.mean(total / count))

    def plot(self, result: Result) -> Figure:
        def draw_pairs(axis: Axes) -> None:
            grid(axis, result["agreement"], "cosine", x="other", y="layer", **_LOOK)
            axis.set(xlabel="layer", aspect="equal")

        def draw_means(axis: Axes) -> None:
            names = {"shallow_deep": "shallow–deep", "deep": "deep–deep"}
            dots(axis, result.data, names | {"deep_entropy": "deep entropy"})
            axis.set_xlim(-0.04, 1.04)

        return lines(result, draw_pairs, draw_means)


@dataclass(frozen=True)
class Perturbation(Measure):
    """The measure that `perturbation` computes: cosine between prompts and their twins, by layer and head.

    Args:
        by (str): Whether twins were compared key by key ("key") or by the means of regions ("region").
    """

    by: str = "key"
    units: ClassVar[dict[str, str]] = {"perturbation": "cosine"}

    def plot(self, result: Result) -> Figure:
        style = {"label": "cosine with the twin", "x": "head", "y": "layer", **_LOOK}
        drawn = partial(grid, values=result["perturbation"], **style)
        return lines(result, drawn, note=f", by {self.by}")


def perturbation(a: Sequence[Trace], b: Sequence[Trace]) -> Result:
    """Compute the cosine of received attention between each prompt and its perturbed twin.

    Received attention is averaged over the kept steps. It is compared key by key if all pairs have the same
    regions in the same places. Otherwise, its means over the regions that all prompts share are compared.

    Args:
        a (sequence of Trace): Traces of the prompts.
        b (sequence of Trace): Traces of their twins, from the same model and in the same order.

    Returns:
        A result with the value `perturbation`, (layer, head). The null is the expected cosine if the lifts of
            one prompt of the pair are permuted. The pairs are the examples of the interval.

    Raises:
        UsageError: If the numbers of traces differ, the models differ, or the prompts share fewer than two
            regions.
    """
    a, b = list(a), list(b)
    for trace in (*a, *b):
        require_global(trace.data, "perturbation")
    if len(a) != len(b):
        raise UsageError(f"{len(a)} traces and {len(b)} twins", "Give one twin per trace.")
    models = {str(t.info["model"]) for t in (*a, *b)}
    if len(models) > 1:
        problem = f"a prompt and its twin from different models: {', '.join(sorted(models))}"
        raise UsageError(
            problem, "Heads of different models do not correspond: use twins from the same model."
        )
    regions = [[str(r) for r in t.data["region"].values] for t in (*a, *b)]
    by_key = all(x == y for x, y in zip(regions[: len(a)], regions[len(a) :], strict=True))
    shared = [r for r in dict.fromkeys(chain(*regions)) if all(r in x for x in regions)]
    if not by_key and len(shared) < 2:
        problem = "these prompts and twins differ in length and share fewer than two regions"
        raise UsageError(problem, "Build prompts and twins with the same named parts.")

    def vectors(received: xr.DataArray) -> np.ndarray:
        """Return the mean over steps, (layer, head, key or region); uniform attention is (key or region)."""
        mean = received.mean("step")
        if not by_key:
            mean = mean.groupby("region").mean("key").sel(region=shared)
        order = ("layer", "head", "key" if by_key else "region")
        return mean.transpose(*order, missing_dims="ignore").values.astype(float)

    examples = []
    for trace, twin in zip(a, b, strict=True):
        even = vectors(uniform_received(trace))
        u, u_length, u_chance = _lengths(vectors(trace.received), even)
        v, v_length, v_chance = _lengths(vectors(twin.received), even)
        dims = ("layer", "head")
        values = {"perturbation": (dims, (u * v).sum(-1) / (u_length * v_length))}
        values["perturbation_null"] = dims, u_chance * v_chance
        examples.append(xr.Dataset(values, {d: trace.data[d].values for d in dims}))
    measure = Perturbation(by="key" if by_key else "region")
    return measure.summarise(examples, next(iter(models), ""))


def _lengths(received: np.ndarray, even: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return vectors with 0 for NaN, their lengths, and a factor of the expected cosine after permutation.

    The product of the factors of two vectors is their expected cosine. Lifts over uniform attention (`even`)
    are permuted, not the values, so that keys favoured by uniform attention do not count as a similarity.
    """
    filled = np.nan_to_num(received)
    length = np.linalg.norm(filled, axis=-1)
    lift = np.nanmean(received / np.where(even > 0, even, np.nan), axis=-1)
    return filled, length, lift * np.sqrt(np.nansum(even**2)) / length


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if values.size else np.nan
