"""Triton's interpreter, without what it does again at every call. What a kernel computes stays as it is.

Left alone, it puts its own functions into Triton's language at every call of a function, inside kernels too,
and writes its table of numpy's types anew for every operation: that was half of a kernel's time.
"""

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
