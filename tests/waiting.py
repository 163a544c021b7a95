"""Waiting for an event, never for a time: the limit only keeps a broken test from hanging."""

import time

LIMIT = 900  # seconds, for whatever hangs; nothing here is expected to take this long


def until(happened, what, *, alive=lambda: True):
    """Until `happened()` is true, which is returned; at once an error where what should do it died."""
    last = time.monotonic() + LIMIT
    while not (result := happened()):
        if not alive():
            if result := happened():
                return result
            raise AssertionError(f"{what}: what was to do it has ended")
        assert time.monotonic() < last, f"{what}: not in {LIMIT} seconds"
        time.sleep(0.01)
    return result
