"""A file's bytes, unpacked as they are read: memory follows one record, not what the file claims to be.

The limits are far above any data set of text. They are for files that were made to hurt, or broken:
a line without an end, and a small gzip file that unpacks to more than a machine holds.
"""

import gzip
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path

from ..errors import UsageError
from ..untrusted import Unreadable
from ..untrusted import opened as opened_regular

RECORD = 64 << 20  # bytes of one line
DOCUMENT = 1 << 30  # bytes of a file that is one JSON document, and so is read whole
RATIO = 200  # bytes out of one byte of gzip; text gives 3 to 20
FREE = 64 << 20  # below this many bytes no ratio is looked at
_PIECE = 1 << 20
_Readable = BufferedReader | gzip.GzipFile


class Source:
    """What is read from: bytes after gzip, counted."""

    def __init__(self, path: Path, file: _Readable, packed: int | None) -> None:
        self.path, self._file = path, file
        self._most = None if packed is None else max(FREE, RATIO * packed)
        self._given = 0

    def readline(self, most: int) -> bytes:
        """A line with its end, or as much of it as `most` bytes."""
        return self._pieces(self._file.readline, most, b"\n")

    def read(self, most: int) -> bytes:
        """All that is left, up to `most` bytes."""
        return self._pieces(self._file.read, most, None)

    def _pieces(self, take: Callable[[int], bytes], most: int, end: bytes | None) -> bytes:
        """Piece by piece, so that a bomb is noticed before it has gone off."""
        pieces, left = [], most
        while left and (piece := self._counted(take(min(left, _PIECE)))):
            pieces.append(piece)
            left -= len(piece)
            if end and piece.endswith(end):
                break
        return b"".join(pieces)

    def _counted(self, piece: bytes) -> bytes:
        self._given += len(piece)
        if self._most is not None and self._given > self._most:
            raise UsageError(
                f"{self.path} unpacks to more than {RATIO} times its size, as no text does",
                "If it is meant to be so, unpack it yourself and give the unpacked file.",
            )
        return piece


@contextmanager
def opened(path: Path) -> Iterator[Source]:
    """A file for reading, gzipped or not; whatever goes wrong, now or later, is said about it."""
    try:
        with opened_regular(path) as raw:
            # By content, not by name: people rename files.
            packed = raw.peek(2)[:2] == b"\x1f\x8b"
            if packed:
                with gzip.open(raw) as file:
                    size = path.stat().st_size
                    yield _unmarked(path, file, size)
            else:
                yield _unmarked(path, raw, None)
    except FileNotFoundError:
        raise UsageError(f"{path} does not exist", "Check the path.") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UsageError(f"{path} is damaged: {error}", "Fetch or compress it again.") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", "Give a file.") from None
    except ValueError as error:
        if isinstance(error, UsageError):
            raise
        what = (
            f"{path} {error}"
            if isinstance(error, Unreadable)
            else f"{path} cannot be read: {error}"
        )
        raise UsageError(what, "Give a file.") from None


def _unmarked(path: Path, file: _Readable, packed: int | None) -> Source:
    """Past a byte-order mark, which says nothing in UTF-8."""
    mark = b"\xef\xbb\xbf"
    if file.peek(3)[:3] == mark:
        file.read(3)
    return Source(path, file, packed)


def lines(source: Source, first: int = RECORD) -> Iterator[tuple[int, bytes | None]]:
    """The lines that hold something, with their numbers from 1; None for one that is too long.

    The first of them may have `first` bytes, the others RECORD.
    """
    number, most = 0, first
    while line := source.readline(most + 1):
        number += 1
        if len(line) > most and not line.endswith(b"\n"):
            while (rest := source.readline(_PIECE)) and not rest.endswith(b"\n"):
                pass  # let go, piece by piece
            yield number, None
            most = RECORD
        elif line.strip():
            yield number, line
            most = RECORD
