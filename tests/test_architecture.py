"""One direction of imports: nothing on the left imports from its right."""

import ast
from pathlib import Path

import floatscope

ROOT = Path(floatscope.__file__).parent
# From left to right; a file may import what stands before it, and its own package.
ORDER = """
    lazy errors choose direction digits engine anchors classes intervals frequencies models prompt decode
    attention token_classes interventions null store trace running outbox recorded assemble
    recording reading selfcheck instrument tasks measures samplers tiny show options harness
    studies report cli
""".split()


def package_of(path):
    first = path.relative_to(ROOT).parts[0]
    return first.removesuffix(".py")


def imports(path):
    """Names of floatscope's own packages that a file imports, also inside functions."""
    depth = len(path.relative_to(ROOT).parts)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level == depth:
            if node.module:
                yield node.module.split(".")[0]
            else:
                yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("floatscope"):
            raise AssertionError(f"{path}: import your own package relatively")


def test_every_file_has_its_place():
    names = {package_of(p) for p in ROOT.rglob("*.py")} - {"__init__"}
    assert names == set(ORDER)


def test_imports_go_one_way():
    place = {name: i for i, name in enumerate(ORDER)}
    for path in ROOT.rglob("*.py"):
        here = package_of(path)
        if here == "__init__":
            continue
        for name in imports(path):
            assert place[name] <= place[here], f"{path} imports {name}, which stands to its right"


def test_every_public_name_is_there():
    for name in floatscope.__all__:
        assert getattr(floatscope, name) is not None
    assert set(floatscope.__all__) == {n for names in floatscope._WHERE.values() for n in names}


def test_files_are_short_and_say_what_they_are():
    for path in ROOT.rglob("*.py"):
        text = path.read_text()
        assert text.count("\n") <= 300, path
        assert ast.get_docstring(ast.parse(text)), path
