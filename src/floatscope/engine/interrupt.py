"""Handle Ctrl-C, pressed once or several times: only the first one interrupts."""

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


@contextmanager
def interrupt_once(*, to_the_end: bool = False) -> Iterator[None]:
    """Let the first Ctrl-C interrupt, and ignore further ones during the clean-up.

    `to_the_end`: the program ends after an interrupt, and further ones are ignored until then.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield  # someone else's to decide, who may be ourselves
        return
    interrupted, report = False, sys.unraisablehook

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal interrupted
        interrupted = True
        sys.unraisablehook = _but_for_races(report)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        if not (interrupted and to_the_end):
            signal.signal(signal.SIGINT, signal.default_int_handler)
            sys.unraisablehook = report


def _but_for_races(report: Callable[[Any], object]) -> Callable[[Any], object]:
    """Suppress Python's report of a Ctrl-C that arrives in the moment in which it starts to be ignored."""

    def unraisable(happened: Any) -> None:
        error = happened.exc_value
        if not (isinstance(error, OSError) and "race condition" in str(error)):
            report(happened)

    return unraisable
