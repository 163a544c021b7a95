"""Start child processes that import nothing from the working directory.

`python -m` and `python -c`, which multiprocessing uses too, put the working directory first on the
module search path. A checkpoint or a run that somebody sent may hold a `selectors.py`: with
PYTHONSAFEPATH set, the interpreter leaves the working directory out.
"""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_SAFE_PATH = "PYTHONSAFEPATH"
_environment_lock = threading.Lock()


def child_environment() -> dict[str, str]:
    """Return the environment for a child that finds the same packages as this process."""
    path = os.pathsep.join(filter(None, sys.path))
    return {**os.environ, "PYTHONPATH": path, _SAFE_PATH: "1"}


@contextmanager
def safe_path() -> Iterator[None]:
    """Start interpreters inside this block without the working directory on their search path.

    For multiprocessing, which offers no environment of a child's own.
    """
    with _environment_lock:
        before = os.environ.get(_SAFE_PATH)
        os.environ[_SAFE_PATH] = "1"
        try:
            yield
        finally:
            if before is None:
                del os.environ[_SAFE_PATH]
            else:
                os.environ[_SAFE_PATH] = before
