"""Store finished runs while the server is running, each as a trace in a temporary folder.

The number of runs and their total size are limited. The oldest runs are removed first, and the page is told
which runs were removed. A run is kept even if the worker that computed it ends.
"""

import shutil
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from ..report.answers import Refused
from ..report.catalogue import Catalogue
from ..trace import Trace
from .scratch import Scratch

MOST_RUNS, MOST_BYTES = 64, 2_000_000_000


@dataclass(frozen=True)
class RunInfo:
    """The description of a finished run, whose trace is stored at `path`."""

    run: str
    model: str  # its id on this page
    spec: str
    options: Mapping[str, Any]
    name: str
    fingerprint: str
    title: str
    prompt: Mapping[str, Any]
    sampler: Mapping[str, Any]
    touches: list[dict[str, Any]]  # each with its step and a sentence
    code: Mapping[str, Any]
    origin: Mapping[str, Any] | None
    answer: str
    steps: int
    seconds: float
    bytes: int
    path: Path
    control: bool = False  # of the untrained control
    at: float = field(default_factory=time.time)

    def job(self) -> dict[str, Any]:
        """Return the fields of a job with which a worker can recompute a step of the run."""
        touches = [without_text(touch) for touch in self.touches]
        sampler = {key: self.sampler[key] for key in ("name", "settings")}
        return {
            "prompt": dict(self.prompt),
            "sampler": sampler,
            "touches": touches,
            "path": str(self.path),
        }

    def require_trained(self) -> None:
        """Raise Refused if this is a run of the untrained control instead of the model itself."""
        if self.control:
            raise Refused(
                *(400, "usage", f"{self.run} is of the untrained control, which is only compared"),
                "Choose the run that it is compared with.",
            )

    def state(self) -> dict[str, Any]:
        """Return the page state of this run alone, for its address; a branch is given with all its edits."""
        job = self.job()
        run = {"fingerprint": self.fingerprint, "model": self.spec, "prompt": job["prompt"]}
        run |= {"sampler": job["sampler"], "touches": job["touches"], "from": None}
        return {"v": 1, "runs": [run], "view": {}}

    def row(self) -> dict[str, Any]:
        """Return the run's row in the page's history, with its fields and its state."""
        names = (
            "run model name fingerprint title prompt sampler touches answer steps seconds at bytes"
        )
        shown = {name: getattr(self, name) for name in (*names.split(), "control")}
        return {**shown, "from": self.origin, "state": self.state()}


def without_text(touch: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in touch.items() if key != "text"}


class Runs:
    """The finished runs of a live page."""

    def __init__(self, title: str, most: int = MOST_RUNS, most_bytes: int = MOST_BYTES) -> None:
        self.most, self.most_bytes, self.dropped = most, most_bytes, 0
        self._scratch: Scratch | None = None
        self._kept: OrderedDict[str, RunInfo] = OrderedDict()
        self._numbers = count(1)
        self.catalogue = Catalogue(title, [], self.trace)

    def new(self) -> tuple[str, Path]:
        """Return the name of a new run, and the path for its trace."""
        run = f"r{next(self._numbers)}"
        return run, self.folder / f"{run}.zarr"

    @property
    def folder(self) -> Path:
        """The private folder for traces, created on first use."""
        if self._scratch is None:
            self._scratch = Scratch()
        return self._scratch.path

    def __getitem__(self, run: str) -> RunInfo:
        return self._kept[run]

    def __len__(self) -> int:
        return len(self._kept)

    def trace(self, run: str) -> Trace:
        """Open a run's trace; its arrays are read on demand."""
        return Trace.load(self._kept[run].path, lazy=True)

    def keep(self, run: RunInfo) -> list[str]:
        """Store a run, and return the names of the runs that were removed for it."""
        self._kept[run.run] = run
        removed = []
        while len(self._kept) > 1 and (len(self) > self.most or self.bytes > self.most_bytes):
            removed.append(next(iter(self._kept)))
            self.forget(removed[-1:])
        self.dropped += len(removed)
        self.catalogue.ids = list(self._kept)
        return removed

    def forget(self, runs: Iterable[str]) -> list[str]:
        """Remove the named runs, and return the names of those that existed."""
        names = [run for run in dict.fromkeys(runs) if run in self._kept]
        for run in names:
            shutil.rmtree(self._kept.pop(run).path, ignore_errors=True)
        self.catalogue.ids = list(self._kept)
        return names

    @property
    def bytes(self) -> int:
        """Total size of the stored runs, in bytes."""
        return sum(run.bytes for run in self._kept.values())

    def history(self) -> dict[str, Any]:
        rows = [run.row() for run in reversed(self._kept.values())]
        totals = {"runs": len(self), "bytes": self.bytes}
        return {"runs": rows, "dropped": self.dropped, "kept": totals}

    def close(self) -> None:
        if self._scratch is not None:
            self._scratch.close()
