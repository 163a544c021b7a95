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


def unflatten(arrays: Arrays, prefix: str, said: dict[str, Any]) -> xr.Dataset:
    """The dataset that `flatten` took apart."""
    parts: dict[str, dict[str, Any]] = {"variables": {}, "coords": {}}
    for kind, part in parts.items():
        for name, what in said[kind].items():
            values = arrays[f"{prefix}/{kind}/{name}"]
            part[name] = (what["dims"], values, what["attrs"])
    return xr.Dataset(parts["variables"], parts["coords"], said["attrs"])


def _plain(attrs: dict[Any, Any]) -> dict[str, Any]:
    return {str(k): v.item() if isinstance(v, np.generic) else v for k, v in attrs.items()}
