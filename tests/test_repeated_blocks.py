"""No six lines of code stand in two places of the package."""

import ast
from collections import defaultdict
from pathlib import Path

import floatscope

ROOT = Path(floatscope.__file__).parent
LINES = 6


def code_lines(source):
    """Yield (number, line) without imports, docstrings, comments, blank lines and fields of classes."""
    passed_over = set()
    for node in ast.walk(ast.parse(source)):
        parts = [node] if isinstance(node, ast.Import | ast.ImportFrom) else []
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            parts += [node.body[0]] if ast.get_docstring(node, clean=False) is not None else []
        if isinstance(node, ast.ClassDef):
            parts += [part for part in node.body if isinstance(part, ast.AnnAssign)]
        for part in parts:
            passed_over.update(range(part.lineno, part.end_lineno + 1))
    for number, line in enumerate(source.splitlines(), 1):
        text = " ".join(line.split())
        if number not in passed_over and text and not text.startswith("#"):
            yield number, text


def repeated(sources):
    """Return where identical blocks stand: name and first line of each, by block."""
    places = defaultdict(list)
    for name, source in sources.items():
        lines = list(code_lines(source))
        for start in range(len(lines) - LINES + 1):
            block = tuple(text for _, text in lines[start : start + LINES])
            places[block].append((name, lines[start][0]))
    return {block: found for block, found in places.items() if len(found) > 1}


def test_no_block_of_six_lines_stands_twice():
    files = sorted(ROOT.rglob("*.py"))
    sources = {path.relative_to(ROOT).as_posix(): path.read_text() for path in files}
    assert not list(repeated(sources).values())


def test_a_repeated_block_is_found_whatever_its_indentation_and_comments():
    block = "a = 1\nb = 2\nc = 3\nd = 4\ne = 5\nf = 6\n"
    inner = "def g():\n" + "".join(f"    {line}\n    # x\n\n" for line in block.splitlines())
    assert [*repeated({"one": block, "two": inner}).values()] == [[("one", 1), ("two", 2)]]
    assert not repeated({"one": block, "two": block.replace("d = 4", "d = 5")})
