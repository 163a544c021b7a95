"""The text at each position and step: the coordinate `token` of a trace.

Texts repeat over steps and positions, so each text is stored once and every cell points to it; an array
as wide as the longest text would be many times larger. The recorder decodes the tokens.
"""

from collections.abc import Hashable, Iterable, Sequence

import numpy as np
import xarray as xr


def shared(texts: Iterable[str], dims: tuple[Hashable, ...], shape: tuple[int, ...]) -> xr.Variable:
    """Make an array of texts in which equal texts are the same object."""
    once: dict[str, str] = {}
    array = np.fromiter((once.setdefault(t, t) for t in texts), dtype=object).reshape(shape)
    # Without `fastpath` xarray looks whether the objects are dates, and copies each of them.
    return xr.Variable(dims, array, fastpath=True)


def spelled(texts: Sequence[str], which: np.ndarray, dims: tuple[Hashable, ...]) -> xr.Variable:
    """Make an array of texts from a list of distinct texts and the index of each cell's text."""
    once = {text: text for text in texts}
    known = np.fromiter((once[text] for text in texts), dtype=object, count=len(texts))
    return xr.Variable(dims, known[which], fastpath=True)
