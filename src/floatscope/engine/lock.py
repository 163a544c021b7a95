"""Allow one run per directory, by a kernel lock that is released however its holder ends.

The text in the file is only information for the user: stale text does not block a run. On Windows the
lock covers the file's first byte, which others cannot read, so the text begins after it.
"""

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import lock_descriptor

from ..atomic import unwritable
from ..errors import RunError
from ..untrusted import open_to_append, opened, parse_object

_LOCKED = b" "  # the byte that Windows locks
_LONGEST = 1 << 12


@contextmanager
def hold(path: Path) -> Iterator[None]:
    """Acquire the lock, or raise an error that names its holder. Child processes do not inherit it."""
    try:
        file = open_to_append(path)  # unbuffered, so that a full disk is noticed at the write
    except OSError as error:
        raise unwritable(path, error) from error
    with file:
        try:
            free = lock_descriptor(file.fileno(), blocking=False)
        except OSError as error:
            raise RunError(
                f"{path} cannot be locked: {error.strerror}",
                "Put the run on a file system that supports locks; the results can be copied afterwards.",
            ) from error
        if not free:
            raise RunError(
                f"{path.parent} is in use by {_holder(path)}",
                "Wait for it, stop it, or choose another --out.",
            )
        try:
            file.truncate(0)
            holder = {"pid": os.getpid(), "host": socket.gethostname()}
            file.write(_LOCKED + json.dumps(holder).encode())
        except OSError as error:
            raise unwritable(path, error) from error
        yield


def _holder(path: Path) -> str:
    try:
        with opened(path) as file:
            file.seek(len(_LOCKED))
            holder = parse_object(file.read(_LONGEST))
        return f"process {holder['pid']!s:.20} on {holder['host']!s:.80}"
    except (OSError, ValueError, KeyError):
        return "another process"
