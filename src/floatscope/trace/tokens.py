"""What stood at each position when a step looked, as text: the coordinate `token` of a trace.

Text over steps and positions repeats itself, so that every text is held once and each cell points to
it: an array as wide as its longest text would be many times larger. Nothing is spelled here; the
recorder asks a tokenizer.
"""

from collections.abc import Hashable, Iterable, Sequence

import numpy as np
import xarray as xr


def shared(texts: Iterable[str], dims: tuple[Hashable, ...], shape: tuple[int, ...]) -> xr.Variable:
    """An array of texts in which equal ones are one object."""
    once: dict[str, str] = {}
    array = np.fromiter((once.setdefault(t, t) for t in texts), dtype=object).reshape(shape)
    # Without `fastpath` xarray looks whether the objects are dates, and copies each of them.
    return xr.Variable(dims, array, fastpath=True)


def spelled(texts: Sequence[str], which: np.ndarray, dims: tuple[Hashable, ...]) -> xr.Variable:
    """The same of few texts, where the number of each cell's is known: nothing is asked cell by cell."""
    once = {text: text for text in texts}
    known = np.fromiter((once[text] for text in texts), dtype=object, count=len(texts))
    return xr.Variable(dims, known[which], fastpath=True)
