"""What stood at each position when a step looked, as text: the coordinate `token` of a trace.

Text over steps and positions repeats itself, so that every text is held once and each cell points to
it: an array as wide as its longest text would be many times larger. Nothing is spelled here; the
recorder asks a tokenizer, and what an older trace did not keep is named by its id.
"""

from collections.abc import Hashable, Iterable, Sequence

import numpy as np
import xarray as xr

UNKNOWN_MASK = "⟨mask⟩"  # of an older trace, which did not keep how its mask is written


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


def by_step(data: xr.Dataset) -> xr.Dataset:
    """A trace of schema 1 with the names of today: there `token` was the final one at every step.

    Its canvases tell which token stood where, and its final tokens how most of them are written. One
    that was taken back again is known by its id alone.
    """
    if data["token"].dims != ("key",):
        return data
    ids, final = data["canvas"].values, data["token"]
    known = {int(i): str(text) for i, text in zip(ids[-1], final.values, strict=True)}
    known = {int(data.attrs.get("mask_id", -1)): UNKNOWN_MASK, **known, -1: ""}
    seen = ids[data["step"].values]
    texts = (known.get(int(i), f"⟨token {i}⟩") for i in seen.ravel())
    return data.rename(token="final_token").assign_coords(
        token=shared(texts, ("step", "key"), seen.shape)
    )
