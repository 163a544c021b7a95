"""floatscope.json: what a checkpoint does not say of itself, written beside its weights or adapter.

An adapter's file wins over its base's, and an argument of `load` over both. It says what the
network is used as; what the network is stays with config.json.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import ModelError
from .family import Direction
from .source import read_json

FILE = "floatscope.json"
_TEXT, _COUNT = "a text of one line", "a whole number, 0 or more"
_EXPECTED = {
    "name": _TEXT,
    "family": _TEXT,
    "direction": f"one of {', '.join(Direction)}",
    "block": _COUNT,
    "shift": _COUNT,
    "mask_id": _COUNT,
}


@dataclass(frozen=True)
class Stated:
    """None where nothing is said."""

    name: str | None = None
    family: str | None = None
    direction: str | None = None
    block: int | None = None
    shift: int | None = None
    mask_id: int | None = None

    def over(self, other: "Stated") -> "Stated":
        """What is said here, and otherwise what the other says. A direction brings its block."""
        fields = {
            name: getattr(other if value is None else self, name)
            for name, value in vars(self).items()
        }
        if self.direction is not None:
            fields["block"] = self.block
        return Stated(**fields)


def read(folder: Path | None) -> Stated:
    """Of a directory that may hold such a file."""
    if folder is None or not (folder / FILE).exists():
        return Stated()
    file = folder / FILE
    if not file.is_file():
        raise ModelError(f"{file} is not a file", "Copy it again.")
    raw = read_json(file)
    for name, value in raw.items():
        if name not in _EXPECTED:
            raise ModelError(
                f"{file}: no setting {name!r:.80}", f"There are {', '.join(_EXPECTED)}."
            )
        if not _fits(name, value):
            raise ModelError(
                f"{file}: {name} = {value!r:.80}, expected {_EXPECTED[name]}", "Correct it."
            )
    return Stated(**raw)


def _fits(name: str, value: Any) -> bool:
    if _EXPECTED[name] == _COUNT:
        return isinstance(value, int) and not isinstance(value, bool) and value >= 0
    if name == "direction":
        return value in list(Direction)
    return isinstance(value, str) and 0 < len(value) <= 100 and value.isprintable()
