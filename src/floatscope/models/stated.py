"""Read floatscope.json: settings that a checkpoint lacks, written beside the weights or the adapter.

The floatscope.json of an adapter overrides that of its base model, and an argument of `load` overrides
both files. floatscope.json states how the network is used; config.json describes the network itself.
"""

from dataclasses import fields
from pathlib import Path

from ..errors import ModelError
from .source import read_json
from .spec import ModelSettings, expected_of

FILE = "floatscope.json"


def read(folder: Path | None) -> ModelSettings:
    """Return the settings in a directory's floatscope.json; without the file, all settings are None."""
    if folder is None or not (folder / FILE).exists():
        return ModelSettings()
    file = folder / FILE
    if not file.is_file():
        raise ModelError(f"{file} is not a file", "Copy it again.")
    raw = read_json(file)
    names = [field.name for field in fields(ModelSettings)]
    for name, value in raw.items():
        if name not in names:
            raise ModelError(f"{file}: no setting {name!r:.80}", f"There are {', '.join(names)}.")
        if expected := expected_of(name, value):
            raise ModelError(f"{file}: {name} = {value!r:.80}, expected {expected}", "Correct it.")
    return ModelSettings(**raw)
