"""Write answers to a .csv, .parquet or .jsonl file, one row per answer, and recognise files of answers.

A file is written completely or not at all. A file that Floatscope did not write is never overwritten.
"""

import io
import json
import os
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from .. import atomic
from ..errors import UsageError
from ..untrusted import encodable
from .answers import Answers

ENDINGS = (".csv", ".parquet", ".jsonl")
# The first columns of a file of answers, the same in every version of Floatscope.
_FIRST = ["model", "condition", "intervention", "sampler", "template", "id", "question"]


def require_free(path: Path, overwrite: bool) -> None:
    """Raise UsageError unless answers can be written to `path`.

    The file name must have one of the endings `ENDINGS`. An existing file can be replaced only if `overwrite`
    is set and if Floatscope wrote the file.
    """
    if path.suffix not in ENDINGS:
        formats = ", ".join(ending.removeprefix(".") for ending in ENDINGS)
        raise UsageError(f"no format {path.suffix.removeprefix('.')!r:.40}", f"Use {formats}.")
    if os.path.lexists(path):
        kind = "a link" if path.is_symlink() else "a directory" if path.is_dir() else "a file"
        # `is_file` first: opening a pipe would block.
        replaceable = kind == "a file" and path.is_file() and is_answers(path)
        if not overwrite:
            remedy = "Choose another --out" + (", or pass --overwrite." if replaceable else ".")
            raise UsageError(f"{path} exists{'' if replaceable else f': {kind}'}", remedy)
        if not replaceable:
            raise UsageError(
                f"{path} is {kind} without answers of Floatscope: it is not overwritten",
                "Choose another --out, or remove it yourself.",
            )
    atomic.rehearse(path)


def is_answers(path: Path) -> bool:
    """Return whether a file begins with the columns of the answer files that Floatscope writes."""
    try:
        if path.suffix == ".parquet":
            import pyarrow.parquet as pq

            names = pq.read_schema(path).names
        else:
            with path.open(encoding="utf-8") as file:
                line = file.readline(1 << 20)
            names = list(json.loads(line)) if path.suffix == ".jsonl" else line.split(",")
    except Exception:  # pyarrow raises many kinds of errors for other files
        return False
    return names[: len(_FIRST)] == _FIRST


def write(all_answers: Sequence[Answers], path: Path) -> None:
    """Write the tables of all answers to one file, in order, with their settings as further columns."""
    frames = []
    for answers in all_answers:
        frame = answers.table.copy()
        for place, key in enumerate(("model", "intervention", "sampler", "template")):
            frame.insert(place, key, encodable(getattr(answers, key)))
        frame.insert(1, "condition", answers.condition.name)
        frames.append(frame)
    combined = pd.concat(frames, ignore_index=True)
    buffer = io.BytesIO()
    if path.suffix == ".csv":
        combined.to_csv(buffer, index=False)
    elif path.suffix == ".jsonl":
        combined.to_json(buffer, orient="records", lines=True, force_ascii=False)
    else:
        combined.to_parquet(buffer, index=False)
    atomic.write(path, buffer.getvalue())
