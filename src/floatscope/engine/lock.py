"""Allow only one run per directory at a time, by a lock of the operating system's kernel.

The kernel releases the lock when the process that holds it ends, even if the process is killed. The text in
the lock file only informs the user: a file left by an ended process does not block a run. On Windows the lock
covers the file's first byte. Other processes cannot read this byte, so the text begins after it.
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
    """Hold the lock on a file while the `with` block runs.

    Raise an error that names the holder if another process holds the lock. Child processes do not inherit the
    lock.
    """
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
