"""beartype as the test run uses it: an int is a float, as everywhere else in Python.

jaxtyping's own decorator binds the arguments of every call anew and checks them twice, which takes longer
than the work itself. beartype compiles its checks once; for annotations that name a shape it needs a place
where the sizes of one call are remembered, and no more. And what was checked is not checked again: of a
call, types, dtypes and shapes decide, so that one alike in all of these, with a result alike, is right too.
"""

import dataclasses
import functools
import inspect
from collections.abc import Mapping
from enum import Enum
from types import SimpleNamespace
from typing import Any, Literal, Protocol, get_args, get_origin, get_type_hints

import jaxtyping
import numpy as np
import torch
from beartype import BeartypeConf, beartype
from jaxtyping._storage import pop_shape_memo, push_shape_memo

check = beartype(conf=BeartypeConf(is_pep484_tower=True))
theirs = jaxtyping.jaxtyped


def has_shape(annotation) -> bool:
    """The annotation is, or holds, an array with its shape; written as text, it may."""
    if get_origin(annotation) is Literal:  # whose texts are values
        return False
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


UNKNOWN = object()  # what it is cannot be told at a glance: it is checked
ARRAY, ITSELF, SEVERAL, NAMED, TYPE = "an array", "itself", "several", "named", "its type"
FEW = 8  # of which all are looked at
Options = dict[str, Any]  # of which nothing but its keys is checked


class _Seen(dict):
    """By type, what of a value of that type a check sees."""

    def __missing__(self, t):
        if t in (torch.Tensor, np.ndarray):
            seen = ARRAY
        elif t in (str, bool) or issubclass(t, type | Enum):
            seen = ITSELF  # a text may be one of a few
        elif t in (tuple, list):
            seen = SEVERAL
        elif t is dict:
            seen = NAMED
        else:
            seen = UNKNOWN if issubclass(t, dict | set | frozenset | tuple | list) else TYPE
        self[t] = seen
        return seen


SEEN = _Seen()


def alike(values, options):
    """All that a check sees of several values, however deep: the same, the same answer. `options`: where
    there is a dictionary, it may hold anything under its names."""
    kinds = []
    for value in values:
        t = type(value)
        seen = SEEN[t]
        if seen is TYPE:
            kinds.append(t)
        elif seen is ARRAY:
            kinds += t, value.dtype, value.shape
        elif seen is ITSELF:
            kinds.append(value)
        elif seen is NAMED and options:
            kinds.append((t, *set(map(type, value))))
        elif seen is not SEVERAL or len(value) > FEW:
            return UNKNOWN
        else:
            inner = alike(value, options)
            if inner is UNKNOWN:
                return UNKNOWN
            kinds.append((t, inner))
    return tuple(kinds)


def has_items(annotation) -> bool:
    """The annotation is, or holds, a dictionary of which it says more."""
    if annotation == Options:
        return False
    kind = get_origin(annotation) or annotation
    mapping = isinstance(kind, type) and issubclass(kind, Mapping)
    return mapping or any(map(has_items, get_args(annotation)))


def giving(fn, box):
    """A function of the same parameters that returns what lies in the box."""
    parameters, kinds = inspect.signature(fn).parameters.values(), inspect.Parameter
    default = {f"_{p.name}": p.default for p in parameters if p.default is not kinds.empty}
    text = ""
    for p in parameters:
        if p.kind is kinds.KEYWORD_ONLY and "*" not in text:
            text += "*, "
        stars = {kinds.VAR_POSITIONAL: "*", kinds.VAR_KEYWORD: "**"}.get(p.kind, "")
        text += f"{stars}{p.name}{f'=_{p.name}' if f'_{p.name}' in default else ''}, "
    exec(f"def again({text}): return box[0]", default | {"box": box}, made := {})
    made["again"].__module__, made["again"].__qualname__ = fn.__module__, fn.__qualname__
    return made["again"]


def checked_by(hints, fn):
    """The function, checked by these annotations, whatever it was written with."""
    written, fn.__annotations__ = fn.__annotations__, hints
    checked = check(fn)
    fn.__annotations__ = written
    return checked


def with_shapes(fn, hints):
    """Checked, and a letter stands for one size in all annotations of a call."""
    checked = checked_by(hints, fn)
    box, seen, options = [], {}, not any(map(has_items, hints.values()))

    @functools.cache
    def only_result():
        again = giving(fn, box)
        again.__annotations__ = hints
        return check(again)

    def with_memo(function, args, kwargs):
        push_shape_memo({})
        try:
            return function(*args, **kwargs)
        finally:
            pop_shape_memo()

    @functools.wraps(fn)
    def call(*args, **kwargs):
        given = alike((*args, *kwargs.values()) if kwargs else args, options)
        if given is UNKNOWN:
            return with_memo(checked, args, kwargs)
        if kwargs:
            given += tuple(kwargs)
        before = seen.get(given)
        if before is None:
            result = with_memo(checked, args, kwargs)
            seen[given] = {alike((result,), options)}
            return result
        result = fn(*args, **kwargs)
        got = alike((result,), options)
        if got is UNKNOWN or got not in before:
            box[:] = [result]
            with_memo(only_result(), args, kwargs)
            before.add(got)
        return result

    return call


# Whether a class has what a protocol asks for is looked up once, not at every call: each look evaluates
# the properties it asks for.
_passed: set = set()
_asked = type(Protocol).__instancecheck__


def instance_of_protocol(cls, instance):
    if not cls.__module__.startswith("floatscope"):
        return _asked(cls, instance)
    place = cls, type(instance)
    if place not in _passed and _asked(cls, instance):
        _passed.add(place)
    return place in _passed


type(Protocol).__instancecheck__ = instance_of_protocol


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
    hints = fn.__annotations__
    if any(map(has_shape, hints.values())):
        hints = {name: resolved(hint, fn) for name, hint in hints.items()}
        if any(map(has_shape, hints.values())):
            return with_shapes(fn, hints)
    # Within another function it would be compiled again at every call.
    return fn if "<locals>" in fn.__qualname__ else checked_by(hints, fn)


jaxtyping.jaxtyped = jaxtyped
