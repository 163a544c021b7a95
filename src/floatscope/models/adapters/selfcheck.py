"""selfcheck.json: a few logits that the merged model must reproduce, written after training.

The check detects another base, another tokenizer's ids and a wrong merge. It runs in float32, before any
cast. `attention/selfcheck.py` checks everything else about the network.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ...errors import ModelError
from ..model import Model
from ..source import read_json

FILE = "selfcheck.json"
WIDTH = 8  # logits of each row, from the first on
_LONGEST = 512
_REMEDY = (
    "The base weights or the adapter are not those it was made with: install or copy both again."
)


def write_selfcheck(
    path: str | Path,
    model: Model,
    tokens: Sequence[int],
    rows: Sequence[int],
    tolerance: float = 0.02,
) -> Path:
    """Write the model's current logits, in float32, to an adapter's directory."""
    logits = _logits(model, list(tokens), list(rows)).tolist()
    content = {
        "tokens": list(tokens),
        "rows": list(rows),
        "logits": [[round(value, 5) for value in row] for row in logits],
        "tolerance": tolerance,
    }
    file = Path(path) / FILE
    file.write_text(json.dumps(content) + "\n")
    return file


def reproduce(model: Model, path: Path) -> None:
    """Raise ModelError if the model does not reproduce the logits stored in the directory."""
    file = path / FILE
    if not file.exists():
        return
    raw = read_json(file)
    tokens: Any = raw.get("tokens")
    rows: Any = raw.get("rows")
    logits = raw.get("logits")
    tolerance: Any = raw.get("tolerance")
    if (
        not _ids(tokens, model.vocab_size, _LONGEST)
        or not _ids(rows, len(tokens), len(tokens))
        or type(tolerance) not in (int, float)
        or not 0 <= tolerance <= 1e6
        or not isinstance(logits, list)
        or len(logits) != len(rows)
        or not all(
            isinstance(row, list) and len(row) == WIDTH and all(isinstance(v, float) for v in row)
            for row in logits
        )
    ):
        raise ModelError(
            f"{file}: expected tokens (ids of the vocabulary, {_LONGEST} at most), rows (positions "
            f"in them), logits ({WIDTH} numbers for each row) and tolerance",
            "Copy it again.",
        )
    expected = torch.tensor(logits, dtype=torch.float64)
    off = float((_logits(model, tokens, rows).cpu().double() - expected).abs().max())
    if not off <= tolerance:
        raise ModelError(
            f"self-check 'the adapter's logits' failed for {model.name}: off by {off:.3g}, "
            f"where {tolerance:g} is allowed",
            _REMEDY,
        )


def _logits(model: Model, tokens: list[int], rows: list[int]) -> Float[Tensor, "r 8"]:
    ids = torch.tensor([tokens], device=model.device)
    return model.logits(ids)[0, rows, :WIDTH]


def _ids(value: Any, below: int, at_most: int) -> bool:
    return (
        isinstance(value, list)
        and 0 < len(value) <= at_most
        and all(isinstance(i, int) and not isinstance(i, bool) and 0 <= i < below for i in value)
    )
