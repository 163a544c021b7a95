"""What a run found, as files: one tidy parquet table a measure, the answers, and summary.json.

Written from the shards alone and in one order: the same run gives the same bytes.
"""

import io
import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd

from ..engine import atomic
from .findings import Findings
from .planning import settings_of, studies_of
from .study import PROSE, QUESTIONS

ANSWERS, ORDER = "answers", "decoding-order"


def write_results(found: Findings) -> list[Path]:
    """results/*.parquet and summary.json."""
    folder = Path(found.run.directory) / "results"
    folder.mkdir(exist_ok=True)
    written = []
    for name, table in tables(found).items():
        path = folder / f"{name}.parquet"
        atomic.write(path, _parquet(table))
        written.append(path)
    summary = Path(found.run.directory) / "summary.json"
    atomic.write(summary, (json.dumps(_finite(summarised(found)), indent=1) + "\n").encode())
    return [*written, summary]


def tables(found: Findings) -> dict[str, pd.DataFrame]:
    """Every table by name; one row a value, with null and interval beside it."""
    found.gather()
    made: dict[str, pd.DataFrame] = {}
    for key in found.measures:
        frames = []
        for domain in (QUESTIONS, PROSE):
            for result in found.results(key, domain).values():
                frame = result.table()
                frame.insert(1, "domain", domain)
                frames.append(frame)
        if frames:
            made[key] = pd.concat(frames, ignore_index=True)
    answers, orders = [], []
    for name, setting in settings_of(found.request).items():
        for model in found.models:
            rows = found.answers(name, model)
            if rows is None:
                continue
            frame = pd.DataFrame({k: rows[k] for k in rows})
            for place, (key, value) in enumerate(
                {"model": model, "setting": name, "intervention": setting.intervention}.items()
            ):
                frame.insert(place, key, value)
            answers.append(frame)
            order = found.order(name, model)
            if order is not None:
                table = order.table()
                table.insert(1, "setting", name)
                orders.append(table)
    for name, frames in ((ANSWERS, answers), (ORDER, orders)):
        if frames:
            made[name] = pd.concat(frames, ignore_index=True)
    return made


def summarised(found: Findings) -> dict[str, Any]:
    """The headline numbers: models, claims with verdicts, findings, accuracies, what was left out."""
    studies = studies_of(found.request)
    right = {
        name: {
            model: asdict(number)
            for model in found.models
            if (number := found.right(name, model)) is not None
        }
        for name in settings_of(found.request)
    }
    return {
        "request": found.request.model_dump(mode="json"),
        "models": found.models,
        "claims": [asdict(c) for s in studies for c in s.claims(found)],
        "findings": {s.name: list(s.findings(found)) for s in studies},
        "right": right,
        "left_out": found.left_out,
    }


def _parquet(table: pd.DataFrame) -> bytes:
    buffer = io.BytesIO()
    table.to_parquet(buffer, index=False)
    return buffer.getvalue()


def _finite(value: Any) -> Any:
    """JSON has no NaN."""
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
