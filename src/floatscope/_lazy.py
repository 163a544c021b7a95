"""Public names of a package, listed once and imported when first used.

A package lists its names as ordinary imports under `if TYPE_CHECKING:` in its `__init__`. A type
checker reads them there, and so does `lazily`: the list is the only one. (Scientific Python's SPEC 1
does the same with stub files.)
"""

import ast
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.util import resolve_name
from pathlib import Path
from typing import Any


def lazily(package: str) -> list[str]:
    """Give a package its `__getattr__`, `__dir__` and `__all__`; returns its names, in order."""
    module = vars(sys.modules[package])
    where = {name: (home, attribute) for name, home, attribute in _listed(package)}

    def get(name: str) -> Any:
        if name not in where:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home, attribute = where[name]
        holder = import_module(home)
        module[name] = getattr(holder, attribute) if attribute else holder
        return module[name]

    # Not assigned in the package itself: a type checker would then believe any name.
    names = list(where)
    module |= {"__getattr__": get, "__dir__": lambda: sorted({*module, *where}), "__all__": names}
    return names


def _listed(package: str) -> Iterator[tuple[str, str, str]]:
    """Name, the module it is in, what it is called there ("" for a module itself)."""
    root, *below = package.split(".")
    top = Path(str(sys.modules[root].__file__)).parent
    tree = ast.parse(top.joinpath(*below, "__init__.py").read_text(encoding="utf-8"))
    blocks = [node for node in tree.body if isinstance(node, ast.If)]
    for node in (node for block in blocks for node in block.body):
        if not isinstance(node, ast.ImportFrom):
            continue
        home = resolve_name("." * node.level + (node.module or ""), package)
        for alias in node.names:
            if alias.name == "*":  # all that the other package lists, without importing it
                yield from ((name, home, name) for name, _, _ in _listed(home))
            elif home == package:
                yield alias.asname or alias.name, f"{package}.{alias.name}", ""
            else:
                yield alias.asname or alias.name, home, alias.name
