"""Encode arrays as text for a page: base64 of small integers, with a known error.

There are three codes. `index`: value = code. `linear`: value = offset + scale·code. `log`: value = 2^(offset
+ scale·(code − 1)), with code 0 for the value 0. With `log`, a share of 0.01 % keeps as many digits as a
share of 50 %. The highest code is a missing value (NaN). This module does not depend on traces.
"""

import base64
import math
from collections.abc import Iterator
from typing import Any, TypedDict

import numpy as np
import xarray as xr

# How far below its largest value a log array still tells values apart, in powers of two.
_OCTAVES = {"uint8": 16, "uint16": 24}
_PIECE = 1 << 18  # values


class Packed(TypedDict):
    """A packed array: base64 of its codes, and how to decode them."""

    dtype: str
    shape: list[int]
    code: str
    scale: float
    offset: float
    data: str


def text_size(count: int, dtype: str) -> int:
    """Return the number of base64 characters of an array with `count` values of type `dtype`."""
    return 4 * math.ceil(count * np.dtype(dtype).itemsize / 3)


def missing_code(dtype: str) -> int:
    """Return the code of a missing value: the largest integer of the type."""
    return int(np.iinfo(dtype).max)


def pack_index(values: Any, dtype: str = "uint16") -> Packed:
    """Pack integers as an `index` array; negative integers become missing values."""
    array = np.asarray(values)
    missing = missing_code(dtype)
    if array.size and array.max() >= missing:
        raise ValueError(f"{array.max()} does not fit into {dtype}: {missing} means not there")
    return _packed(np.where(array < 0, missing, array), dtype, "index", 1.0, 0.0)


def pack_linear(values: Any, dtype: str = "uint16") -> Packed:
    """Pack values as a `linear` array from the smallest to the largest; the error is at most scale / 2."""
    array = np.asarray(values, np.float64)
    finite = array[np.isfinite(array)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    missing = missing_code(dtype)
    scale = (high - low) / (missing - 1) or 1.0
    codes = np.where(np.isfinite(array), np.round((array - low) / scale), missing)
    return _packed(codes, dtype, "linear", scale, low)


def pack_signed(values: Any, dtype: str = "uint16") -> Packed:
    """Pack values as a `linear` array in which zero is exact; the error is at most scale / 2."""
    array = np.asarray(values, np.float64)
    finite = array[np.isfinite(array)]
    largest, middle = float(np.abs(finite).max(initial=0.0)), (missing_code(dtype) - 1) // 2
    scale = largest / middle or 1.0
    codes = np.where(np.isfinite(array), np.round(array / scale) + middle, missing_code(dtype))
    return _packed(codes, dtype, "linear", scale, -scale * middle)


def pack_log(values: Any, dtype: str = "uint16") -> Packed:
    """Pack values from 0 as a `log` array; values far below the largest become 0. Refuse negative values.

    Values become 0 if they are below about 2⁻¹⁶ of the largest value for uint8, and 2⁻²⁴ for uint16.
    """
    array = np.asarray(values)
    least, largest = _range_of(array)
    missing = missing_code(dtype)
    scale = low = 0.0
    if largest > 0:
        high = math.log2(largest)
        low = max(math.log2(least), high - _OCTAVES[dtype])
        scale = (high - low) / (missing - 2) or 1e-9  # codes 1 … missing − 1
    codes = np.empty(array.shape, _stored(dtype))
    for part, to in zip(_pieces(array), _pieces(codes), strict=True):
        to[...] = _log_codes(part, low, scale, missing)
    return _packed(codes, dtype, "log", scale, low)


def _log_codes(part: np.ndarray, low: float, scale: float, missing: int) -> np.ndarray:
    part = part.astype(np.float64)
    codes = np.zeros(part.shape)
    if scale:
        with np.errstate(divide="ignore", invalid="ignore"):
            rank = np.round((np.log2(part) - low) / scale)
        codes = np.where(part > 0, np.clip(rank + 1, 0, missing - 1), 0)
    return np.where(np.isfinite(part), codes, missing)


def _range_of(array: np.ndarray) -> tuple[float, float]:
    """Return the smallest and the largest positive value of an array; (0, 0) if there is none."""
    least, largest = math.inf, 0.0
    for part in _pieces(array):
        finite = part[np.isfinite(part)]
        if finite.size and finite.min() < 0:
            raise ValueError("a log array holds no negative values")
        positive = finite[finite > 0]
        if positive.size:
            least, largest = min(least, float(positive.min())), max(largest, float(positive.max()))
    return (least, largest) if largest else (0.0, 0.0)


def _pieces(array: np.ndarray) -> Iterator[np.ndarray]:
    """Return an iterator over flat pieces of an array, so that float64 intermediates stay small."""
    flat = array.reshape(-1)
    return (flat[start : start + _PIECE] for start in range(0, flat.size, _PIECE))


def take_arrays(scene: dict[str, Any]) -> tuple[dict[str, Any], xr.Dataset]:
    """Return a scene without the codes of its packed arrays, and a dataset with the codes."""
    codes: dict[str, tuple[list[str], np.ndarray]] = {}

    def take(part: Any, name: str) -> Any:
        if not isinstance(part, dict):
            return part
        if "data" not in part:
            return {key: take(value, f"{name}/{key}") for key, value in part.items()}
        array = np.frombuffer(base64.b64decode(part["data"]), _stored(part["dtype"]))
        dims = [f"{name}/{axis}" for axis in range(len(part["shape"]))]
        codes[name] = dims, array.reshape(part["shape"])
        return {key: part[key] for key in ("code", "scale", "offset")}

    small_json = {key: take(part, key) for key, part in scene.items()}
    return small_json, xr.Dataset(codes)


def put_arrays(part: Any, data: xr.Dataset, name: str = "") -> Any:
    """Return a scene (or the part of a scene at the path `name`) from what `take_arrays` returned."""
    if not isinstance(part, dict):
        return part
    if "code" not in part:
        inside = f"{name}/" if name else ""
        return {key: put_arrays(value, data, f"{inside}{key}") for key, value in part.items()}
    codes, numbers = data.variables[name].values, (float(part["scale"]), float(part["offset"]))
    if codes.dtype.name not in _OCTAVES or part["code"] not in ("index", "linear", "log"):
        raise ValueError(f"{name} is no packed array")
    return _packed(codes, codes.dtype.name, part["code"], *numbers)


def _stored(dtype: str) -> np.dtype[Any]:
    return np.dtype(dtype).newbyteorder("<")


def _packed(codes: np.ndarray, dtype: str, code: str, scale: float, offset: float) -> Packed:
    raw = codes.astype(_stored(dtype), copy=False).tobytes()
    return {
        "dtype": dtype,
        "shape": list(codes.shape),
        "code": code,
        "scale": scale,
        "offset": offset,
        "data": base64.b64encode(raw).decode("ascii"),
    }
