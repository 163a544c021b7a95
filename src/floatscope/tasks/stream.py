"""Read a file and decompress it piece by piece, so that memory grows only with the longest record.

The limits are far above the sizes in any data set of text. The limits protect against broken or malicious
files: a line without an end, or a small gzip file that unpacks to more than the memory of the machine.
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
DOCUMENT = 1 << 30  # bytes of a file that is one JSON document, which is read as a whole
RATIO = 200  # unpacked bytes per byte of gzip; text has 3 to 20
FREE = 64 << 20  # below this many bytes the ratio is not checked
_PIECE = 1 << 20
_Readable = BufferedReader | gzip.GzipFile


class Source:
    """An open file, decompressed as it is read, with a limit on the number of unpacked bytes."""

    def __init__(self, path: Path, file: _Readable, packed: int | None) -> None:
        self.path, self._file = path, file
        self._limit = None if packed is None else max(FREE, RATIO * packed)
        self._unpacked = 0

    def readline(self, limit: int) -> bytes:
        """Read a line with its line break, or the first `limit` bytes of a longer line."""
        return self._pieces(self._file.readline, limit, b"\n")

    def read(self, limit: int) -> bytes:
        """Read the rest of the file, up to `limit` bytes."""
        return self._pieces(self._file.read, limit, None)

    def _pieces(self, take: Callable[[int], bytes], limit: int, end: bytes | None) -> bytes:
        """Read up to `limit` bytes or to `end`, piece by piece, to notice a decompression bomb early."""
        pieces, remaining = [], limit
        while remaining and (piece := self._counted(take(min(remaining, _PIECE)))):
            pieces.append(piece)
            remaining -= len(piece)
            if end and piece.endswith(end):
                break
        return b"".join(pieces)

    def _counted(self, piece: bytes) -> bytes:
        self._unpacked += len(piece)
        if self._limit is not None and self._unpacked > self._limit:
            raise UsageError(
                f"{self.path} unpacks to more than {RATIO} times its size, which no text does",
                "If this is intended, unpack it yourself and give the unpacked file.",
            )
        return piece


@contextmanager
def opened(path: Path) -> Iterator[Source]:
    """Open a file for reading, gzipped or not; an error while it is opened or read names the file."""
    try:
        with opened_regular(path) as raw:
            # Detected by content, because file names may be wrong.
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
        problem = (
            f"{path} {error}"
            if isinstance(error, Unreadable)
            else f"{path} cannot be read: {error}"
        )
        raise UsageError(problem, "Give a file.") from None


def _unmarked(path: Path, file: _Readable, packed: int | None) -> Source:
    """Return the file as a source, after its byte-order mark if it has one."""
    mark = b"\xef\xbb\xbf"
    if file.peek(3)[:3] == mark:
        file.read(3)
    return Source(path, file, packed)


def lines(source: Source, first: int = RECORD) -> Iterator[tuple[int, bytes | None]]:
    """Yield (number, line) for each line that is not blank; `line` is None if the line is too long.

    Lines are numbered from 1, and blank lines count. The first line that is yielded may have up to `first`
    bytes; every later line may have up to `RECORD` bytes.
    """
    number, limit = 0, first
    while line := source.readline(limit + 1):
        number += 1
        if len(line) > limit and not line.endswith(b"\n"):
            while (piece := source.readline(_PIECE)) and not piece.endswith(b"\n"):
                pass  # skip the rest of the long line
            yield number, None
            limit = RECORD
        elif line.strip():
            yield number, line
            limit = RECORD
