"""Read the records of a run, for its workers and for the checks before the workers start."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ..errors import UsageError
from ..models.spec import located
from ..tasks.named import is_named, named_records
from ..tasks.readers import read_records
from ..tasks.record import Record
from .planning import held_out, questions_of, settings_of
from .request import Request
from .setting import Setting

Read = tuple[tuple[Record, ...], list[str]]  # records, and the records that could not be read


def read_data(request: Request, folder: Path = Path()) -> Read:
    """Return the records of a request's named task or file, and descriptions of its unusable records.

    The path of a file is relative to `folder`.
    """
    counts = [questions_of(setting, request) for setting in settings_of(request).values()]
    n_records = max(request.limit, request.questions + held_out(request), *counts)
    if is_named(request.data):
        records = named_records(request.data, n_records + request.skip, request.seed)
        return records[request.skip :], []
    # Distractors are drawn from all records, so all are read.
    path = located(request.data, folder)
    read = read_records(
        path, skip_bad=request.skip_bad, split_alternatives=request.split_alternatives
    )
    if path == request.data:
        return read.records[request.skip :], [str(bad) for bad in read.bad]
    # Records name their file by its path in the request, wherever the file was found.
    renamed = (replace(r, where=r.where.replace(path, request.data, 1)) for r in read.records)
    return tuple(renamed)[request.skip :], [
        str(bad).replace(path, request.data, 1) for bad in read.bad
    ]


def too_few(
    request: Request, records: Sequence[Record], setting: Setting | None = None, reserved: int = 0
) -> UsageError:
    """Return the error for data with too few records.

    The records are needed for an experiment that reserves `reserved` records, for a setting or, by default,
    for tracing.
    """
    supply = f"{request.data} has {len(records)} usable records"
    if reserved:
        return UsageError(
            f"{supply}, {request.questions} are to be asked and {reserved} more to choose heads by",
            "Lower --questions, or give more data.",
        )
    if setting is None:
        return UsageError(
            f"{supply}, {request.limit} are wanted", "Lower --limit, or give more data."
        )
    return UsageError(
        f"{supply}, {questions_of(setting, request)} are to be asked",
        "Lower --questions and knowledge.gain_questions, or give more data.",
    )


def gold_is_missing(setting: Setting, records: Sequence[Record]) -> bool:
    """Return whether a setting moves the gold passage although no record marks a gold passage.

    A setting without a gold passage to move is skipped.
    """
    return "gold=" in setting.condition and all(record.gold is None for record in records)
