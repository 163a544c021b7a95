"""Create the private temporary folder of a live page, for the traces of runs and the redirect file.

The folder is locked while the process of the page runs. At the next start, the folders of processes that were
killed can therefore be recognised and removed.
"""

import os
import re
import shutil
import stat
import tempfile
import weakref
from pathlib import Path

from ..atomic import make_locked, release, remove_unlocked

_PREFIX = "floatscope-live-"
_NAME = re.compile(rf"{_PREFIX}[a-z0-9_]{{8}}")
REDIRECT = "open.html"
_CONTENT = re.compile(rf"\.?r[0-9]+\.zarr(\..*)?|{re.escape(REDIRECT)}")


class Scratch:
    """A folder that only this user can read, removed by `close` or when the object is destroyed."""

    def __init__(self) -> None:
        self.path, handle = make_locked(lambda: Path(tempfile.mkdtemp(prefix=_PREFIX)))
        self._remove = weakref.finalize(self, _remove, self.path, handle)

    def close(self) -> None:
        self._remove()


def _remove(folder: Path, handle: int | None) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    release(handle)


def sweep() -> None:
    """Remove this user's scratch folders whose processes no longer run."""
    for name in os.listdir(tempfile.gettempdir()):
        if _NAME.fullmatch(name):
            remove_unlocked(Path(tempfile.gettempdir(), name), _is_scratch)


def _is_scratch(handle: int) -> bool:
    status = os.fstat(handle)
    is_private = status.st_uid == os.getuid() and stat.S_IMODE(status.st_mode) == 0o700
    return is_private and all(map(_CONTENT.fullmatch, os.listdir(handle)))
