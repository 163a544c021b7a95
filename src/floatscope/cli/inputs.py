"""What a person types becomes what the library takes; what cannot is an error that names it."""

import json
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..trace.store import require_free


def texts_of(prompt: str | None, data: Path | None, limit: int | None) -> list[str]:
    if (prompt is None) == (data is None):
        raise UsageError("give a prompt or a data file", "Use either --prompt or --data.")
    if prompt is not None:
        return [prompt]
    assert data is not None
    texts = []
    try:
        lines = data.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{data} cannot be read: {error}", "Check the path.") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            text = json.loads(line)["prompt"]
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(
                f"{data}, line {number}: expected a JSON object with a `prompt` field",
                "Correct the line.",
            ) from error
        if not isinstance(text, str) or not text.strip():
            raise UsageError(f"{data}, line {number}: the prompt is empty", "Correct the line.")
        texts.append(text)
    if not texts:
        raise UsageError(f"{data} holds no prompts", "Give one JSON object per line.")
    return texts[:limit]


def paths_for(save: Path | None, count: int, *, single: bool, overwrite: bool) -> list[Path]:
    """Where each trace goes; what is there already is noticed before any work is done."""
    if save is None:
        return []
    paths = [save] if single else [save / f"{i:05d}.zarr" for i in range(count)]
    for path in paths:
        if path.exists() and not overwrite:
            raise UsageError(f"{path} exists", "Choose another --out, or pass --overwrite.")
        require_free(path, overwrite)
    return paths


def measures_of(text: str | None) -> dict[str, Any]:
    """Measures by name, each with its default configuration."""
    if not text:
        return {}
    from ..measures import MEASURES

    names = [name.strip() for name in text.split(",")]
    return {name: MEASURES.named(name)() for name in names}
