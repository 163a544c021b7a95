"""floatscope.json: settings that a checkpoint lacks, written beside its weights or adapter.

An adapter's file overrides its base's, and an argument of `load` overrides both. The file says how the
network is used; config.json says what the network is.
"""

from dataclasses import dataclass, fields
from pathlib import Path

from ..errors import ModelError
from .source import read_json
from .spec import expected_of

FILE = "floatscope.json"


@dataclass(frozen=True)
class Stated:
    """Settings of a model; None leaves a setting open."""

    name: str | None = None
    family: str | None = None
    direction: str | None = None
    block: int | None = None
    shift: int | None = None
    mask_id: int | None = None
    override_mask: bool | None = None
    grid: str | None = None

    def over(self, other: "Stated") -> "Stated":
        """Fill the open settings from `other`.

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
    """Read the floatscope.json of a directory, if it has one."""
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
