"""Check the types and shapes in the package's annotations, in tests alone.

jaxtyping's own import hook binds the arguments of each call anew and checks them twice, which doubles the
time of decoding tests. Here beartype compiles one check for each function. A function whose annotations name
sizes runs in a context of jaxtyping, in which a letter stands for one size throughout the call.
"""

import ast
import dataclasses
import functools
import inspect
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder, SourceFileLoader
from types import SimpleNamespace
from typing import Any, Literal, get_args, get_origin, get_type_hints

import jaxtyping
from beartype import BeartypeConf, beartype

_beartype = beartype(conf=BeartypeConf(is_pep484_tower=True))  # an int is a float
_NAME = "__check_shapes__"  # of the decorator, in every module of the package


def checked(target):
    """Return a function, or a dataclass, that checks what it is called with and what it returns."""
    if inspect.isclass(target):
        if dataclasses.is_dataclass(target) and "__init__" in vars(target):
            target.__init__ = checked(target.__init__)
        return target
    hints = {name: _resolve(hint, target) for name, hint in target.__annotations__.items()}
    shapes = any(map(_has_shape, hints.values()))
    if not shapes and "<locals>" in target.__qualname__:
        return target  # it would be compiled again whenever the function around it is called
    target.__annotations__ = hints
    compiled = _beartype(target)
    if not shapes:
        return compiled

    @functools.wraps(target)
    def call(*args, **kwargs):
        with jaxtyping.jaxtyped("context"):
            return compiled(*args, **kwargs)

    return call


def install():
    """Check all modules of the package that are imported from here on."""
    sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] != "floatscope":
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


class _Loader(SourceFileLoader):
    def exec_module(self, module):
        setattr(module, _NAME, checked)
        super().exec_module(module)

    def get_code(self, fullname):
        """Compile the source, with no bytecode file: that of the unchecked module has the same name."""
        return self.source_to_code(self.get_data(self.path), self.path)

    def source_to_code(self, data, path, *, _optimize=-1):
        tree = ast.parse(data)
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                node.decorator_list.insert(0, _decorator(node))
            elif isinstance(node, ast.FunctionDef) and not _is_kernel(node):
                node.decorator_list.append(_decorator(node))
        return super().source_to_code(tree, path, _optimize=_optimize)


def _decorator(node):
    return ast.copy_location(ast.Name(_NAME, ast.Load()), node)


def _is_kernel(node):
    """Triton reads the source of a kernel: nothing may be wrapped around it."""
    return any(ast.unparse(decorator).endswith(".jit") for decorator in node.decorator_list)


def _resolve(hint, function):
    """Return what a quoted annotation stands for; anything, where the name is for type checkers alone."""
    if not isinstance(hint, str):
        return hint
    holder = SimpleNamespace(__annotations__={"hint": hint})
    try:
        return get_type_hints(holder, function.__globals__)["hint"]
    except NameError:
        return Any


def _has_shape(hint):
    if get_origin(hint) is Literal:
        return False
    if isinstance(hint, type) and issubclass(hint, jaxtyping.AbstractArray):
        return True
    return any(map(_has_shape, get_args(hint)))
