"""Count what makes code and documentation hard to read: filler names, undocumented parameters, words.

    python -m tests.plain_words            # a table for the whole project
    python -m tests.plain_words --list     # every filler name and undocumented parameter, with its place

`test_plain_words.py` holds the counts to their limits.
"""

import argparse
import ast
import importlib
import inspect
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "floatscope"

# Pronouns, adverbs and participles without a noun: none says what the value is.
FILLERS = frozenset(
    """again also apart asked at away back begun beside both come done each every few found given gone held
    here it kept known left like look looks made many meant more most none now of off once one others own put
    rest said same say says seen some stands such taken that there these thing things this those told wanted
    way ways what which who whole whose""".split()
)
NAMESPACES = "samplers measures interventions anchors studies tasks statistics plots".split()
# The library's protocols: users call these through other objects, and mkdocs shows the base class.
INHERITED = frozenset({"compute", "plot", "score", "select", "revise", "edit", "ask", "needs"})
PROSE = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "BENCHMARKS.md")


class Place(NamedTuple):
    """A name and where it is bound."""

    name: str
    path: Path
    line: int

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line} {self.name}"


def filler_names(folder: Path = SOURCE) -> list[Place]:
    """List every function, class, parameter, variable and attribute that is bound to a filler name."""
    places = []
    for path in sorted(folder.rglob("*.py")):
        for name, line in _bindings(ast.parse(path.read_text("utf-8"))):
            if name.strip("_") in FILLERS:
                places.append(Place(name, path, line))
    return places


def _bindings(tree: ast.Module) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr, node.lineno
        elif isinstance(node, ast.alias) and node.asname:
            yield node.asname, 0


def public_objects() -> dict[str, Any]:
    """Return every public function and class by its qualified name."""
    objects: dict[str, Any] = {}
    for namespace in ["floatscope", *(f"floatscope.{name}" for name in NAMESPACES)]:
        module = importlib.import_module(namespace)
        for name in module.__all__:
            value = getattr(module, name)
            documented = inspect.isclass(value) or inspect.isfunction(value)
            if documented and value.__module__.startswith("floatscope"):
                objects[f"{value.__module__}.{value.__qualname__}"] = value
    return objects


def undocumented_parameters() -> list[str]:
    """List the public objects that lack a docstring or do not describe one of their parameters."""
    missing = []
    for name, value in sorted(public_objects().items()):
        if not _own_docstring(value):
            missing.append(f"{name}: no docstring")
        described = _described(value)
        for parameter in _parameters(value):
            if parameter not in described:
                missing.append(f"{name}({parameter})")
        if inspect.isclass(value):
            missing += _methods(name, value)
    return missing


def _methods(owner: str, value: type) -> list[str]:
    missing = []
    settings = {field.name for field in fields(value)} if is_dataclass(value) else set()
    for name, method in vars(value).items():
        function = method.__func__ if isinstance(method, classmethod | staticmethod) else method
        # A dataclass field whose default is a function is a setting, not a method.
        if name.startswith("_") or name in INHERITED | settings or not inspect.isfunction(function):
            continue
        if not inspect.getdoc(getattr(value, name)):
            missing.append(f"{owner}.{name}: no docstring")
        described = _described_in_bases(value, name)
        missing += [f"{owner}.{name}({p})" for p in _parameters(function) if p not in described]
    return missing


def _described_in_bases(value: type, name: str) -> set[str]:
    """Return the parameters of a method that the class or a base class describes."""
    defined = (vars(base).get(name) for base in inspect.getmro(value))
    return set().union(*(_described(getattr(d, "__func__", d)) for d in defined if d is not None))


def _own_docstring(value: Any) -> bool:
    text = vars(value).get("__doc__") if inspect.isclass(value) else value.__doc__
    return bool(text) and not (is_dataclass(value) and str(text).startswith(f"{value.__name__}("))


def _parameters(value: Any) -> list[str]:
    if inspect.isclass(value) and issubclass(value, Enum):
        return []  # those of Python's enumerations; members are described instead
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return []
    return [name for name in signature.parameters if name not in {"self", "cls"} and name[0] != "_"]


def _described(value: Any) -> set[str]:
    """Return the parameters that docstrings describe, in "Args:" lists, of a class and its bases."""
    holders = inspect.getmro(value) if inspect.isclass(value) else [value]
    names: set[str] = set()
    for holder in holders:
        init = vars(holder).get("__init__") if inspect.isclass(holder) else None
        for text in (inspect.getdoc(holder) or "", inspect.getdoc(init) or "" if init else ""):
            section = re.search(r"^(?:Args|Attributes):\n((?:[ ].*\n?|\n)+)", text + "\n", re.M)
            if section:
                for entry in re.findall(
                    r"^ {4}(\*{0,2}\w[\w, *]*?)(?: \(.*?\))?: ", section[1], re.M
                ):
                    names.update(word.strip(" *") for word in entry.split(","))
    return names


def words() -> dict[str, int]:
    """Count the words of the documentation, page by page, without code, tables and generated parts."""
    pages = [*(ROOT / name for name in PROSE), *sorted((ROOT / "docs").rglob("*.md"))]
    return {str(page.relative_to(ROOT)): _words(page.read_text("utf-8")) for page in pages}


def _words(text: str) -> int:
    text = re.sub(r"<!-- generated: .+? -->.*?<!-- end -->", "", text, flags=re.S)
    text = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    text = re.sub(r"^\|.*$|^:::.*(\n    .*)*", "", text, flags=re.M)
    return len(text.split())


def main() -> None:
    """Print the counts, and with --list the places."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--list", action="store_true", help="print every place")
    everything = parser.parse_args().list
    source, tests, parameters = (
        filler_names(),
        filler_names(ROOT / "tests"),
        undocumented_parameters(),
    )
    if everything:
        print(*source, *parameters, sep="\n")
    print(f"filler names in src: {len(source)}, in tests: {len(tests)}")
    print(", ".join(f"{name} {n}" for name, n in Counter(p.name for p in source).most_common(20)))
    print(f"public parameters and objects without a description: {len(parameters)}")
    counted = words()
    reference = sum(n for page, n in counted.items() if page.startswith("docs/reference/"))
    print(
        f"words: {sum(counted.values())} in {len(counted)} pages, {reference} of them in the reference"
    )


if __name__ == "__main__":
    main()
