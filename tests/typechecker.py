"""beartype as the test run uses it: an int is a float, as everywhere else in Python.

jaxtyping's import hook would bind the arguments of every call anew to compare shapes, and takes longer for
that than the work itself. So it does where an annotation names a shape, and beartype alone, which compiles
its checks once, does the rest.
"""

import inspect

import jaxtyping
from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))
with_shapes = jaxtyping.jaxtyped


def has_shape(annotation) -> bool:
    """The annotation is, or holds, an array with its shape; written as text, it may."""
    if isinstance(annotation, str):
        return True
    if isinstance(annotation, type) and issubclass(annotation, jaxtyping.AbstractArray):
        return True
    return any(map(has_shape, getattr(annotation, "__args__", ())))


def jaxtyped(fn=None, /, *, typechecker):
    """What the hook writes before every function and class."""
    if fn is None:
        return lambda fn: jaxtyped(fn, typechecker=typechecker)
    if inspect.isfunction(fn) and not any(map(has_shape, fn.__annotations__.values())):
        # Within another function it would be compiled again at every call.
        return fn if "<locals>" in fn.__qualname__ else check(fn)
    return with_shapes(fn, typechecker=typechecker)


jaxtyping.jaxtyped = jaxtyped
