"""Look up families by architecture name, never by path or heuristics."""

from pathlib import Path

from ..errors import ModelError, did_you_mean
from .families import FAMILIES
from .family import Family
from .spec import ModelSpec


def family_of(architecture: str | None, where: str | Path) -> Family:
    """Return the family of an architecture that config.json names; raise ModelError if there is none."""
    for family in FAMILIES.values():
        if architecture in family.architectures:
            return family
    architectures = ", ".join(name for family in FAMILIES.values() for name in family.architectures)
    silent = ": its config.json names none" if architecture is None else ""
    raise ModelError(
        f"{where}: unknown architecture {architecture!r}{silent}",
        f"Known: {architectures}. For weights of a known family, name it: 'DIR,family=Llama', "
        "load(..., family='Llama'); to add a family, see docs/how-to/extending.md.",
    )


def family_by_name(name: str) -> Family:
    require_family(name)
    return FAMILIES[name.lower()]


def require_loadable(spec: ModelSpec, *, elsewhere: bool) -> None:
    """Raise ModelError for an unknown family and, unless `elsewhere`, for a model that does not exist."""
    if not elsewhere:
        spec.require_there()
    if spec.family:
        require_family(spec.family)


def require_family(name: str) -> None:
    """Raise ModelError for an unknown family name, without importing any family."""
    if name.lower() not in FAMILIES:
        remedy = f"{did_you_mean(name, FAMILIES)} Known: {', '.join(FAMILIES)}.".strip()
        raise ModelError(f"no family {name!r:.80}", remedy)
