"""Public names of a package, imported when first used."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazily(
    package: str, where: Mapping[str, tuple[str, ...]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """A package's `__getattr__` and `__dir__`; `where` holds its names by the module they are in."""
    module_of = {name: module for module, names in where.items() for name in names}
    there = vars(sys.modules[package])

    def get(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        there[name] = getattr(import_module(f".{module_of[name]}", package), name)
        return there[name]

    return get, lambda: [*there, *module_of]
