"""Let only the first of several presses of Ctrl-C interrupt the program."""

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


@contextmanager
def interrupt_once(*, to_the_end: bool = False) -> Iterator[None]:
    """Let the first Ctrl-C interrupt the `with` block, and ignore further presses during clean-up.

    With `to_the_end`, further presses are ignored until the program ends. Outside the main thread, or if
    there is another handler of Ctrl-C, nothing changes.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield  # another handler decides, possibly an outer call of this function
        return
    interrupted, report = False, sys.unraisablehook

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal interrupted
        interrupted = True
        sys.unraisablehook = _ignore_race(report)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        if not (interrupted and to_the_end):
            signal.signal(signal.SIGINT, signal.default_int_handler)
            sys.unraisablehook = report


def _ignore_race(report: Callable[[Any], object]) -> Callable[[Any], object]:
    """Return a hook for unraisable errors that ignores race conditions while the Ctrl-C handler is replaced.

    All other errors are passed to `report`.
    """

    def unraisable(details: Any) -> None:
        error = details.exc_value
        if not (isinstance(error, OSError) and "race condition" in str(error)):
            report(details)

    return unraisable
