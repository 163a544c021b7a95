"""Write the results of a run: a tidy parquet table per measure, the answers, and summary.json.

The results are computed only from the shards, in a fixed order, so that the same run gives the same bytes.
"""

import io
import json
import math
from pathlib import Path
from typing import Any

import pandas as pd

from .. import atomic
from .findings import Findings


def write_results(findings: Findings) -> list[Path]:
    """Write results/*.parquet and summary.json into the run's directory; return the paths of the files."""
    folder = findings.run.make_folder("results")
    written = []
    for run in (findings, *findings.extra_runs):
        for name, table in run.tables.items():
            path = folder / file_of(run, name)
            atomic.write(path, _parquet(table))
            written.append(path)
    summary = Path(findings.run.directory) / "summary.json"
    atomic.write(summary, (json.dumps(finite(findings.summary()), indent=1) + "\n").encode())
    return [*written, summary]


def file_of(findings: Findings, table: str) -> str:
    """Return the file name of a table; names for an extra run begin with its `file_prefix`."""
    return f"{findings.file_prefix}-{table}.parquet" if findings.label else f"{table}.parquet"


def _parquet(table: pd.DataFrame) -> bytes:
    buffer = io.BytesIO()
    table.to_parquet(buffer, index=False)
    return buffer.getvalue()


def finite(value: Any) -> Any:
    """Return a nested value with NaN and infinity replaced by None, because JSON has no such values."""
    if isinstance(value, dict):
        return {k: finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
