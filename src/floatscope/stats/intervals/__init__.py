"""Confidence intervals over examples, paired by id if two conditions are compared.

Examples are the sampled units: steps, layers and heads of one example are not independent and never count as
n. An interval is (value, low, high), computed for each cell. The ends of an interval are NaN if the values do
not determine an interval (one example, or equal values). No random numbers are used, so the same values give
the same interval. `bench/coverage.py` measures the coverage of each kind of interval; the table is in
docs/explanation/intervals.md.
"""

from typing import TYPE_CHECKING

from ..._lazy import lazily

if TYPE_CHECKING:
    from .betting import bounded
    from .controls import beyond_controls, gap_bounds, gaps_to_controls, with_variance
    from .differences import difference, independent
    from .entropies import entropy, entropy_difference
    from .means import COUNTS, DIFFERENCES, SHARES, Bounds, cluster_means, hierarchical, mean
    from .pairing import pair, paired_by_id
    from .planning import MANY, Sample, needed
    from .random_effects import RandomEffects, random_effects_mean
    from .ratios import ratio
    from .shares import share

lazily(__name__)
