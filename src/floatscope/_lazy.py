"""Import the public names of a package when they are first used.

A package lists its names as ordinary imports under `if TYPE_CHECKING:` in its `__init__`. Type
checkers and `lazily` read this list. (Scientific Python's SPEC 1 uses stub files for this.)
"""

import ast
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.util import resolve_name
from pathlib import Path
from typing import Any

from .errors import did_you_mean


def lazily(package: str, *defined: str) -> list[str]:
    """Define `__getattr__`, `__dir__` and `__all__` of a package, and return its public names in order.

    `defined` lists the public names that the package's `__init__` defines itself.
    """
    module = vars(sys.modules[package])
    where = {name: (home, attribute) for name, home, attribute in listed(package)}
    names = [*where, *defined]

    def get(name: str) -> Any:
        if name not in where:
            raise _missing(package, name, names)
        home, attribute = where[name]
        holder = import_module(home)
        module[name] = getattr(holder, attribute) if attribute else holder
        return module[name]

    # Not defined in the package's own source, because type checkers would then accept any name.
    module |= {"__getattr__": get, "__dir__": lambda: sorted(names), "__all__": names}
    return names


def _missing(package: str, name: str, names: list[str]) -> AttributeError:
    """Return an AttributeError for an unknown name, with the place that defines it or the closest name."""
    text = f"module {package!r} has no attribute {name!r}"
    if name.startswith("_") or any(map(Path.exists, _files(f"{package}.{name}"))):
        return AttributeError(text)  # Python looks up the attribute before it imports a submodule
    places = {export: f"{package}.{export}" for export in names}
    for namespace in [
        module for module in names if any(map(Path.exists, _files(f"{package}.{module}")))
    ]:
        for export in import_module(f"{package}.{namespace}").__all__:
            places.setdefault(export, f"{package}.{namespace}.{export}")
    if name in places:
        return AttributeError(f"{text}: {name} is {places[name]}")
    guess = did_you_mean(name, places, lambda export: places[export])
    return AttributeError(f"{text}. {guess or f'dir({package}) lists its names.'}")


def _files(module: str) -> list[Path]:
    """Return the two possible files of a module: a package's `__init__.py` and a `.py` file."""
    root, *below = module.split(".")
    path = Path(str(sys.modules[root].__file__)).parent.joinpath(*below)
    return [path / "__init__.py", path.with_suffix(".py")]


def parsed(module: str) -> ast.Module:
    """Return the syntax tree of a module of Floatscope without importing the module."""
    init, file = _files(module)
    return ast.parse((init if init.exists() else file).read_text(encoding="utf-8"))


def listed(module: str) -> Iterator[tuple[str, str, str]]:
    """Yield a package's public names: each name, its defining module, its name there ("" for a module)."""
    package = module if _files(module)[0].exists() else module.rpartition(".")[0]
    blocks = [node for node in parsed(module).body if isinstance(node, ast.If)]
    for node in (node for block in blocks for node in block.body):
        if not isinstance(node, ast.ImportFrom):
            continue
        home = resolve_name("." * node.level + (node.module or ""), package)
        for alias in node.names:
            if alias.name == "*":  # all names that the other package lists, without importing it
                yield from ((name, home, name) for name, _, _ in listed(home))
            elif home == package:
                yield alias.asname or alias.name, f"{package}.{alias.name}", ""
            else:
                yield alias.asname or alias.name, home, alias.name
