"""Read untrusted files: regular files only, with limits on size, depth and types.

A run, a trace, an adapter or a checkpoint may come from a stranger. All JSON files of these directories
are read by this module: a FIFO or a device is refused without blocking, files are read up to a size limit,
and the contents are checked before use. Every fault raises Unreadable; the caller converts Unreadable to
an error of the caller's kind, with the path in front.
"""

import errno
import json
import os
import stat
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import BufferedReader, FileIO
from itertools import islice
from pathlib import Path
from typing import Any

LIMIT = 32 << 20  # bytes per JSON file; the manifest of 200,000 shards has 25 MB
DEPTH = 64  # nesting of lists and objects; below 12 in files written by Floatscope
# Arrays may be RATIO times larger than the compressed files that contain them; below FREE bytes any ratio
# is allowed.
RATIO, FREE = 200, 512 << 20


class Unreadable(ValueError):
    """Raised for a file that cannot be read; contains the problem, its remedy and the line number, from 1."""

    def __init__(self, problem: str, remedy: str = "Copy it again.", line: int = 1) -> None:
        super().__init__(problem)
        self.problem, self.remedy, self.line = problem, remedy, line


class DuplicateField(dict[str, Any]):
    """A JSON object in which the field named `field` is repeated."""

    field = ""


# Files

# Non-blocking where the system supports it: otherwise opening a FIFO would wait for a writer.
_READING = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


@contextmanager
def opened(path: Path | str) -> Iterator[BufferedReader]:
    """Open a regular file to read bytes; raise FileNotFoundError, or Unreadable for any other fault."""
    try:
        handle = os.open(path, _READING)
        with os.fdopen(handle, "rb") as file:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise Unreadable("is not a regular file")
            yield file
    except FileNotFoundError:
        raise
    except IsADirectoryError:
        raise Unreadable("is not a regular file") from None
    except OSError as error:
        raise Unreadable(f"cannot be read: {error.strerror or error}") from error


def read_bytes(path: Path | str, limit: int = LIMIT) -> bytes:
    """Return the bytes of a regular file; raise Unreadable if it has more than `limit` bytes."""
    with opened(path) as file:
        # A file may grow while it is read, and `read` allocates the requested size at once.
        size = os.fstat(file.fileno()).st_size
        if size <= limit:
            data = file.read(size + 1)
            if len(data) > size:
                data += file.read(limit + 1 - len(data))
            if len(data) <= limit:
                return data
    raise Unreadable(f"is larger than {limit / 1e6:.3g} MB")


def read_lines(path: Path | str, limit: int = 1 << 20) -> Iterator[bytes]:
    """Yield the lines of a regular file, with their newlines; skip lines of more than `limit` bytes."""
    with opened(path) as file:
        while line := file.readline(limit):
            if len(line) < limit or line.endswith(b"\n"):
                yield line
            else:
                while (remainder := file.readline(limit)) and not remainder.endswith(b"\n"):
                    pass


def open_to_append(path: Path | str) -> FileIO:
    """Open or create a regular file for appending in a directory where others can write.

    Files that are not regular raise OSError. Links are not followed, because a link with the name of a log
    could point to any file of the user.
    """
    if os.path.islink(path):
        raise OSError(errno.ELOOP, "it is a link, which is not followed")
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
    flags |= getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    file = FileIO(os.open(path, flags, 0o666), "a+")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "it is not a regular file")
    return file


def append(path: Path | str, line: bytes) -> None:
    """Append a line to a regular file, opened by `open_to_append`."""
    with open_to_append(path) as file:
        if file.seek(0, os.SEEK_END):
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":  # the last line is incomplete, after a kill or on a full disk
                line = b"\n" + line
        file.write(line)


def read_object(path: Path | str, limit: int = LIMIT) -> dict[str, Any]:
    """Return the JSON object in a file of at most `limit` bytes."""
    return parse_object(read_bytes(path, limit))


def exists(path: Path | str) -> bool:
    """Tell whether a path exists; False if the text is not a valid path."""
    try:
        return Path(path).expanduser().exists()
    except (OSError, ValueError, RuntimeError):  # RuntimeError: ~ with an unknown user
        return False


def encodable(text: str) -> str:
    """Return the text with escapes for characters that UTF-8 cannot encode, such as bytes of file names."""
    return text.encode("utf-8", "backslashreplace").decode()


