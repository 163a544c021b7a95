"""Packed arrays of a scene read in Python, as the page reads them."""

import base64

import numpy as np

from floatscope.scenes.codec import missing_code


def relative_error(packed):
    """The most a value of a log array above its floor can be off, as a fraction of itself."""
    return float(2 ** (packed["scale"] / 2) - 1)


def floor_of(packed):
    """Below about this, a value of a log array may have become zero."""
    return float(2 ** packed["offset"])


def unpack(packed):
    """What the page will read: floats with NaN, or whole numbers with −1."""
    raw = base64.b64decode(packed["data"])
    codes = np.frombuffer(raw, np.dtype(packed["dtype"]).newbyteorder("<")).astype(np.int64)
    codes = codes.reshape(packed["shape"])
    absent = codes == missing_code(packed["dtype"])
    if packed["code"] == "index":
        return np.where(absent, -1, codes)
    if packed["code"] == "linear":
        values = packed["offset"] + packed["scale"] * codes
    else:
        values = np.where(codes > 0, 2.0 ** (packed["offset"] + packed["scale"] * (codes - 1)), 0.0)
    return np.where(absent, np.nan, values)
