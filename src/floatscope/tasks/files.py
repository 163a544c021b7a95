"""Read a file as a sequence of JSON objects, each with its place in the file.

The file can contain JSON lines, one JSON array, or a nested SQuAD document. `stream` reads the bytes of the
file, `untrusted` parses the bytes, and `schemas` interprets the fields of the objects.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..untrusted import DuplicateField, Unreadable, check, parse
from . import stream
from .invalid_record import InvalidRecord

_NAME = 100  # characters of an id that a message may show


@dataclass(frozen=True)
class Item:
    """One parsed object with its place in the file, or the reason why the object could not be parsed."""

    where: str
    data: Any = None
    bad: InvalidRecord | None = None
    squad: bool = False


def items(path: Path) -> Iterator[Item]:
    """Yield the objects of a file in order; JSON lines are read as their objects are requested."""
    with stream.opened(path) as source:
        # A file named .json may be one document on a single line.
        is_document = ".json" in path.suffixes
        lines = stream.lines(source, stream.DOCUMENT if is_document else stream.RECORD)
        number, first = next(lines, (0, b""))
        if not number:
            raise UsageError(f"{path} is empty", "Give a file with at least one record.")
        if first is None or not _begins_document(path, first):
            if is_document and first is None:
                raise _too_long(path)
            if first is not None and len(first) > stream.RECORD:
                first = None
            yield from _lines(path, chain([(number, first)], lines))
            return
        # Blank lines before it count in the line number that an error names.
        raw = b"\n" * (number - 1) + first + source.read(stream.DOCUMENT)
    if len(raw) > stream.DOCUMENT:
        raise _too_long(path)
    yield from _document(path, raw)


def _too_long(path: Path) -> UsageError:
    return UsageError(
        f"{path} is one JSON document of more than {stream.DOCUMENT >> 20} MB",
        "Write it as JSON lines, which are read one at a time.",
    )


def _begins_document(path: Path, first: bytes) -> bool:
    """Return whether the first line begins one JSON document (an array or object) instead of JSON lines."""
    if first.lstrip().startswith(b"["):
        return True
    try:
        return _is_squad(parse(first))
    except Unreadable:
        return ".json" in path.suffixes  # otherwise JSON lines, the first of which is broken


def _document(path: Path, raw: bytes) -> Iterator[Item]:
    try:
        document = parse(raw)
    except Unreadable as error:
        if "Extra data" in error.problem and raw.lstrip().startswith(b"["):
            # JSON lines after all: the first is an array, and others follow.
            yield from _lines(path, enumerate(raw.split(b"\n"), 1))
            return
        raise UsageError(f"{path}, line {error.line}: {error.problem}", error.remedy) from None
    if isinstance(document, dict):
        yield from _squad(path, document)
        return
    for number, data in enumerate(document, 1):
        yield _item(f"{path}, item {number}", data)
    if not document:
        raise UsageError(f"{path} is an empty list", "Give a file with at least one record.")


def _lines(path: Path, lines: Iterable[tuple[int, bytes | None]]) -> Iterator[Item]:
    for number, line in lines:
        where = f"{path}, line {number}"
        if line is None:
            problem = f"is longer than {stream.RECORD >> 20} MB"
            yield Item(
                where, bad=InvalidRecord(where, "", problem, "Split it: no model reads so much.")
            )
        elif line.strip():
            try:
                data = parse(line)
            except Unreadable as error:
                yield Item(where, bad=InvalidRecord(where, "", error.problem, error.remedy))
            else:
                yield _item(where, data)


def _item(where: str, data: Any, *, squad: bool = False) -> Item:
    try:
        check(data)
    except Unreadable as error:
        return Item(where, bad=InvalidRecord(where, "", error.problem, error.remedy), squad=squad)
    return Item(where, data, squad=squad)


def _is_squad(data: Any) -> bool:
    return isinstance(data, dict) and isinstance(data.get("data"), list)


def _squad(path: Path, document: dict[str, Any]) -> Iterator[Item]:
    """Yield every question of a SQuAD document with its paragraph; a missing list yields a bad item.

    A document in another format is yielded as a single record.
    """
    if not _is_squad(document):  # one object in a .json file, over several lines
        yield _item(f"{path}, the one record", document)
        return
    if isinstance(document, DuplicateField):
        raise UsageError(f"{path} has the field {document.field!r} twice", "Keep one of them.")
    empty = True
    for article, article_place in _children(document, "data", str(path)):
        for paragraph, inner in _children(article.data, "paragraphs", article_place, article):
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
                named = isinstance(name, str | int) and len(str(name)) <= _NAME
                where = f"{place}, question {name}" if named else place
                yield _item(where, {**question.data, **shared}, squad=True)
    if empty:
        raise UsageError(f"{path}, data: contains no question", "Give a SQuAD file with questions.")


def _children(
    parent: Any, field: str, parent_place: str, item: Item | None = None
) -> Iterator[tuple[Item, str]]:
    """Yield (item, path) for each object in a list field of `parent`; an error yields a bad item.

    `item` is the parent's own item. If this item is bad, it is yielded again, and the parent's children are
    not read.
    """
    if item is not None and item.bad:
        yield item, parent_place
        return
    children = parent.get(field)
    if not isinstance(children, list):
        problem = "is missing" if field not in parent else "is not a list"
        yield (
            Item(
                parent_place,
                bad=InvalidRecord(parent_place, field, problem, "See SQuAD's format."),
                squad=True,
            ),
            parent_place,
        )
        return
    for number, data in enumerate(children):
        place = f"{parent_place}{', ' if item is None else '.'}{field}[{number}]"
        if isinstance(data, DuplicateField):
            problem = f"has the field {data.field!r} twice"
            yield (
                Item(place, bad=InvalidRecord(place, "", problem, "Keep one of them."), squad=True),
                place,
            )
        elif isinstance(data, dict):
            yield Item(place, data), place
        else:
            bad = InvalidRecord(place, "", "is not an object", "See SQuAD's format.")
            yield Item(place, bad=bad, squad=True), place
