"""The families, and how one is found: by the architecture's name, never by a path or a guess."""

from pathlib import Path

from ..errors import ModelError
from .dream import DREAM
from .family import Family
from .llada import LLADA
from .llama import LLAMA
from .qwen2 import QWEN2
from .qwen3 import QWEN3

FAMILIES: tuple[Family, ...] = (LLADA, DREAM, LLAMA, QWEN2, QWEN3)


def family_of(architecture: str | None, where: str | Path) -> Family:
    """The family that config.json names in `architectures` (model_type is not unique)."""
    for family in FAMILIES:
        if architecture in family.architectures:
            return family
    known = ", ".join(name for family in FAMILIES for name in family.architectures)
    raise ModelError(
        f"{where}: unknown architecture {architecture!r}",
        f"Known: {known}. For weights of a known family under another name pass family=...; "
        "a new family is one file, see CONTRIBUTING.md.",
    )


def family_by_name(name: str) -> Family:
    for family in FAMILIES:
        if name.lower() == family.name.lower():
            return family
    raise ModelError(f"no family {name!r}", f"Known: {', '.join(f.name for f in FAMILIES)}.")
