"""One run per directory: a lock of the kernel's, which dies with its holder, however it dies.

The text in the file is for people; only the lock counts, so a stale text locks nobody out.
"""

import fcntl
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..atomic import unwritable
from ..errors import RunError
from ..untrusted import open_to_append, read_object


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Hold the lock, or say who does. Child processes do not inherit it: the file is not theirs."""
    try:
        file = open_to_append(path)  # without a buffer: a full disk shows at the write
    except OSError as error:
        raise unwritable(path, error) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunError(
                f"{path.parent} is in use by {_holder(path)}",
                "Wait for it, stop it, or choose another --out.",
            ) from None
        except OSError as error:
            raise RunError(
                f"{path} cannot be locked: {error.strerror}",
                "Put the run on a file system with locks; the results can be copied afterwards.",
            ) from error
        try:
            file.truncate(0)
            who = {"pid": os.getpid(), "host": socket.gethostname()}
            file.write(json.dumps(who).encode())
        except OSError as error:
            raise unwritable(path, error) from error
        yield


def _holder(path: Path) -> str:
    try:
        who = read_object(path)
        return f"process {who['pid']!s:.20} on {who['host']!s:.80}"
    except (OSError, ValueError, KeyError):
        return "another process"
