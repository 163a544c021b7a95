"""Verify the files inside the package against the checksums that the package contains."""

import hashlib
import json
from pathlib import Path

from ..errors import ModelError

EMBEDDED = Path(__file__).parent / "embedded"
_REINSTALL = "Install floatscope again: pip install --force-reinstall floatscope."


def checked_directory(name: str, path: Path) -> Path:
    """Return the directory of an embedded model, after checking that its files are complete and unaltered."""
    try:
        expected = json.loads((path.parent / "checksums.json").read_text())[path.name]
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(
            f"the embedded model {name} is not in this installation", _REINSTALL
        ) from error
    for file, digest in expected.items():
        try:
            actual = hashlib.sha256((path / file).read_bytes()).hexdigest()
        except OSError as error:
            raise ModelError(f"the embedded model {name} lacks {file}", _REINSTALL) from error
        if actual != digest:
            raise ModelError(f"{file} of the embedded model {name} is damaged", _REINSTALL)
    for member in path.iterdir():  # a loader would read further files as part of the model
        if member.name not in expected and not member.name.startswith("."):
            raise ModelError(f"{member} does not belong to the embedded model {name}", "Remove it.")
    return path
