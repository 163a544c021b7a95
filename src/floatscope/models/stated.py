"""floatscope.json: what a checkpoint does not say of itself, written beside its weights or adapter.

An adapter's file wins over its base's, and an argument of `load` over both. It says what the
network is used as; what the network is stays with config.json.
"""

from dataclasses import fields
from pathlib import Path

from ..errors import ModelError
from .source import read_json
from .spec import Stated, expected_of

FILE = "floatscope.json"


def read(folder: Path | None) -> Stated:
    """Of a directory that may hold such a file."""
    if folder is None or not (folder / FILE).exists():
        return Stated()
    file = folder / FILE
    if not file.is_file():
        raise ModelError(f"{file} is not a file", "Copy it again.")
    raw = read_json(file)
    known = [field.name for field in fields(Stated)]
    for name, value in raw.items():
        if name not in known:
            raise ModelError(f"{file}: no setting {name!r:.80}", f"There are {', '.join(known)}.")
        if wanted := expected_of(name, value):
            raise ModelError(f"{file}: {name} = {value!r:.80}, expected {wanted}", "Correct it.")
    return Stated(**raw)
