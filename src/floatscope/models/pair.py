"""The embedded pair: a diffusion and a causal model, trained alike, shipped inside the package.

This file finds them and checks that they are whole; how they were made is in `training/` and in
their card, `embedded/CARD.md`.
"""

import hashlib
import json
from pathlib import Path

from ..errors import ModelError

FOLDER = Path(__file__).parent / "embedded"
PAIR = {
    "pair/mdm": "masked diffusion, LLaDA format, 12.3M parameters",
    "pair/arm": "autoregressive, Llama format, 12.3M parameters",
}
_REINSTALL = "Install floatscope again: pip install --force-reinstall floatscope."


def locate(name: str) -> Path:
    """The directory of one of the pair, after its files have been compared with their checksums."""
    path = FOLDER / name.removeprefix("pair/")
    try:
        expected = json.loads((FOLDER / "checksums.json").read_text())[path.name]
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
    return path
