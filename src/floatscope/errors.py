"""Errors that say what is wrong and what to do about it.

Every error that a user can cause is a FloatscopeError; the command line prints its text without a
traceback and ends with the class's exit code. Anything else that escapes is a bug of ours.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches


class FloatscopeError(Exception):
    """Something a user can act on: what is wrong, then the remedy."""

    exit_code = 1

    def __init__(self, what: str, remedy: str = "") -> None:
        super().__init__(f"{what.rstrip('.')}. {remedy}".strip() if remedy else what)
        self.what, self.remedy = what, remedy


class UsageError(FloatscopeError, ValueError):
    """A prompt, a sampler or an option that cannot work."""

    exit_code = 2


class ModelError(FloatscopeError):
    """A checkpoint that cannot be loaded, or that fails its self-check."""

    exit_code = 3


class TraceError(FloatscopeError):
    """A trace that cannot be written or read."""

    exit_code = 4


class CaptureError(FloatscopeError):
    """The attention hook saw fewer or more attention calls than the model has layers."""

    exit_code = 5


class RunError(FloatscopeError):
    """A run that cannot start, write or go on; what it finished is kept."""

    exit_code = 6


def closest(name: str, names: Iterable[str]) -> str | None:
    """Return the name that is spelled most like a misspelt one, or None if none is close."""
    by_lower = {candidate.lower(): candidate for candidate in names}
    close = get_close_matches(name.lower()[:100], by_lower, n=1, cutoff=0.7)
    return by_lower[close[0]] if close else None


def did_you_mean(name: str, names: Iterable[str], spell: Callable[[str], str] = repr) -> str:
    """Return "Did you mean …?" with the closest of `names`, or "" if none is close."""
    match = closest(name, names)
    return f"Did you mean {spell(match)}?" if match else ""


class OutOfMemory(RunError, MemoryError):
    """A model or a trace that does not fit into the memory of this machine."""


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether an error says that there is too little memory: on a CPU torch has no class for it."""
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
    """Say what to do where a CPU has too little memory; a GPU's own error passes through."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        # studies then trace fewer prompts together
        gpu = type(error).__name__ == "OutOfMemoryError"
        if gpu or isinstance(error, FloatscopeError) or not is_out_of_memory(error):
            raise
        raise OutOfMemory(
            f"out of memory: {' '.join(str(error).split())[:200] or type(error).__name__}",
            "Use a smaller batch_size, a shorter length, fewer statistics (keep=['mass']) or steps, a "
            "smaller model or dtype='bfloat16'; trace(..., to=PATH) writes each step as it is done.",
        ) from error


@contextmanager
def foreign(kind: type[FloatscopeError], what: str, remedy: str) -> Iterator[None]:
    """Around a library that reads what others wrote: whatever it raises is an error of `kind`.

    Such libraries promise no classes of exceptions, and those written in Rust end a panic with one
    that is not even an Exception. What this process itself is asked to do (Ctrl-C) passes through.
    """
    try:
        yield
    except FloatscopeError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        found = (
            f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
            .encode("utf-8", "replace")
            .decode()
        )
        raise kind(f"{what} ({found.removesuffix(': ')})", remedy) from error
