"""Find times in test code that a busy machine can exceed: a patience, a timeout, a limit, a sleep.

A time is short below a minute. It is allowed where the clock is controlled: in a function that names one
(an argument, a fixture or a variable with "clock" in its name), and in `waiting.py`, which polls.
"""

import ast
import re
from collections.abc import Iterator
from itertools import pairwise

SHORT = 60.0  # seconds
TIME = re.compile(r"patience|timeout|deadline|shard_limit|seconds|delay", re.I)
FLAG = re.compile(r"--(?:patience|shard-limit|timeout)")
ENGINE = r"(?:local|ray)[^ ]*,(?:patience|shard_limit)="  # as --engine is written
FLAG_WITH_VALUE = re.compile(rf"(?:{FLAG.pattern}[ =]|{ENGINE})([\d.]+)")
FIRST_ARGUMENT = {"wait", "join", "result", "settimeout", "alarm"}  # of methods: seconds
SLEEPS = {"sleep", "wait_for_timeout"}
# Methods of Playwright, which count in milliseconds.
BROWSER = re.compile(
    r"^(to_|not_to_|wait_for_|set_default_|launch|goto|reload|click|fill|press|hover|set_options)"
)


def violations(source: str, where: str) -> list[str]:
    """Return "file:line: what is short" for each short time in the source."""
    tree = ast.parse(source)
    return [f"{where}:{line}: {what}" for line, what in _Finder(tree).found()]


class _Finder:
    def __init__(self, tree: ast.Module, first_line: int = 0) -> None:
        self.tree, self.first_line = tree, first_line
        self.numbers = dict(_constants(tree))
        self.parents = {
            child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)
        }

    def found(self) -> Iterator[tuple[int, str]]:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield from self._text(node)
            for what in self._short(node):
                if not self._controlled(node):
                    yield self.first_line + node.lineno, what

    def _short(self, node: ast.AST) -> Iterator[str]:
        if isinstance(node, ast.Call):
            yield from self._call(node)
            yield from self._words(node.args)
        elif isinstance(node, ast.List | ast.Tuple):
            yield from self._words(node.elts)
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                yield from self._assigned(target, node.value)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from self._defaults(node.args)
        elif isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and TIME.search(str(key.value)):
                    yield from self._said(str(key.value), value)
        elif isinstance(node, ast.alias) and node.name == "expect":
            yield "expect of Playwright, which waits for 5 s: use `until`"

    def _call(self, node: ast.Call) -> Iterator[str]:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        name = node.func.id if isinstance(node.func, ast.Name) else name
        unit = 1e-3 if BROWSER.match(name) else 1.0
        for keyword in node.keywords:
            if keyword.arg and TIME.search(keyword.arg):
                yield from self._said(keyword.arg, keyword.value, unit)
        if name in SLEEPS and node.args:
            # An argument of `until` is a poll: the limit is that of `until`.
            if not self._polls(node):
                yield from self._said(name, node.args[0], unit)
        elif (name in FIRST_ARGUMENT or TIME.search(name)) and node.args:
            yield from self._said(name, node.args[0], unit)
        if name == "setattr":
            for before, value in pairwise(node.args):
                if isinstance(before, ast.Constant) and TIME.search(str(before.value)):
                    yield from self._said(str(before.value), value)

    def _words(self, nodes: list[ast.expr]) -> Iterator[str]:
        """Look for a flag of the command line and the value after it."""
        for flag, value in pairwise(nodes):
            if isinstance(flag, ast.Constant) and FLAG.fullmatch(str(flag.value)):
                yield from self._said(flag.value, value)

    def _assigned(self, target: ast.expr, value: ast.expr) -> Iterator[str]:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            for one, other in zip(target.elts, value.elts, strict=False):
                yield from self._assigned(one, other)
        elif isinstance(target, ast.Attribute) and TIME.search(target.attr):
            yield from self._said(target.attr, value)

    def _defaults(self, given: ast.arguments) -> Iterator[str]:
        positional = [*given.posonlyargs, *given.args]
        placed = positional[len(positional) - len(given.defaults) :]
        for argument, value in zip(
            [*placed, *given.kwonlyargs], [*given.defaults, *given.kw_defaults], strict=True
        ):
            if value is not None and TIME.search(argument.arg):
                yield from self._said(argument.arg, value)

    def _said(self, name: str, value: ast.expr, unit: float = 1.0) -> Iterator[str]:
        """Report a number below the limit. Zero waits for nothing, however busy the machine is."""
        number = _number(value, self.numbers)
        if number is not None and 0 < number * unit < SHORT:
            yield f"{name} of {number * unit:g} s"

    def _text(self, node: ast.Constant) -> Iterator[tuple[int, str]]:
        """Text that is a command line, or a program."""
        line = self.first_line + node.lineno
        for value in FLAG_WITH_VALUE.findall(node.value):
            if float(value) < SHORT and not self._controlled(node):
                yield line, f"{node.value.strip()!r}"
        if "\n" in node.value and "(" in node.value:
            try:
                program = ast.parse(node.value)
            except SyntaxError:
                return
            yield from _Finder(program, line - 1).found()

    def _polls(self, node: ast.AST) -> bool:
        """Tell whether a call is inside the arguments of `until`."""
        return any(
            isinstance(outer, ast.Call) and ast.unparse(outer.func).split(".")[-1] == "until"
            for outer in self._outer(node)
        )

    def _controlled(self, node: ast.AST) -> bool:
        functions = [
            outer
            for outer in (node, *self._outer(node))
            if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef)
        ]
        return any(map(_names_a_clock, functions))

    def _outer(self, node: ast.AST) -> Iterator[ast.AST]:
        while node := self.parents.get(node):
            yield node


def _names_a_clock(function: ast.AST) -> bool:
    names = {
        getattr(node, field, None) for node in ast.walk(function) for field in ("id", "arg", "attr")
    }
    return any(isinstance(name, str) and "clock" in name.lower() for name in names)


def _constants(tree: ast.Module) -> Iterator[tuple[str, float]]:
    """Numbers with a name, of the module and of its functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            number = _number(node.value, {})
            if number is not None:
                yield node.targets[0].id, number


def _number(node: ast.expr, named: dict[str, float]) -> float | None:
    """The value of a number, a name for one, or a sum or product of them; else None."""
    if isinstance(node, ast.Constant):
        try:
            return None if isinstance(node.value, bool) else float(node.value)
        except (TypeError, ValueError):
            return None
    if isinstance(node, ast.Name):
        return named.get(node.id)
    if isinstance(node, ast.BinOp):
        left, right = (_number(side, named) for side in (node.left, node.right))
        try:
            return (
                None if left is None or right is None else _OPERATIONS[type(node.op)](left, right)
            )
        except (KeyError, ZeroDivisionError):
            return None
    return None


_OPERATIONS = {
    ast.Add: float.__add__,
    ast.Sub: float.__sub__,
    ast.Mult: float.__mul__,
    ast.Div: float.__truediv__,
}
