"""Triton's interpreter, without what it does again at every call. What a kernel computes stays as it is.

Left alone, it puts its own functions into Triton's language at every call of a function, inside kernels too,
writes its table of numpy's types anew for every operation, and makes objects of the shape of every result:
that was more than half of a kernel's time.
"""

import math
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from triton import language
from triton.runtime import interpreter


@contextmanager
def quick():
    both = SimpleNamespace(__globals__={"tl": language, "core": language.core})
    scope = interpreter._patch_lang(both)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter, "_patch_lang", lambda fn: interpreter._LangPatchScope())
        patch.setattr(interpreter, "_get_np_dtype", _remembered(interpreter._get_np_dtype))
        patch.setattr(language.core.tensor, "__init__", _with_known_shapes(language.core))
        known = _with_known_fields(language.core.block_type.__init__)
        patch.setattr(language.core.block_type, "__init__", known)
        try:
            yield
        finally:
            scope.restore()


@contextmanager
def without_overflow_checks():
    """Each sum and product of indices is otherwise computed again in 64 bits and compared."""
    unchecked = interpreter.InterpreterOptions(sanitize_overflow=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter.interpreter_builder, "options", unchecked)
        yield


def _remembered(find):
    known = {}

    def look_up(kind):
        if kind.name not in known:
            known[kind.name] = find(kind)
        return known[kind.name]

    return look_up


def _with_known_shapes(core):
    """How a tensor is made: one shape is one object, which nobody changes."""
    known = {}

    def begin(self, handle, type):
        self.handle, self.type, self.dtype = handle, type, type.scalar
        sizes = (*type.shape,) if type.is_block() else ()
        if sizes not in known:
            shape = core.tuple([core.constexpr(size) for size in sizes])
            known[sizes] = core.constexpr(math.prod(sizes)), shape
        self.numel, self.shape = known[sizes]

    return begin


def _with_known_fields(made):
    """How a type of blocks is made: one of the same elements and sizes has the same fields."""
    known = {}

    def begin(self, element_ty, shape):
        kind = element_ty.name, *(getattr(size, "value", size) for size in shape)
        if kind not in known:
            made(self, element_ty, shape)
            known[kind] = dict(vars(self))
        vars(self).update(known[kind])

    return begin
