"""Names and parameters that must be read twice stay few. `python -m tests.plain_words --list` shows them."""

import runpy
from pathlib import Path

import griffe

from tests.plain_words import filler_names, undocumented_parameters

FILLERS_IN_SRC = 150
UNDOCUMENTED = 0

CLASSES = '''
class Base:
    """Base.

    Args:
        length: tokens,
            or none.
        seed: its seed.
    """

class Own(Base):
    """Own.

    Args:
        seed: another seed.
    """

class Bare(Base):
    """Bare.

    Example:
        Bare()
    """
'''


def test_source_binds_few_filler_names():
    places = filler_names()
    assert len(places) <= FILLERS_IN_SRC, "\n".join(map(str, places[-20:]))


def test_public_parameters_are_documented():
    missing = undocumented_parameters()
    assert len(missing) <= UNDOCUMENTED, "\n".join(missing[-20:])


def test_reference_pages_describe_inherited_settings():
    extension = runpy.run_path(str(Path(__file__).parent.parent / "docs" / "inherited_settings.py"))
    added = griffe.load_extensions(extension["InheritedSettings"])
    with griffe.temporary_visited_package(
        "settings", {"__init__.py": CLASSES}, extensions=added
    ) as package:
        texts = {name: package[name].docstring.value for name in ("Base", "Own", "Bare")}
    length = "    length: tokens,\n        or none."
    assert texts["Base"] == f"Base.\n\nArgs:\n{length}\n    seed: its seed."
    assert texts["Own"] == f"Own.\n\nArgs:\n    seed: another seed.\n{length}"
    inherited = f"Args:\n{length}\n    seed: its seed.\n\n"
    assert texts["Bare"] == f"Bare.\n\n{inherited}Example:\n    Bare()"
