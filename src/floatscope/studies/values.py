"""Labelled data as plain arrays and JSON, and back: how a shard keeps what a measure found.

No file is written here.
"""

from typing import Any

import numpy as np
import xarray as xr

Arrays = dict[str, np.ndarray]


def flatten(data: xr.Dataset, prefix: str, into: Arrays) -> dict[str, Any]:
    """Put every variable and coordinate into `into` under the prefix; returns what names them."""
    said: dict[str, Any] = {"attrs": _plain(data.attrs), "variables": {}, "coords": {}}
    for kind, arrays_of_kind in (("variables", data.data_vars), ("coords", data.coords)):
        for name, array in arrays_of_kind.items():
            values = array.values
            if values.dtype == object:  # strings
                values = values.astype(str)
            into[f"{prefix}/{kind}/{name}"] = values
            said[kind][str(name)] = {
                "dims": list(map(str, array.dims)),
                "attrs": _plain(array.attrs),
            }
    return said


def unflatten(
    arrays: Arrays, prefix: str, said: dict[str, Any], like: xr.Dataset | None = None
) -> xr.Dataset:
    """The dataset that `flatten` took apart.

    `like`: one that may have the same coordinates and kinds of values. They are then not made anew, which
    takes most of the time.
    """
    if like is not None and _is_like(like, arrays, prefix, said):
        data = {name: arrays[f"{prefix}/variables/{name}"] for name in said["variables"]}
        made = like.copy(data=data)
        made.attrs = dict(said["attrs"])
        return made
    parts: dict[str, dict[str, Any]] = {"variables": {}, "coords": {}}
    for kind, part in parts.items():
        for name, what in said[kind].items():
            values = arrays[f"{prefix}/{kind}/{name}"]
            part[name] = (what["dims"], values, what["attrs"])
    return xr.Dataset(parts["variables"], parts["coords"], said["attrs"])


def _is_like(like: xr.Dataset, arrays: Arrays, prefix: str, said: dict[str, Any]) -> bool:
    """The same names, dimensions, sizes, attributes and coordinates; values may differ."""
    names = {"variables": like.data_vars.keys(), "coords": like.coords.keys()}
    if any(said[kind].keys() != names[kind] for kind in names):
        return False
    for kind in names:
        for name, what in said[kind].items():
            mine, array = like.variables[name], arrays[f"{prefix}/{kind}/{name}"]
            if list(mine.dims) != what["dims"] or mine.shape != array.shape:
                return False
            if mine.attrs != what["attrs"]:
                return False
            if kind == "coords" and not (
                mine.dtype == array.dtype and np.array_equal(mine.values, array)
            ):
                return False
    return True


def _plain(attrs: dict[Any, Any]) -> dict[str, Any]:
    return {str(k): v.item() if isinstance(v, np.generic) else v for k, v in attrs.items()}
