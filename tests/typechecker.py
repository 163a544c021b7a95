"""beartype as the test run uses it: an int is a float, as everywhere else in Python.

jaxtyping's own decorator binds the arguments of every call anew and checks them twice, which takes longer
than the work itself. beartype compiles its checks once; for annotations that name a shape it needs a place
where the sizes of one call are remembered, and no more.
"""

import dataclasses
import functools
import inspect
from types import SimpleNamespace
from typing import Any, get_type_hints

import jaxtyping
from beartype import BeartypeConf, beartype
from jaxtyping._storage import pop_shape_memo, push_shape_memo

check = beartype(conf=BeartypeConf(is_pep484_tower=True))
theirs = jaxtyping.jaxtyped


def has_shape(annotation) -> bool:
    """The annotation is, or holds, an array with its shape; written as text, it may."""
    if isinstance(annotation, str):
        return True
    if isinstance(annotation, type) and issubclass(annotation, jaxtyping.AbstractArray):
        return True
    return any(map(has_shape, getattr(annotation, "__args__", ())))


def resolved(hint, fn):
    """What an annotation that is written as text stands for; anything, where that is not known yet."""
    try:
        return get_type_hints(
            SimpleNamespace(__annotations__={"x": hint}), fn.__globals__, None, True
        )["x"]
    except Exception:
        return Any


def with_shapes(fn):
    """Checked, and a letter stands for one size in all annotations of a call."""
    written = fn.__annotations__
    fn.__annotations__ = {name: resolved(hint, fn) for name, hint in written.items()}
    checked = check(fn)
    fn.__annotations__ = written

    @functools.wraps(fn)
    def call(*args, **kwargs):
        push_shape_memo({})
        try:
            return checked(*args, **kwargs)
        finally:
            pop_shape_memo()

    return call


def jaxtyped(fn=None, /, *, typechecker):
    """What the hook writes before every function and class."""
    if fn is None:
        return lambda fn: jaxtyped(fn, typechecker=typechecker)
    if inspect.isclass(fn):
        if dataclasses.is_dataclass(fn) and "__init__" in vars(fn):
            fn.__init__ = jaxtyped(fn.__init__, typechecker=typechecker)
        return fn
    if not inspect.isfunction(fn):
        return theirs(fn, typechecker=typechecker)
    if any(map(has_shape, fn.__annotations__.values())):
        return with_shapes(fn)
    # Within another function it would be compiled again at every call.
    return fn if "<locals>" in fn.__qualname__ else check(fn)


jaxtyping.jaxtyped = jaxtyped
