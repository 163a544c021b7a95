"""A directory that is written beside its place and renamed into it, by any number of writers at once.

While it is written it is locked, by a lock of the kernel's that dies with its holder. So what a killed
writer left behind can be told from what another one is writing, and is swept by the next. Windows has no
locks for directories: there, nothing that a killed writer left behind is swept.
"""

import errno
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import lock_descriptor

_ATTEMPTS = 100
_TAKEN = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR)
# Windows has neither flag, and opens no directories.
_DIRECTORY = getattr(os, "O_DIRECTORY", 0)
_CAN_OPEN_DIRECTORIES = bool(_DIRECTORY)


@contextmanager
def beside(path: Path) -> Iterator[Path]:
    """An empty directory next to the path, held until the end, and gone then unless it was placed."""
    path.parent.mkdir(parents=True, exist_ok=True)

    def make() -> Path:
        partial = _neighbour(path, "partial")
        partial.mkdir()
        return partial

    partial, handle = make_locked(make)
    try:
        yield partial
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        release(handle)


def make_locked(make: Callable[[], Path]) -> tuple[Path, int | None]:
    """Make a directory and lock it until its handle is released or the process ends.

    The handle is None on systems without locks for directories.
    """
    if not _CAN_OPEN_DIRECTORIES:
        return make(), None
    for _ in range(_ATTEMPTS):
        folder = make()
        handle = _opened(folder)
        if handle is not None and _locked(handle, folder) is not False:
            return folder, handle
        if handle is not None:  # a sweep took it before it was locked
            os.close(handle)
    raise OSError(errno.EBUSY, f"no directory in {folder.parent} can be locked")


def release(handle: int | None) -> None:
    """Give up the lock of a directory."""
    if handle is not None:
        os.close(handle)


def remove_unlocked(folder: Path, may_remove: Callable[[int], bool]) -> None:
    """Remove a directory whose owner has ended, if its open handle passes; links are not followed."""
    if (handle := _opened(folder)) is None:
        return
    try:
        if may_remove(handle) and _locked(handle, folder):
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(handle)


def place(partial: Path, path: Path, require_free: Callable[[], None]) -> None:
    """Rename it into its place; what is there is replaced where `require_free` does not object.

    Asked for each attempt: another writer may have been faster.
    """
    old: Path | None = None
    try:
        for _ in range(_ATTEMPTS):
            try:
                partial.rename(path)  # refuses a directory that holds something
                return
            except OSError as error:
                if error.errno not in _TAKEN:
                    raise
            require_free()
            old = _neighbour(path, "old")
            try:
                path.rename(old)
            except FileNotFoundError:  # another writer took it away, to replace it too
                continue
        raise OSError(errno.EBUSY, "others write there all the time")
    except BaseException:
        if old is not None and old.exists() and not os.path.lexists(path):
            old.rename(path)
        raise


def sweep(path: Path) -> None:
    """Remove what killed writers of this path left beside it, and what was replaced."""
    for leftover in leftovers(path):
        if leftover.name.endswith(".old"):
            shutil.rmtree(leftover, ignore_errors=True)
        else:
            remove_unlocked(leftover, lambda handle: True)


def leftovers(path: Path) -> list[Path]:
    """Directories beside a path that bear our names for its parts, and hold what a zarr group may."""
    ours = re.compile(rf"\.{re.escape(path.name)}\.\d+(-[0-9a-f]{{8}})?\.(partial|old)")
    return [
        one
        for one in sorted(path.parent.iterdir())
        if ours.fullmatch(one.name) and not one.is_symlink() and one.is_dir() and _is_group(one)
    ]


def _is_group(folder: Path) -> bool:
    try:
        return all(one.name == "zarr.json" or one.is_dir() for one in folder.iterdir())
    except OSError:
        return False


def _neighbour(path: Path, ending: str) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.{ending}")


def _opened(folder: Path) -> int | None:
    try:
        return os.open(folder, os.O_RDONLY | _DIRECTORY | getattr(os, "O_NOFOLLOW", 0))
    except OSError:  # swept by another between two lines, or a system that opens no directories
        return None


def _locked(handle: int, folder: Path) -> bool | None:
    """Whether the directory is ours now; None where the file system has no locks for directories."""
    try:
        if not lock_descriptor(handle, blocking=False):
            return False
    except OSError:
        return None
    try:
        return os.path.samestat(os.fstat(handle), os.stat(folder))
    except FileNotFoundError:
        return False
