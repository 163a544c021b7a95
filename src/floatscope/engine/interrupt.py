"""Ctrl-C, pressed once or several times. The first one interrupts; it knows nothing of runs."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def once(*, to_the_end: bool = False) -> Iterator[None]:
    """The first Ctrl-C interrupts; more of them are ignored while what was begun is put in order.

    `to_the_end`: after an interrupt the program ends, and they are ignored until it has.
    """
    here = threading.current_thread() is threading.main_thread()
    if not here or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield  # someone else's to decide, who may be ourselves
        return
    interrupted = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal interrupted
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        interrupted = True
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        if not (interrupted and to_the_end):
            signal.signal(signal.SIGINT, signal.default_int_handler)
