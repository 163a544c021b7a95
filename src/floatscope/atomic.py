"""Write files and directories atomically: write under a temporary name beside the target, then rename.

Temporary names end in `.partial` and are never read. A temporary directory is locked while it is written.
The kernel releases the lock when the writing process ends, so a directory that a killed process left
behind can be distinguished from a directory in use, and the next writer removes it. Temporary files that
were left behind are removed by the process that holds the lock of their run. Windows has no locks for
directories, so temporary directories that were left behind are kept there.
"""

import errno
import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import lock_descriptor

from .errors import FloatscopeError, RunError

_PARTIAL = ".partial"
_ATTEMPTS = 100
_TAKEN = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR)
# Windows has neither flag and cannot open directories.
_DIRECTORY = getattr(os, "O_DIRECTORY", 0)
_CAN_OPEN_DIRECTORIES = bool(_DIRECTORY)


def unwritable(
    path: Path,
    error: OSError,
    remedy: str = "Finished work is kept, and partly written files are ignored: free disk space or "
    "correct the path, then run it again with --resume.",
    kind: type[FloatscopeError] = RunError,
) -> FloatscopeError:
    return kind(f"{path} could not be written: {error.strerror or error}", remedy)


# Files


def write(path: Path, data: bytes) -> None:
    """Write the bytes to a file by renaming a complete copy; on failure the earlier file is unchanged."""
    with _write_temporary(path, data) as partial:
        os.replace(partial, path)
        if not _CAN_OPEN_DIRECTORIES:
            return
        handle = os.open(path.parent, os.O_RDONLY)
        try:
            # a power cut may undo the rename until the directory is synced as well
            os.fsync(handle)
        finally:
            os.close(handle)


def rehearse(path: Path) -> None:
    """Check that `write` can write to a path, so that a long computation does not fail at its end."""
    make_folder(path.parent)
    with _write_temporary(path, b"\n"):
        pass


@contextmanager
def _write_temporary(path: Path, data: bytes) -> Iterator[Path]:
    """Write the bytes to a temporary file beside the path, yield its path, and remove it afterwards."""
    partial = path.with_name(f".{path.name}.{os.getpid()}{_PARTIAL}")
    try:
        partial.unlink(missing_ok=True)
        with partial.open("xb") as file:  # "x" does not follow an existing link of this name
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        yield partial
    except OSError as error:
        raise unwritable(path, error) from error
    finally:
        with suppress(OSError):  # a name that is too long cannot be removed either
            partial.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, indent=1) + "\n"
    # UTF-8 cannot encode a lone surrogate; its backslash escape is valid JSON.
    write(path, text.encode("utf-8", "backslashreplace"))


def sweep(folder: Path, name: str = "*") -> list[str]:
    """Remove the partial files in a folder (all, or those of the file `name`), and return their names."""
    stale = sorted(path for path in folder.glob(f".{name}.*{_PARTIAL}") if path.is_file())
    for path in stale:
        path.unlink(missing_ok=True)
    return [path.name for path in stale]


def is_partial(path: Path) -> bool:
    return path.name.startswith(".") and path.name.endswith(_PARTIAL)


# Directories


def make_folder(path: Path) -> Path:
    """Make a directory and its parents, and return its path; raise RunError on failure."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(path, error, "Choose another place.") from error
    return path


@contextmanager
def placed(path: Path, require_free: Callable[[], None]) -> Iterator[Path]:
    """Yield an empty temporary directory, and rename it to the path at the end, or remove it on an error.

    A file or directory that exists at the path is replaced, unless `require_free` raises an error.
    """
    with folder_beside(path) as partial:
        yield partial
        _place(partial, path, require_free)
    for leftover in leftovers(path):
        if leftover.name.endswith(_PARTIAL):
            remove_unlocked(leftover, lambda handle: True)
        else:
            shutil.rmtree(leftover, ignore_errors=True)


@contextmanager
def folder_beside(path: Path) -> Iterator[Path]:
    """Yield an empty, locked directory beside the path; afterwards remove it unless it was renamed."""
    path.parent.mkdir(parents=True, exist_ok=True)

    def make() -> Path:
        partial = _neighbour(path, _PARTIAL)
        partial.mkdir()
        return partial

    partial, handle = make_locked(make)
    try:
        yield partial
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        release(handle)


def _place(partial: Path, path: Path, require_free: Callable[[], None]) -> None:
    """Rename a directory to the path; call `require_free` before anything at the path is replaced."""
    old: Path | None = None
    try:
        for _ in range(_ATTEMPTS):
            try:
                partial.rename(path)  # fails if the target directory is not empty
                return
            except OSError as error:
                if error.errno not in _TAKEN:
                    raise
            require_free()
            old = _neighbour(path, ".old")
            # another writer has moved it away in order to replace it
            with suppress(FileNotFoundError):
                path.rename(old)
        raise OSError(errno.EBUSY, "other processes keep writing to this path")
    except BaseException:
        if old is not None and old.exists() and not os.path.lexists(path):
            old.rename(path)
        raise


def leftovers(path: Path) -> list[Path]:
    """List temporary directories that `placed` left beside a path and that contain only a zarr group."""
    pattern = re.compile(rf"\.{re.escape(path.name)}\.\d+(-[0-9a-f]{{8}})?\.(partial|old)")
    folders = (folder for folder in sorted(path.parent.iterdir()) if pattern.fullmatch(folder.name))
    return [folder for folder in folders if not folder.is_symlink() and _is_group(folder)]


def _is_group(folder: Path) -> bool:
    try:
        return all(path.name == "zarr.json" or path.is_dir() for path in folder.iterdir())
    except OSError:
        return False


def _neighbour(path: Path, ending: str) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}{ending}")


# Locks of directories


def make_locked(make: Callable[[], Path]) -> tuple[Path, int | None]:
    """Make and lock a directory; return its path and the handle of the lock.

    The lock lasts until the handle is released or the process ends. The handle is None on a system
    that has no locks for directories.
    """
    if not _CAN_OPEN_DIRECTORIES:
        return make(), None
    for _ in range(_ATTEMPTS):
        folder = make()
        handle = _opened(folder)
        if handle is not None and _locked(handle, folder) is not False:
            return folder, handle
        if handle is not None:  # another process removed it before it was locked
            os.close(handle)
    raise OSError(errno.EBUSY, f"no directory in {folder.parent} can be locked")


def release(handle: int | None) -> None:
    """Release the lock of a directory by its handle from `make_locked`; do nothing for None."""
    if handle is not None:
        os.close(handle)


def remove_unlocked(folder: Path, may_remove: Callable[[int], bool]) -> None:
    """Remove a directory if `may_remove` accepts its open handle and no process has locked it."""
    if (handle := _opened(folder)) is None:
        return
    try:
        if may_remove(handle) and _locked(handle, folder):
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(handle)


def _opened(folder: Path) -> int | None:
    # another process has removed the directory since it was made or listed, or it cannot be opened
    with suppress(OSError):
        return os.open(folder, os.O_RDONLY | _DIRECTORY | getattr(os, "O_NOFOLLOW", 0))
    return None


def _locked(handle: int, folder: Path) -> bool | None:
    """Lock a directory and return True; False if it is locked or was removed, None if locks do not work."""
    try:
        if not lock_descriptor(handle, blocking=False):
            return False
    except OSError:
        return None
    try:
        return os.path.samestat(os.fstat(handle), os.stat(folder))
    except FileNotFoundError:
        return False
