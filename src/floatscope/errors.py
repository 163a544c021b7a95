"""Errors that state a problem and its remedy.

Every error that a user can cause is a FloatscopeError. The command line prints the error's text without a
traceback and exits with the exit code of the error's class. Any other exception that escapes is a bug in
Floatscope.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches


class FloatscopeError(Exception):
    """Base class of the errors that a user can cause and repair.

    Args:
        problem: what is wrong, and what was expected instead.
        remedy: how to fix it; empty by default.
    """

    exit_code = 1

    def __init__(self, problem: str, remedy: str = "") -> None:
        super().__init__(f"{problem.rstrip('.')}. {remedy}".strip() if remedy else problem)
        self.problem, self.remedy = problem, remedy


class UsageError(FloatscopeError, ValueError):
    """Raised for an invalid prompt, sampler, option or other argument."""

    exit_code = 2


class ModelError(FloatscopeError):
    """Raised if a checkpoint cannot be loaded or fails its self-check."""

    exit_code = 3


class TraceError(FloatscopeError):
    """Raised if a trace cannot be written or read."""

    exit_code = 4


class CaptureError(FloatscopeError):
    """Raised if the number of attention calls in a forward differs from the number of layers."""

    exit_code = 5


class RunError(FloatscopeError):
    """Raised if a run cannot start, write its results or continue. Finished work is kept."""

    exit_code = 6


def closest(name: str, names: Iterable[str]) -> str | None:
    """Return the known name closest in spelling to a misspelt name, or None if none is close."""
    by_lower = {candidate.lower(): candidate for candidate in names}
    close = get_close_matches(name.lower()[:100], by_lower, n=1, cutoff=0.7)
    return by_lower[close[0]] if close else None


def did_you_mean(name: str, names: Iterable[str], spell: Callable[[str], str] = repr) -> str:
    """Return "Did you mean …?" with the closest of `names`, or "" if none is close."""
    match = closest(name, names)
    return f"Did you mean {spell(match)}?" if match else ""


class OutOfMemory(RunError, MemoryError):
    """Raised if a model or a trace needs more memory than the machine has."""


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether an error reports a lack of memory, by its class or (torch on a CPU) by its message."""
    words = str(error).lower()
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or (
            isinstance(error, RuntimeError)
            and ("can't allocate memory" in words or "not enough memory" in words)
        )
    )


@contextmanager
def enough_memory() -> Iterator[None]:
    """Convert an out-of-memory error of a CPU to OutOfMemory, with a remedy; re-raise that of a GPU."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        # studies then reduce their batch size
        gpu = type(error).__name__ == "OutOfMemoryError"
        if gpu or isinstance(error, FloatscopeError) or not is_out_of_memory(error):
            raise
        raise OutOfMemory(
            f"out of memory: {' '.join(str(error).split())[:200] or type(error).__name__}",
            "Use a smaller batch_size, a shorter length, fewer statistics (keep=['mass']) or steps, a "
            "smaller model or dtype='bfloat16'; trace(..., to=PATH) writes each step to disk.",
        ) from error


@contextmanager
def foreign(kind: type[FloatscopeError], problem: str, remedy: str) -> Iterator[None]:
    """Convert any exception of a library that reads untrusted files to an error of class `kind`.

    Such libraries do not document their exceptions. Libraries written in Rust may panic, which raises an
    exception that is not a subclass of Exception. Interrupts of this process (Ctrl-C) pass through.
    """
    try:
        yield
    except FloatscopeError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        reason = (
            f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
            .encode("utf-8", "replace")
            .decode()
        )
        raise kind(f"{problem} ({reason.removesuffix(': ')})", remedy) from error
