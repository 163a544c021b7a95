"""floatscope.json: what a checkpoint does not say of itself, written beside its weights or adapter.

An adapter's file wins over its base's, and an argument of `load` over both. It says what the
network is used as; what the network is stays with config.json.
"""

from dataclasses import dataclass, fields
from pathlib import Path

from ..errors import ModelError
from .source import read_json
from .spec import expected_of

FILE = "floatscope.json"


@dataclass(frozen=True)
class Stated:
    """None where nothing is said."""

    name: str | None = None
    family: str | None = None
    direction: str | None = None
    block: int | None = None
    shift: int | None = None
    mask_id: int | None = None
    override_mask: bool | None = None
    grid: str | None = None

    def over(self, other: "Stated") -> "Stated":
        """Fill fields that are None here from the other.

        A direction brings its block and grid with it, a mask_id its override_mask.
        """
        said = {
            name: getattr(other if value is None else self, name)
            for name, value in vars(self).items()
        }
        if self.direction is not None:
            said["block"], said["grid"] = self.block, self.grid
        if self.mask_id is not None:
            said["override_mask"] = self.override_mask
        return Stated(**said)


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
