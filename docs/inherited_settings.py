"""Show inherited settings on the reference pages: an extension of griffe, which mkdocstrings reads code with.

A setting is described once, in the class that declares it: `length` in `Sampler`, `layers` in `Masking`. Here
the descriptions are added to the classes that inherit the setting, so that every entry lists all of its
parameters.
"""

import re
from typing import Any

import griffe

_SECTION = re.compile(r"^Args:\n((?:[ ].*\n?|\n(?=[ ]))+)", re.M)
_ENTRY = re.compile(r"^    (\*{0,2}\w[\w, *]*?)(?: \(.*?\))?: .*\n?(?:     .*\n?)*", re.M)


class InheritedSettings(griffe.Extension):
    """Adds the `Args:` entries of base classes to each class's own."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Extend the docstrings of all classes of a package, once it is loaded."""
        classes = list(_classes(pkg))
        inherited = {one: _inherited(one) for one in classes}  # before any docstring changes
        for one, entries in inherited.items():
            if entries and one.docstring:
                one.docstring.value = extended(one.docstring.value, entries)


def _classes(module: griffe.Module | griffe.Class) -> Any:
    for member in module.members.values():
        if not member.is_alias and (member.is_module or member.is_class):
            if member.is_class:
                yield member
            yield from _classes(member)


def _inherited(one: griffe.Class) -> list[str]:
    """Return the entries of base classes for parameters that the class takes and does not describe."""
    described = set(_entries(one))
    found: list[str] = []
    for base in one.mro():
        for names, text in _entries(base).items():
            if names not in described:
                described.add(names)
                found.append(text)
    return found


def _entries(one: griffe.Class) -> dict[str, str]:
    section = _SECTION.search(one.docstring.value + "\n") if one.docstring else None
    return {m[1]: m[0].rstrip() for m in _ENTRY.finditer(section[1])} if section else {}


def extended(docstring: str, entries: list[str]) -> str:
    """Add entries to a docstring's `Args:` section, which is made if there is none."""
    text, block = docstring.rstrip() + "\n", "\n".join(entries) + "\n"
    section = _SECTION.search(text)
    if section:
        end = section.start() + len(section[0].rstrip()) + 1
        return (text[:end] + block + text[end:]).rstrip()
    example = re.search(r"^(?:Returns|Example):\n", text, re.M)
    start = example.start() if example else len(text)
    added = f"\nArgs:\n{block}" if start == len(text) else f"Args:\n{block}\n"
    return (text[:start] + added + text[start:]).rstrip()
