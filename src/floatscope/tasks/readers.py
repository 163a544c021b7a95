"""Read records from files of several schemas.

    found = read_records("nq.jsonl.gz", limit=50, skip_bad=True)
    found.records, found.bad

The schema of a file is recognised from the fields of its records. Every record is validated; an error names
the file, the line, the field and a remedy. If `skip_bad` is set, the invalid records are collected, and no
error is raised for them.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ..errors import UsageError
from ..untrusted import encodable
from . import alternatives
from .files import Item, items
from .invalid_record import InvalidRecord, shown
from .record import Record
from .schemas import ALL, BY_LINE, Plain, Problem, Schema, Squad

_SAMPLE = 100  # objects looked at to recognise a file's schema,
_LOOKED_AT = 10_000  # and lines looked at to find them
_SHOWN = 20  # fields in a message, and characters of each
# Passage fields of other data sets, besides those by which the known schemas are recognised.
_ELSEWHERE = frozenset("passages passage context contexts ctxs documents docs paragraphs".split())


@dataclass(frozen=True)
class Records:
    """The contents of a file of records.

    Args:
        records (tuple of Record): The records, in the order of the file.
        bad (tuple of InvalidRecord): The records that could not be read, each with the reason; () by default.
        schema (str): Title of the schema that was recognised.
        alternatives (str): A notice of gold answers that seem to contain several alternatives in one text and
            were not split; "" if there are no such answers.
    """

    records: tuple[Record, ...]
    bad: tuple[InvalidRecord, ...] = ()
    schema: str = ""
    alternatives: str = ""


def read_records(
    path: str | Path,
    *,
    limit: int | None = None,
    skip_bad: bool = False,
    split_alternatives: bool = False,
) -> Records:
    """Read the records of a JSONL or JSON file, which may be compressed with gzip.

    Args:
        path (str or Path): The file.
        limit (int): Number of valid records after which reading stops; None (by default) reads all records.
        skip_bad (bool): Whether records that cannot be read are collected. By default such a record raises an
            error.
        split_alternatives (bool): Whether each part of a gold answer such as "1984 or 1985" is also accepted
            as right; False by default.

    Returns:
        The records, the records that could not be read, and the schema.

    Raises:
        UsageError: If the file is missing or empty or has an unknown schema, if none of its records can be
            read, or if a record cannot be read and `skip_bad` is False.
    """
    path = Path(path)
    if limit is not None and limit < 1:
        raise UsageError(f"limit = {limit}", "Give a whole number from 1 up, or None.")
    objects = items(path)
    sample = _sample(objects)
    schema = _recognise(path, sample)
    records: list[Record] = []
    bad: list[InvalidRecord] = []
    first_use: dict[str, str] = {}
    stem = encodable(path.name).removesuffix(".gz").removesuffix(".jsonl").removesuffix(".json")
    for number, item in enumerate(chain(sample, objects), 1):
        result = _record(schema, item, f"{stem}:{number}")
        if isinstance(result, Record) and result.id in first_use:
            problem = f"{shown(result.id)} is already the id of {first_use[result.id]}"
            result = InvalidRecord(item.where, "id", problem, "Give every record an id of its own.")
        if isinstance(result, InvalidRecord):
            if not skip_bad:
                raise result.error(skippable=True)
            bad.append(result)
            continue
        first_use[result.id] = item.where
        records.append(result)
        if len(records) == limit:
            break
    if not records:
        raise UsageError(
            f"{path}: none of the {len(bad)} records could be read; the first error: {bad[0]}",
            f"The file was read as {schema.title}: {schema.layout}.",
        )
    if split_alternatives:
        return Records(tuple(map(alternatives.split, records)), tuple(bad), schema.title)
    several = alternatives.describe(
        {record.where or record.id: record.answers for record in records}
    )
    return Records(tuple(records), tuple(bad), schema.title, several)


def _sample(objects: Iterator[Item]) -> list[Item]:
    """Return the first items of a file, with up to 100 objects, from which its schema is recognised."""
    sample: list[Item] = []
    n_objects = 0
    for item in islice(objects, _LOOKED_AT):
        sample.append(item)
        n_objects += isinstance(item.data, dict)
        if n_objects == _SAMPLE:
            break
    return sample


def _recognise(path: Path, sample: list[Item]) -> type[Schema]:
    """Return the schema that most objects of the sample match; raise UsageError if no schema matches."""
    if any(item.squad for item in sample):
        return Squad
    objects = [item.data for item in sample if isinstance(item.data, dict)]
    votes = Counter(schema for data in objects if (schema := _looks_like(data)))
    if votes:
        return max(votes, key=lambda schema: (votes[schema], -BY_LINE.index(schema)))
    if all(item.bad for item in sample):
        raise sample[0].bad.error() if sample[0].bad else AssertionError(sample[0])
    fields = sorted({key for data in objects for key in data})
    listed = ", ".join(name[:_SHOWN] for name in fields[:_SHOWN]) + (
        ", …" if len(fields) > _SHOWN else ""
    )
    raise UsageError(
        f"{path}: no known schema; it has {listed or 'no fields: its lines are not JSON objects'}",
        f"Known schemas: {'; '.join(f'{s.title}: {s.layout}' for s in ALL)}.",
    )


def _looks_like(data: dict[str, Any]) -> type[Schema] | None:
    for schema in BY_LINE:
        if any(mark <= data.keys() for mark in schema.marks):
            return schema
    return None


def _record(schema: type[Schema], item: Item, id: str) -> Record | InvalidRecord:
    if item.bad:
        return item.bad
    if not isinstance(item.data, dict):
        kind = type(item.data).__name__
        return InvalidRecord(
            item.where, "", f"is a {kind}, not an object", f"Write {schema.layout}."
        )
    try:
        if schema is Plain:
            _refuse_misspellings(item.data)
        record = schema.model_validate(item.data).record(id, item.where)
        if not record.passages:
            _refuse_unread_passages(schema, item.data)
        return record
    except ValidationError as error:
        return _explain(schema, item.where, error)
    except Problem as cause:
        return InvalidRecord(item.where, cause.field, cause.problem, cause.remedy)


def _refuse_misspellings(data: dict[str, Any]) -> None:
    """Raise Problem for a misspelt field of a plain record, such as `pasages`, which would be ignored."""
    import difflib  # only used for plain records

    field_names = ["id", "question", "answers", "answer", "passages", "gold"]
    for key in data.keys() - set(field_names):
        closest = difflib.get_close_matches(key.lower(), field_names, 1, 0.8)
        if closest and closest[0] not in data:
            raise Problem(key, "is not a field of a plain record", f"Did you mean {closest[0]!r}?")


def _refuse_unread_passages(schema: type[Schema], data: dict[str, Any]) -> None:
    """Raise Problem for passages under a field name of another schema, which would be ignored."""
    foreign = _ELSEWHERE.union(
        *(mark for other in BY_LINE for mark in other.marks if len(mark) == 1)
    )
    for name in sorted(foreign & data.keys() - schema.model_fields.keys()):
        if data[name]:
            raise Problem(
                name,
                f"is not a field of {schema.title} records, and there are no other passages",
                f"Write passages as in {schema.layout}, or remove the field.",
            )


def _explain(schema: type[Schema], where: str, error: ValidationError) -> InvalidRecord:
    """Return pydantic's first error as an InvalidRecord with field, problem and remedy."""
    first, *more_errors = error.errors()
    field = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in first["loc"]).lstrip(".")
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, Problem):
        problem, remedy = cause.problem, cause.remedy
    elif first["type"] == "missing":
        problem, remedy = "is missing", f"{schema.title} records are {schema.layout}."
    elif first["type"].endswith("_type"):
        kind = first["type"].removesuffix("_type").replace("model", "object")
        problem = f"is {shown(first['input'])}, where a {kind} is expected"
        remedy = f"{schema.title} records are {schema.layout}."
    else:
        problem, remedy = (
            f"is wrong: {first['msg']}",
            f"{schema.title} records are {schema.layout}.",
        )
    suffix = f" (and {len(more_errors)} more)" if more_errors else ""
    return InvalidRecord(where, field, problem + suffix, remedy)
