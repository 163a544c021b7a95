"""Rooms in one direction, no cycle anywhere, names listed once; what imports by name is declared here."""

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import conftest
import pytest

import floatscope
from floatscope._lazy import listed

ROOT = Path(floatscope.__file__).parent
# From left to right; a file imports from rooms before its own, and from its own.
ROOMS = """
    errors untrusted atomic children glossary _lazy registry statistics sequences stats anchors models decode
    samplers attention interventions trace recording instrument plots measures engine tasks scenes studies
    report livepage harness cli
""".split()
# Looked up by name when asked for: a notebook shows a trace, a worker process makes its worker, another
# one applies chat templates, a family names its network, and a registry has its library offer its names.
BY_NAME = {
    "cli/outlines.py": {"floatscope.decode.samplers.base"},
    "models/families/encoders.py": {"floatscope.models.networks.encoders"},
    "models/families/llada2.py": {"floatscope.models.networks.llada2"},
    "registry.py": {
        "floatscope.decode.samplers",
        "floatscope.interventions.library",
        "floatscope.measures.library",
        "floatscope.models.families",
        "floatscope.studies.library",
    },
    "sequences/chat.py": {"floatscope.sequences.chat_process"},
    "trace/trace.py": {
        "floatscope.plots.heatmap",
        "floatscope.plots.pattern",
        "floatscope.report.embed",
    },
    "studies/planning.py": {"floatscope.studies.worker"},
}
FILES = sorted(ROOT.rglob("*.py"))


def dotted(path):
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {dotted(path): path for path in FILES}
PACKAGES = {name for name, path in MODULES.items() if path.name == "__init__.py"}


def home(package, name):
    """The module that `from package import name` really needs."""
    if f"{package}.{name}" in MODULES:
        return f"{package}.{name}"
    if package in PACKAGES:
        for one, where, _ in listed(package):
            if one == name:
                return home(where, name)
    return package


def imports(path):
    """Every module of ours that a file imports, wherever the import stands."""
    here = dotted(path)
    package = here if path.name == "__init__.py" else here.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name.split(".")[0] == "floatscope")
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) + 1 - node.level]
            module = ".".join([*base, *filter(None, [node.module])]) if node.level else node.module
            if module.split(".")[0] != "floatscope":
                continue
            for alias in node.names:
                if alias.name == "*":
                    yield from (home(module, name) for name, _, _ in listed(module))
                else:
                    yield home(module, alias.name)


@cache
def graph():
    """What every module of ours imports; made where a test asks, not in every process that lists tests."""
    return {dotted(path): set(imports(path)) - {dotted(path)} for path in FILES}


def room(module):
    return [*module.split("."), "__init__"][1]


def test_the_front_door_holds_nothing_else():
    top = {path.stem for path in ROOT.glob("*.py")}
    assert top == {
        *("__init__", "errors", "untrusted", "atomic", "children", "glossary"),
        *("_lazy", "registry", "statistics", "instrument"),
        *("samplers", "anchors"),  # namespaces: lists of names
    }


def test_every_file_has_a_room():
    assert {room(module) for module in MODULES} - {"__init__"} == set(ROOMS)


def test_imports_go_one_way():
    for module, needed in graph().items():
        if module == "floatscope":  # lists the names of all rooms
            continue
        for other in needed:
            assert ROOMS.index(room(other)) <= ROOMS.index(room(module)), f"{module} → {other}"


def test_no_module_needs_itself():
    """No cycle, imports inside functions and for type checkers counted."""
    done, path = set(), []

    def visit(module):
        assert module not in path, " → ".join([*path[path.index(module) :], module])
        if module in done:
            return
        path.append(module)
        for other in sorted(graph()[module]):
            visit(other)
        done.add(path.pop())

    for module in graph():
        visit(module)


def test_what_is_imported_by_name_is_declared():
    found = {}
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                name = re.fullmatch(r"(floatscope(?:\.\w+)+)(?::\w+)?", node.value)
                if name and name[1] in MODULES:
                    found.setdefault(str(path.relative_to(ROOT)), set()).add(name[1])
    assert found == BY_NAME


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_every_listed_name_is_there(package):
    for name, where, attribute in listed(package):
        module = __import__(where, fromlist=["_"])
        assert not attribute or hasattr(module, attribute), f"{package}.{name}"
        # Importing a module of that name would put the module in the name's place.
        assert not attribute or f"{package}.{name}" not in MODULES, f"{package}.{name}"


def test_tiers_name_test_files_that_are_there_and_each_once():
    tests = Path(__file__).parent
    named = [name for names in conftest.TIERS.values() for name in names]
    assert len(set(named)) == len(named)
    there = {path.stem.removeprefix("test_") for path in tests.rglob("test_*.py")}
    assert {*named} <= there
    tiers = {conftest.tier(path) for path in tests.rglob("test_*.py")}
    assert tiers == {"unit", "browser", "attack", "slow"}


def test_files_say_what_they_are():
    for path in FILES:
        assert ast.get_docstring(ast.parse(path.read_text())), path


WITHOUT_TORCH = {
    "the command line's help": "from floatscope.cli import app",
    "a saved trace": "import floatscope as fs; fs.Trace.load",
    "a prompt": "import floatscope as fs; fs.Prompt.rag('Who?', ['Me.'])",
    "all names": "import floatscope; dir(floatscope), floatscope.__all__",
    "measures": "from floatscope.measures import MEASURES; [MEASURES[n] for n in MEASURES]",
    "families": "from floatscope.models import FAMILIES; [f.about for f in FAMILIES.values()]",
    "studies": "from floatscope.studies import STUDIES; [STUDIES[n] for n in STUDIES]",
    "the report": "import floatscope.report.build, floatscope.report.serve",
    "the live page's server": "import floatscope.livepage.serve",
    "the world": "from floatscope.tasks.world import World; World()",
}


def test_what_needs_no_torch_does_not_import_it():
    """One process each would take longer than all else here: they run in one, from light to heavy."""
    lines = ["import sys"]
    for name, code in WITHOUT_TORCH.items():
        lines += [code, f"assert 'torch' not in sys.modules, {name!r}"]
    subprocess.run([sys.executable, "-c", "\n".join(lines)], check=True)
