"""Read the outlines of methods from source files, so that printing a list imports no heavy modules.

A method of the package is a dataclass in its own file. The first line of its docstring, its fields and their
defaults are parsed from that file. A method that a plugin registered is already imported; its class is
inspected instead of a file.
"""

import ast
from dataclasses import MISSING, dataclass, fields
from functools import cache
from importlib.util import resolve_name
from typing import Any

from .._lazy import listed, parsed
from ..registry import Registry


@dataclass(frozen=True)
class Outline:
    """The entry of a method in a list: the first line of its docstring, and its fields with defaults."""

    summary: str
    fields: dict[str, str]


def outlines(registry: Registry[Any]) -> dict[str, Outline]:
    """Return the outlines of all methods in a registry, by their names on the command line."""
    return {name: _outline(registry, name) for name in registry}


def common_fields() -> dict[str, str]:
    """Return the fields that all diffusion samplers share, with their defaults as text."""
    return class_outline("floatscope.decode.samplers.base", "Sampler").fields


def _outline(registry: Registry[Any], name: str) -> Outline:
    home = registry.home(name)
    if home is None:
        return _of_class(registry[name])
    package, attribute = home
    where = {public_name: (module, original) for public_name, module, original in listed(package)}
    return class_outline(*where[attribute])


def _of_class(cls: Any) -> Outline:
    """Return the outline of an imported class."""
    defaults = {
        f.name: "" if f.default is MISSING else str(f.default) for f in fields(cls) if f.init
    }
    return Outline((cls.__doc__ or "").strip().partition("\n")[0], defaults)


@cache
def class_outline(module: str, name: str) -> Outline:
    """Return the outline of a class, parsed from its module's file; fields of base classes come first."""
    body = parsed(module).body
    definition = next(node for node in body if isinstance(node, ast.ClassDef) and node.name == name)
    settings: dict[str, str] = {}
    for base in definition.bases:
        if isinstance(base, ast.Name) and (home := _module_of(body, module, base.id)):
            settings |= class_outline(home, base.id).fields
    for node in definition.body:
        if isinstance(node, ast.AnnAssign) and "ClassVar" not in ast.unparse(node.annotation):
            assert isinstance(node.target, ast.Name)
            settings[node.target.id] = "" if node.value is None else _default(body, node.value)
    summary = (ast.get_docstring(definition) or "").partition("\n")[0]
    return Outline(summary, settings)


def _module_of(body: list[ast.stmt], module: str, name: str) -> str | None:
    """Return the name of the package's module that defines class `name`; None if no module does."""
    for node in body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return module
        if isinstance(node, ast.ImportFrom) and node.level:
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    below = module.rpartition(".")[0]
                    return resolve_name("." * node.level + (node.module or ""), below)
    return None


def _default(body: list[ast.stmt], value: ast.expr) -> str:
    """Return the text of a field's default value, as it is typed on the command line."""
    if isinstance(value, ast.Constant):
        return str(value.value)
    if (
        isinstance(value, ast.Call)
        and value.keywords
        and value.keywords[0].arg == "default_factory"
    ):
        factory = value.keywords[0].value
        return (
            ast.unparse(factory.body)
            if isinstance(factory, ast.Lambda)
            else f"{ast.unparse(factory)}()"
        )
    if isinstance(value, ast.Name):
        for node in body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == value.id:
                return _default(body, node.value)
    return ast.unparse(value)
