"""Errors that say what is wrong and what to do about it.

Every error that a user can cause is a FloatscopeError; the command line prints its text without a
traceback and ends with the class's exit code. Anything else that escapes is a bug of ours.
"""


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
    """The seam saw fewer or more attention calls than the model has layers."""

    exit_code = 5


class RunError(FloatscopeError):
    """A run that cannot start, write or go on; what it finished is kept."""

    exit_code = 6
