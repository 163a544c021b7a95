"""Read and check selfcheck.json: logits, written after training, that the merged model must reproduce.

The check detects a different base model, token ids of another tokenizer and a wrong merge. It runs in
float32, before the network is cast to another dtype. `attention/selfcheck.py` contains all other checks
of a network.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import torch
from jaxtyping import Float
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from ...errors import ModelError
from ..model import Model
from ..source import read_json

FILE = "selfcheck.json"
WIDTH = 8  # number of leading logits of each row
_LONGEST = 512
_REMEDY = (
    "The base weights or the adapter differ from those of the check: install or copy both again."
)
Ids = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1, max_length=_LONGEST)]
Row = Annotated[list[float], Field(min_length=WIDTH, max_length=WIDTH)]


class SelfCheck(BaseModel):
    """The contents of selfcheck.json: token ids, checked positions, and the first logits of their rows."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    tokens: Ids
    rows: Ids
    logits: list[Row] = Field(max_length=_LONGEST)
    tolerance: float = Field(ge=0, le=1e6)

    def fits(self, model: Model) -> bool:
        """Tell whether the token ids are in the model's vocabulary and the positions in the sequence."""
        return (
            max(self.tokens) < model.vocab_size
            and max(self.rows) < len(self.tokens)
            and len(self.rows) == len(self.logits)
        )


def write_selfcheck(
    path: str | Path,
    model: Model,
    tokens: Sequence[int],
    rows: Sequence[int],
    tolerance: float = 0.02,
) -> Path:
    """Write some of the model's current logits to selfcheck.json of an adapter; return the file's path."""
    logits = [[round(value, 5) for value in row] for row in _logits(model, tokens, rows).tolist()]
    content = SelfCheck(tokens=list(tokens), rows=list(rows), logits=logits, tolerance=tolerance)
    file = Path(path) / FILE
    file.write_text(content.model_dump_json() + "\n")
    return file


def reproduce(model: Model, path: Path) -> None:
    """Raise ModelError if the model does not reproduce the logits in selfcheck.json, if the file exists."""
    file = path / FILE
    if not file.exists():
        return
    try:
        check = SelfCheck.model_validate(read_json(file))
    except ValidationError:
        check = None
    if check is None or not check.fits(model):
        raise ModelError(
            f"{file}: expected tokens (ids of the vocabulary, {_LONGEST} at most), rows (positions "
            f"in them), logits ({WIDTH} numbers for each row) and tolerance",
            "Copy it again.",
        )
    expected = torch.tensor(check.logits, dtype=torch.float64)
    error = float((_logits(model, check.tokens, check.rows).cpu().double() - expected).abs().max())
    if not error <= check.tolerance:
        raise ModelError(
            f"self-check 'the adapter's logits' failed for {model.name}: off by {error:.3g}, at "
            f"most {check.tolerance:g} is allowed",
            _REMEDY,
        )


def _logits(model: Model, tokens: Sequence[int], rows: Sequence[int]) -> Float[Tensor, "r 8"]:
    ids = torch.tensor([list(tokens)], device=model.device)
    return model.logits(ids)[0, list(rows), :WIDTH]
