"""Test whether a layer has a real anchor, stronger than in untrained networks of the same entropy.

Random attention also has a strongest key, which moves between states more than that of a trained network.
This key is weaker, however, because the rows of a random network do not agree on one key, however
concentrated the attention of each row is. A layer therefore has a real anchor if its strongest key receives
more attention than the strongest keys of networks with permuted weights and the same entropy per head. One
trained network is compared with several untrained networks, so the relevant variance is the variance between
networks.
"""

import numpy as np
import scipy
from jaxtyping import Bool, Float

LEAST = 3  # minimum number of untrained networks, for a variance


def real_layers(
    share: Float[np.ndarray, "n *cells"],
    controls: Float[np.ndarray, "k n *cells"],
    *,
    error: float = 0.05,
) -> Bool[np.ndarray, "*cells"]:
    """Return the cells whose mean share exceeds that of the controls, at joint confidence 1 − `error`.

    The test is on logarithms, because shares are positive and skewed. It compares the trained network's mean
    with a prediction interval for one additional control (Student's t with k − 1 degrees of freedom,
    Bonferroni over the cells). The probability that an untrained network has a real anchor in any cell is
    `error`.

    Args:
        share: share of attention on the strongest key, by example and cell (layer, or layer and head).
        controls: the same shares for k untrained networks.
        error: probability of any false positive, default 0.05.
    """
    k = len(controls)
    if k < LEAST:
        return np.zeros(share.shape[1:], bool)
    with np.errstate(divide="ignore", invalid="ignore"):
        trained = np.log(np.nanmean(share, axis=0))
        networks = np.log(np.nanmean(controls, axis=1))  # (k, *cells)
    cells = max(trained.size, 1)
    beyond = scipy.special.stdtrit(k - 1, 1 - error / cells)
    spread = networks.std(0, ddof=1) * np.sqrt(1 + 1 / k)
    return np.asarray(trained - networks.mean(0) > beyond * spread)