# JSON


def parse(raw: bytes) -> Any:
    """Parse UTF-8 encoded JSON, or raise Unreadable. The caller must `check` the result before its use."""
    try:
        return json.loads(raw.decode("utf-8"), object_pairs_hook=_object)
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise Unreadable("is not UTF-8", "Convert it: iconv -t utf-8.", line) from None
    except json.JSONDecodeError as error:
        raise Unreadable(
            f"is not JSON: {error.msg} at column {error.colno}",
            "Repair it: one complete JSON object per line, or one JSON document per file.",
            error.lineno,
        ) from None
    except ValueError:
        limit = sys.get_int_max_str_digits()
        problem = f"cannot be read: a whole number has more than {limit} digits"
        raise Unreadable(problem, "Shorten it, or write it as text.") from None
    except RecursionError:
        raise Unreadable("is nested too deeply", "Flatten it.") from None


def parse_object(raw: bytes) -> dict[str, Any]:
    """Parse one JSON object whose values are nested at most DEPTH levels deep."""
    data = parse(raw)
    if not isinstance(data, dict):
        raise Unreadable(f"holds a {type(data).__name__}: expected a JSON object")
    require_modest(data, len(raw))
    return data


def require_modest(data: Any, size: int) -> None:
    """Refuse data nested deeper than DEPTH, or with more lists and objects than its file has bytes.

    The second limit is for YAML, whose aliases repeat a list: the expanded data of a short file can exceed
    a machine's memory.
    """
    level, count = [data], 1
    for _ in range(DEPTH):
        inner = (
            value
            for node in level
            for value in (node.values() if isinstance(node, dict) else node)
            if isinstance(value, dict | list)
        )
        level = list(islice(inner, size))
        count += len(level)
        if count > size:
            raise Unreadable(
                "expands to more than its size allows, by aliases of aliases", "Write it out."
            )
        if not level:
            return
    raise Unreadable(f"is nested deeper than {DEPTH} levels", "Flatten it.")


def require_fields(data: Mapping[str, Any], types: Mapping[str, type | tuple[type, ...]]) -> None:
    """Refuse an object unless each field in `types` exists with its type; dots in names separate levels."""
    for name, expected in types.items():
        value: Any = data
        for part in name.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        allowed = expected if isinstance(expected, tuple) else (expected,)
        if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed):
            names = " or ".join(_NAMES.get(kind, kind.__name__) for kind in allowed)
            raise Unreadable(f"has {name} = {value!r:.80}, expected {names}")


def texts(data: Mapping[str, Any], name: str) -> dict[str, str]:
    """Return the field `name`, which must map names to texts; an empty dict if the field is missing."""
    mapping = data.get(name, {})
    if not isinstance(mapping, dict) or not all(
        isinstance(value, str) for value in mapping.values()
    ):
        raise Unreadable(f"has {name} = {mapping!r:.80}, expected texts by name")
    return mapping


_NAMES = {
    dict: "an object",
    list: "a list",
    str: "a text",
    int: "a whole number",
    float: "a number",
}


def require_ratio(declared: int, stored: int) -> None:
    """Refuse arrays of `declared` bytes if that is implausibly large for files of `stored` bytes."""
    if declared > FREE + RATIO * stored:
        raise Unreadable(
            f"declares arrays of {declared / 1e6:,.0f} MB in files of {stored / 1e6:,.3g} MB"
        )


def check(data: Any) -> None:
    """Refuse duplicate fields and text that is not valid Unicode, at any depth."""
    # a stack instead of recursion, because data may be nested deeper than Python's recursion limit
    pending = [data]
    while pending:
        node = pending.pop()
        if isinstance(node, DuplicateField):
            raise Unreadable(f"has the field {node.field!r} twice", "Keep one of them.")
        if isinstance(node, dict):
            pending += [*node.keys(), *node.values()]
        elif isinstance(node, list):
            pending += node
        elif isinstance(node, str) and not node.isascii():
            try:
                node.encode("utf-8")
            except UnicodeEncodeError:
                problem = "contains an unpaired surrogate"
                raise Unreadable(problem, "Remove it: text must be valid Unicode.") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) == len(pairs):
        return data
    twice, names = DuplicateField(data), set[str]()
    for name, _ in pairs:
        if name in names:
            twice.field = name
            break
        names.add(name)
    return twice
