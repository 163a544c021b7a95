"""A file as a sequence of JSON objects, each with the place it stands at.

Handles gzip, JSON lines, one JSON array, and SQuAD's nested document. What the fields mean is not
known here.
"""

import gzip
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import UsageError
from .bad import Bad


@dataclass(frozen=True)
class Item:
    """One parsed object, or why there is none."""

    where: str
    data: Any = None
    bad: Bad | None = None
    squad: bool = False


def items(path: Path) -> Iterator[Item]:
    """The objects of a file in order."""
    raw = _bytes(path)
    if not raw.strip():
        raise UsageError(f"{path} is empty", "Give a file with at least one record.")
    whole = _document(path, raw)
    if isinstance(whole, dict):
        yield from _squad(path, whole)
    elif isinstance(whole, list):
        for number, data in enumerate(whole, 1):
            yield Item(f"{path}, item {number}", data)
        if not whole:
            raise UsageError(f"{path} is an empty list", "Give a file with at least one record.")
    else:
        yield from _lines(path, raw)


def _bytes(path: Path) -> bytes:
    try:
        raw = path.read_bytes()
        # By content, not by name: people rename files.
        raw = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    except FileNotFoundError:
        raise UsageError(f"{path} does not exist", "Check the path.") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UsageError(f"{path} is damaged: {error}", "Fetch or compress it again.") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", "Give a file.") from None
    return raw.removeprefix(b"\xef\xbb\xbf")  # a byte-order mark says nothing in UTF-8


def _document(path: Path, raw: bytes) -> Any:
    """A SQuAD document or an array of records; None where the file is lines."""
    first = raw.lstrip().split(b"\n", 1)[0]
    if not first.lstrip().startswith(b"["):
        try:
            if not _is_squad(json.loads(first)):
                return None
        except (ValueError, RecursionError):
            if ".json" not in path.suffixes:
                return None  # lines, the first of them broken
    try:
        whole = json.loads(raw.decode("utf-8"))
        if b"\\ud" in raw.lower() and not _is_text(whole):
            raise _no_text(str(path)).error()
        return whole
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise _not_utf8(f"{path}, line {line}").error() from None
    except json.JSONDecodeError as error:
        raise _malformed(f"{path}, line {error.lineno}", error).error() from None
    except UsageError:
        raise
    except ValueError as error:
        raise UsageError(f"{path} cannot be read: {error}", "Shorten the number.") from None
    except RecursionError:
        raise UsageError(f"{path} is nested too deeply", "Flatten it.") from None


def _lines(path: Path, raw: bytes) -> Iterator[Item]:
    for number, line in enumerate(raw.split(b"\n"), 1):
        where = f"{path}, line {number}"
        if not line.strip():
            continue
        try:
            data = json.loads(line.decode("utf-8"))
            # A lone surrogate is JSON, but no text that could be asked or written down.
            half = b"\\ud" in line.lower() and not _is_text(data)
            yield Item(where, bad=_no_text(where)) if half else Item(where, data)
        except UnicodeDecodeError:
            yield Item(where, bad=_not_utf8(where))
        except json.JSONDecodeError as error:
            yield Item(where, bad=_malformed(where, error))
        except ValueError as error:  # a whole number of thousands of digits
            yield Item(where, bad=Bad(where, "", f"cannot be read: {error}", "Shorten it."))
        except RecursionError:
            yield Item(where, bad=Bad(where, "", "is nested too deeply", "Flatten it."))


def _is_text(data: Any) -> bool:
    try:
        json.dumps(data, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _no_text(where: str) -> Bad:
    return Bad(where, "", "holds half a surrogate pair", "Write whole characters.")


def _malformed(where: str, error: json.JSONDecodeError) -> Bad:
    return Bad(
        where,
        "",
        f"is not JSON: {error.msg} at column {error.colno}",
        "Repair it: one whole JSON object per line, or one JSON document per file.",
    )


def _not_utf8(where: str) -> Bad:
    return Bad(where, "", "is not UTF-8", "Convert it: iconv -t utf-8.")


def _is_squad(data: Any) -> bool:
    return isinstance(data, dict) and isinstance(data.get("data"), list)


def _squad(path: Path, document: dict[str, Any]) -> Iterator[Item]:
    """Every question with its paragraph; a missing level is an error at its own path."""
    if not _is_squad(document):  # one object in a .json file, over several lines
        yield Item(f"{path}, the one record", document)
        return
    empty = True
    for article, at in _children(document, "data", str(path)):
        for paragraph, inner in _children(article.data, "paragraphs", at, article):
            for question, place in _children(paragraph.data, "qas", inner, paragraph):
                empty = False
                if question.bad:
                    yield question
                    continue
                shared = {
                    "context": paragraph.data.get("context"),
                    "article": article.data.get("title"),
                }
                shared = {key: value for key, value in shared.items() if value is not None}
                name = question.data.get("id")
                where = f"{place}, question {name}" if name is not None else place
                yield Item(where, {**question.data, **shared}, squad=True)
    if empty:
        raise UsageError(f"{path}, data: holds no question", "Give a SQuAD file with questions.")


def _children(
    parent: Any, field: str, at: str, item: Item | None = None
) -> Iterator[tuple[Item, str]]:
    """The objects of a list field with their paths; a fault goes down as a bad item."""
    if item is not None and item.bad:
        yield item, at
        return
    children = parent.get(field)
    if not isinstance(children, list):
        what = "is missing" if field not in parent else "is not a list"
        yield Item(at, bad=Bad(at, field, what, "See SQuAD's format."), squad=True), at
        return
    for number, data in enumerate(children):
        place = f"{at}{', ' if item is None else '.'}{field}[{number}]"
        if isinstance(data, dict):
            yield Item(place, data), place
        else:
            bad = Bad(place, "", "is not an object", "See SQuAD's format.")
            yield Item(place, bad=bad, squad=True), place
