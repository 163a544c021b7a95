"""Ctrl-C, pressed once or several times. The first one interrupts; it knows nothing of runs."""

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


@contextmanager
def once(*, to_the_end: bool = False) -> Iterator[None]:
    """The first Ctrl-C interrupts; more of them are ignored while what was begun is put in order.

    `to_the_end`: after an interrupt the program ends, and they are ignored until it has.
    """
    here = threading.current_thread() is threading.main_thread()
    if not here or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
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
    """A Ctrl-C that comes in the very moment in which it begins to be ignored is ignored, and Python prints
    an error that says so."""

    def unraisable(happened: Any) -> None:
        error = happened.exc_value
        if not (isinstance(error, OSError) and "race condition" in str(error)):
            report(happened)

    return unraisable
