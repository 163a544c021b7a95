"""Intervals of the difference between a trained network and several control networks on the same prompts.

Prompts and control networks both vary. More prompts give no information about the variance between random
networks, so with an interval over prompts alone, any two random networks differ significantly if there are
enough prompts. This module treats prompts and networks as crossed random effects.
"""

import numpy as np
import scipy
from jaxtyping import Float, Real

from .means import Bounds, mean
from .student import Cells, Interval, flattened


def beyond_controls(
    trained: Real[np.ndarray, "n *rest"],
    controls: Real[np.ndarray, "k n *rest"],
    *,
    level: float = 0.95,
    bounds: Bounds | None = None,
    smooth: bool = False,
    fixed: bool = False,
) -> Interval:
    """Compute the mean of trained − controls, with an interval over prompts and networks.

    Let G be the gaps of the prompts (trained − mean of the controls) and s the standard deviation of the k
    networks' means. The variance is var(mean G) + s²(1 + 1/k). Student's quantile has Satterthwaite's degrees
    of freedom, rounded down. The trained network counts as one draw: if training had no effect, the trained
    network would lie as far from the mean of the controls as one control lies from the mean of the other
    controls. The noise of prompts within a network enters both terms, so the interval is too wide rather than
    too narrow if networks hardly differ.

    Args:
        trained: one value per prompt. NaN means "does not apply" and is not counted.
        controls: the same values for every control network, prompts in the same order.
        level: nominal coverage.
        bounds: range of the values, as in `difference`.
        smooth: as in `mean`.
        fixed: whether to treat the trained network as given, not as a draw. Of the variance between networks,
            only that of the mean of the controls, s²/k, then remains.

    Returns:
        The difference and the two ends of its interval. The ends are NaN with fewer than two controls or two
            prompts.
    """
    flat, shape = flattened(trained)
    controls_array = np.asarray(controls, dtype=np.float64).reshape(len(controls), *flat.shape)
    gaps, variance, free = gaps_to_controls(flat, controls_array, fixed=fixed)
    ends = gap_bounds(flat, gaps, bounds)
    value, low, high = with_variance(gaps, variance, free, level=level, bounds=ends, smooth=smooth)
    return value.reshape(shape), low.reshape(shape), high.reshape(shape)


def gaps_to_controls(
    trained: Float[np.ndarray, "n c"], controls: Float[np.ndarray, "k n c"], *, fixed: bool = False
) -> tuple[Float[np.ndarray, "n c"], Cells, Cells]:
    """Compute the gaps of the prompts, and the variance between networks with its degrees of freedom."""
    controls = np.where(np.isnan(trained), np.nan, controls)
    present = ~np.isnan(controls)
    with np.errstate(invalid="ignore", divide="ignore"):
        middle = np.nansum(controls, 0) / present.sum(0)  # (n, c)
        # The difficulty of a prompt cancels, so networks that lack some prompts stay comparable.
        offsets = np.nansum(controls - middle, 1) / present.sum(1)  # (k, c)
        k = (~np.isnan(offsets)).sum(0).astype(float)
        offsets = offsets - np.nansum(offsets, 0) / k
        variance = np.nansum(offsets**2, 0) / (k - 1) * (1 / k + (not fixed))
    return trained - middle, np.where(k > 1, variance, np.nan), k - 1


def gap_bounds(
    trained: Float[np.ndarray, "n c"], gaps: Float[np.ndarray, "n c"], bounds: Bounds | None
) -> Bounds | None:
    """Return the range of trained − mean control, from the range of the values and the observed controls."""
    if bounds is None or np.isnan(gaps).all():
        return None
    middle = trained - gaps
    return bounds[0] - float(np.nanmax(middle)), bounds[1] - float(np.nanmin(middle))


def with_variance(
    values: Float[np.ndarray, "n c"],
    variance: Float[np.ndarray, "#c"],
    free: Float[np.ndarray, "#c"],
    *,
    level: float = 0.95,
    bounds: Bounds | None = None,
    smooth: bool = False,
) -> Interval:
    """Compute the mean with its interval, and add an independent variance with `free` degrees of freedom.

    Each end's distance from the mean, divided by Student's quantile, is the standard error on its side, so
    asymmetric intervals stay asymmetric. If the added variance is 0, the interval does not change.
    """
    value, low, high = mean(values, level=level, bounds=bounds, smooth=smooth)
    n = (~np.isnan(values)).sum(0)
    tail = (1 + level) / 2
    ends = []
    for reach in (value - low, high - value):
        # NaN if all values are equal
        own_variance = np.where(np.isnan(reach) & (n > 1), 0.0, reach)
        own_variance = (own_variance / scipy.special.stdtrit(np.maximum(n - 1, 1), tail)) ** 2
        total = own_variance + variance
        with np.errstate(invalid="ignore", divide="ignore"):
            degrees = total**2 / (own_variance**2 / (n - 1) + variance**2 / free)
        half = scipy.special.stdtrit(np.maximum(np.floor(degrees + 1e-9), 1), tail) * np.sqrt(total)
        ends.append(np.where(total > 0, half, 0.0))
    defined = (ends[0] + ends[1] > 0) & (free > 0)
    low, high = (np.where(defined, end, np.nan) for end in (value - ends[0], value + ends[1]))
    return (value, low, high) if bounds is None else (value, low.clip(*bounds), high.clip(*bounds))
