"""Files that are whole or absent: written beside their place, synced, renamed.

A name that ends in `.partial` is never read; what a killed run left of them is swept at the start.
"""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ..errors import RunError

_PARTIAL = ".partial"


def write(path: Path, data: bytes) -> None:
    """Put the bytes at the path, or nothing, or leave what was there."""
    with _beside(path, data) as partial:
        os.replace(partial, path)
        _sync_folder(path.parent)


def rehearse(path: Path) -> None:
    """What `write` will need, before the work whose result it is to write; nothing stays."""
    make_folder(path.parent)
    with _beside(path, b"\n"):
        pass


@contextmanager
def _beside(path: Path, data: bytes) -> Iterator[Path]:
    """The bytes on disk, under a name that is never read, and gone afterwards."""
    partial = path.with_name(f".{path.name}.{os.getpid()}{_PARTIAL}")
    try:
        partial.unlink(missing_ok=True)
        with partial.open("xb") as file:  # a link that lies there under this name is not followed
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        yield partial
    except OSError as error:
        raise unwritable(path, error) from error
    finally:
        with suppress(OSError):  # a name too long for a file is too long to be removed
            partial.unlink(missing_ok=True)


def make_folder(path: Path) -> Path:
    """Make a directory and those above it, or say why not."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(
            f"{path} could not be written: {error.strerror or error}", "Choose another place."
        ) from error
    return path


def write_json(path: Path, value: Any) -> None:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, indent=1) + "\n"
    # A lone surrogate has no UTF-8; its backslash spelling is also JSON's.
    write(path, text.encode("utf-8", "backslashreplace"))


def sweep(folder: Path, name: str = "*") -> list[str]:
    """Remove what a killed run left half-written of a file, or of all; the names of the remains."""
    stale = sorted(path for path in folder.glob(f".{name}.*{_PARTIAL}") if path.is_file())
    for path in stale:
        path.unlink(missing_ok=True)
    return [path.name for path in stale]


def is_partial(path: Path) -> bool:
    return path.name.startswith(".") and path.name.endswith(_PARTIAL)


def unwritable(path: Path, error: OSError) -> RunError:
    return RunError(
        f"{path} could not be written: {error.strerror or error}",
        "Nothing half-written counts and what was finished is kept: "
        "make room or mend the path, then run it again with --resume.",
    )


def _sync_folder(folder: Path) -> None:
    """Until the folder is synced too, a power cut may undo the rename. Windows cannot open a folder."""
    if sys.platform == "win32":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
