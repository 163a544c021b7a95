"""How many examples would decide, from an interval that does not."""

import math

from scipy.special import ndtri, stdtrit


def needed(
    value: float,
    low: float,
    high: float,
    n: int,
    target: float,
    *,
    level: float = 0.95,
    power: float = 0.8,
) -> int | None:
    """Examples at which an interval of this spread leaves out `target` with this power.

    As if the value found were the true one: the end towards the target is so far from it because of
    n examples, and comes nearer as 1/√n. None where no number would do: the value is on the target,
    or there is no interval.
    """
    gap, half = abs(value - target), value - low if value > target else high - value
    if n < 2 or not math.isfinite(half) or not math.isfinite(gap) or gap == 0:
        return None
    spread = half / float(stdtrit(n - 1, (1 + level) / 2)) * math.sqrt(n)
    wanted = (float(ndtri((1 + level) / 2)) + float(ndtri(power))) * spread / gap
    return max(2, math.ceil(wanted**2))
