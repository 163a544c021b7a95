"""Confidence intervals over examples, for everything that reports one; paired by id where two are compared.

Examples are what was sampled, so they are what varies: steps, layers and heads of one example are
not independent and never count as n. An interval is (value, low, high), cell by cell. Where there is
nothing to tell it from (one example, or all alike) it is NaN, and decides nothing. Nothing is drawn
at random: the same values give the same interval. `bench/coverage.py` counts how often each kind
holds the truth; docs/explanation/intervals.md has the table.
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
