"""Show the progress of a command on standard error: a bar on a terminal, plain lines elsewhere.

A log or a pipe cannot show a bar that is redrawn. If standard error is not a terminal, a thread prints a line
every few seconds, even while a model is loading or one long step is computed.
"""

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from .app import err
from .console import spelled

LINE_SECONDS = 12.0  # so that a busy machine, too, prints a line every 15 s
_NAMED = 4  # names of running parts in one line


class Display:
    """A context manager that shows progress while the `with` block runs; `update` changes the progress.

    The remaining time is estimated from the completed share of the work, unless `update` is given
    `seconds_left`.
    """

    def __init__(
        self,
        doing: str,
        unit: str = "",
        total: float | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.doing, self.unit, self.total = doing, unit, total
        self.completed = 0.0
        self.running: Mapping[str, float] = {}
        self._seconds_left: float | None = None
        self._clock, self._started = clock, clock()
        # start of the work, and the amount completed before
        self._first: tuple[float, float] | None = None
        self._over = threading.Event()
        self._bar: Progress | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> "Display":
        if err.is_terminal and not err.is_dumb_terminal:
            self._bar = Progress(
                TextColumn("{task.description}", markup=False),  # names may look like markup
                BarColumn(),
                TextColumn("{task.fields[amount]}", markup=False),
                TimeElapsedColumn(),
                console=err,
                transient=self.total is None,
            )
            self._bar.add_task("", amount="")
            self._draw()
            self._bar.start()
        else:
            self._thread = threading.Thread(target=self._print_lines, daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        if self._bar is not None:
            self._bar.stop()

    def update(
        self,
        doing: str | None = None,
        *,
        completed: float | None = None,
        total: float | None = None,
        running: Mapping[str, float] | None = None,
        seconds_left: float | None = None,
    ) -> None:
        """Change what is shown; None keeps a value. `running` maps parts in progress to completed shares."""
        self.doing = self.doing if doing is None else doing
        self.total = self.total if total is None else total
        self.running = self.running if running is None else running
        if completed is not None:
            self.completed, self._seconds_left = completed, seconds_left
            if self._first is None:
                self._first = self._clock(), completed
        self._draw()

    def line(self) -> str:
        """Return the progress and the elapsed and remaining time as one line of plain text."""
        parts = [part for part in (self._amount(), self._running()) if part]
        parts.append(f"{_duration(self._clock() - self._started)} elapsed")
        if time_left := self._time_left():
            parts.append(time_left)
        return f"{self.doing}: {', '.join(parts)}"

    def _draw(self) -> None:
        if self._bar is not None:
            amount = ", ".join(part for part in (self._amount(), self._time_left()) if part)
            self._bar.update(
                self._bar.task_ids[0],
                description=self.doing,
                total=self.total,
                completed=self.completed + sum(self.running.values()),
                amount=amount,
            )

    def _print_lines(self) -> None:
        while not _wait(self._over, LINE_SECONDS):
            with suppress(OSError, ValueError):  # the log has no reader; continue the work
                print(spelled(self.line()), file=err.file, flush=True)

    def _amount(self) -> str:
        if self.total is None:
            return ""
        return f"{self.completed:g} of {self.total:g} {self.unit}".rstrip()

    def _running(self) -> str:
        named = [f"{name} {share:.0%}" for name, share in list(self.running.items())[:_NAMED]]
        unnamed = len(self.running) - len(named)
        return ", ".join([*named, f"{unnamed} more"] if unnamed else named)

    def _time_left(self) -> str:
        seconds = self._seconds_left
        if seconds is None and self.total is not None and self._first is not None:
            start, before = self._first
            if self.completed > before:
                passed = self._clock() - start
                seconds = passed / (self.completed - before) * max(self.total - self.completed, 0.0)
        return f"{_duration(seconds)} left" if seconds else ""


def _wait(over: threading.Event, seconds: float) -> bool:
    """Wait up to `seconds` for the event `over`; return whether it is set."""
    return over.wait(seconds)


def _duration(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds > 90 else f"{seconds:.0f} s"
