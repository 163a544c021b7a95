"""Records from files, in whatever schema they come, and from the synthetic world.

    found = read_records("nq.jsonl.gz", limit=50, skip_bad=True)
    found.records, found.bad

The schema is recognised from the fields. Every record is validated; an error names the file, the
line, the field and what to do. With `skip_bad` errors are collected instead, and never lost.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ..errors import UsageError
from .files import Bad, Item, items
from .record import Record
from .schemas import ALL, BY_LINE, Plain, Problem, Schema, Squad

_SAMPLE = 100  # objects looked at to recognise a file's schema


@dataclass(frozen=True)
class Records:
    """What a file held: its records in order, what could not be read, and the schema found."""

    records: tuple[Record, ...]
    bad: tuple[Bad, ...] = ()
    schema: str = ""


def read_records(path: str | Path, *, limit: int | None = None, skip_bad: bool = False) -> Records:
    """The records of a JSONL or JSON file, gzipped or not; `limit` stops after that many good ones.

    A file that cannot be read at all (missing, empty, of no known schema) is always an error.
    """
    path = Path(path)
    if limit is not None and limit < 1:
        raise UsageError(f"limit = {limit}", "Give a whole number from 1 up, or None.")
    lines = list(items(path))
    schema = _recognise(path, lines)
    records: list[Record] = []
    bad: list[Bad] = []
    first_use: dict[str, str] = {}
    for number, item in enumerate(lines, 1):
        result = _record(schema, item, f"{_stem(path)}:{number}")
        if isinstance(result, Record) and result.id in first_use:
            what = f"{result.id!r} is already the id of {first_use[result.id]}"
            result = Bad(item.where, "id", what, "Give every record an id of its own.")
        if isinstance(result, Bad):
            if not skip_bad:
                raise result.error()
            bad.append(result)
            continue
        first_use[result.id] = item.where
        records.append(result)
        if len(records) == limit:
            break
    if not records:
        raise UsageError(
            f"{path}: none of the {len(bad)} records could be read; the first error: {bad[0]}",
            f"The file was taken for {schema.title}: {schema.looks}.",
        )
    return Records(tuple(records), tuple(bad), schema.title)


def _stem(path: Path) -> str:
    return path.name.removesuffix(".gz").removesuffix(".jsonl").removesuffix(".json")


def _recognise(path: Path, lines: list[Item]) -> type[Schema]:
    """The schema most of the first objects look like: one broken line must not decide it."""
    if any(item.squad for item in lines):
        return Squad
    votes = Counter(schema for item in _sample(lines) if (schema := _looks_like(item.data)))
    if votes:
        return max(votes, key=lambda schema: (votes[schema], -BY_LINE.index(schema)))
    if all(item.bad for item in lines):
        raise lines[0].bad.error() if lines[0].bad else AssertionError(lines[0])
    fields = sorted({key for item in _sample(lines) for key in item.data})
    there = ", ".join(fields) if fields else "no fields: its lines are not JSON objects"
    raise UsageError(
        f"{path}: no known schema; it has {there}",
        f"Known are {'; '.join(f'{s.title}: {s.looks}' for s in ALL)}.",
    )


def _sample(lines: list[Item]) -> Iterator[Item]:
    return islice((item for item in lines if isinstance(item.data, dict)), _SAMPLE)


def _looks_like(data: dict[str, Any]) -> type[Schema] | None:
    for schema in BY_LINE:
        if any(mark <= data.keys() for mark in schema.marks):
            return schema
    return None


def _record(schema: type[Schema], item: Item, id: str) -> Record | Bad:
    if item.bad:
        return item.bad
    if not isinstance(item.data, dict):
        kind = type(item.data).__name__
        return Bad(item.where, "", f"is a {kind}, not an object", f"Write {schema.looks}.")
    try:
        if schema is Plain:
            _refuse_misspellings(item.data)
        return schema.model_validate(item.data).record(id, item.where)
    except ValidationError as error:
        return _explain(schema, item.where, error)
    except Problem as problem:
        return Bad(item.where, problem.field, problem.what, problem.remedy)


def _refuse_misspellings(data: dict[str, Any]) -> None:
    """A plain record is written by hand: `pasages` must not become a question without passages."""
    import difflib  # used for plain records alone

    known = ["id", "question", "answers", "answer", "passages", "gold"]
    for key in data.keys() - set(known):
        near = difflib.get_close_matches(key.lower(), known, 1, 0.8)
        if near and near[0] not in data:
            raise Problem(key, "is not a field of a plain record", f"Did you mean {near[0]!r}?")


def _explain(schema: type[Schema], where: str, error: ValidationError) -> Bad:
    """The first of pydantic's complaints, in our words."""
    first, *others = error.errors()
    field = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in first["loc"]).lstrip(".")
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, Problem):
        what, remedy = cause.what, cause.remedy
    elif first["type"] == "missing":
        what, remedy = "is missing", f"{schema.title} records are {schema.looks}."
    elif first["type"].endswith("_type"):
        kind = first["type"].removesuffix("_type").replace("model", "object")
        value = repr(first["input"])
        short = value if len(value) <= 40 else f"{value[:37]}..."
        what = f"is {short}, where a {kind} is expected"
        remedy = f"{schema.title} records are {schema.looks}."
    else:
        what, remedy = f"is wrong: {first['msg']}", f"{schema.title} records are {schema.looks}."
    more = f" (and {len(others)} more)" if others else ""
    return Bad(where, field, what + more, remedy)
