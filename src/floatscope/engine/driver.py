"""Run a plan and store its results. With every engine, only the driver writes shards.

Finished shards are kept, and damaged shards are computed again. The same plan gives the same bytes for any
engine, number of workers, order of shards and number of interruptions.
"""

import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .. import atomic
from ..errors import FloatscopeError, RunError, UsageError
from . import manifest
from .directory import Event, Run
from .hanging import PATIENCE, SHARD_LIMIT, Limits
from .interrupt import interrupt_once
from .jobs import Done, Engine, Failed, Job, JobQueue, Lost, Report
from .local import LocalWorkers, run_in_process
from .plan import Plan
from .progress import Meter, RunProgress
from .ray_engine import RayWorkers
from .shards import sources_of
from .work import error_of


@dataclass(frozen=True)
class Summary:
    """The result of `execute`: how many shards were `reused` from earlier starts, and how many `computed`."""

    directory: Path
    shards: int
    reused: int
    computed: int
    redone: dict[str, str]  # shard → why its stored file was rejected
    left_out: list[dict[str, Any]]
    seconds: float


def execute(
    plan: Plan,
    directory: Path | str,
    *,
    engine: str = "local",
    workers: int = 1,
    address: str | None = None,
    gpus: float | None = 0,
    devices: int = 0,
    patience: float = PATIENCE,
    shard_limit: float | None = None,
    resume: bool = True,
    overwrite: bool = False,
    about: dict[str, Any] | None = None,
    sources: Mapping[str, str] | None = None,
    files: Mapping[str, bytes] | None = None,
    progress: Callable[[RunProgress], None] | None = None,
    on_event: Callable[[Event], None] | None = None,
) -> Summary:
    """Run every unfinished shard of a plan, then write the manifest; a finished run is left unchanged.

    Args:
        about: Versions and seeds, written to run.json. Settings that define another run belong in the
            request.
        sources: Checksums of files and models that the run is computed from, if they are known before the
            start. Workers report further checksums with each shard. A changed source is an error.
        files: Files to write into the directory before the first shard; their checksums are pinned too.
        gpus: GPUs per Ray worker; None means one if the cluster has GPUs.
        address: Address of a Ray cluster.
        devices: Number of GPUs of this machine for several local workers; each worker is assigned one GPU,
            in turn.
        patience: Seconds without a message after which a worker is replaced and its shard retried.
        shard_limit: Seconds for one shard after which its worker is replaced; None means six hours. A
            single local worker runs in this process without supervision; with a limit it runs in a separate
            process.
    """
    crew = _engine(engine, workers, address, gpus, devices, patience, shard_limit)
    started = time.monotonic()
    run = Run(directory)
    run.listener = on_event
    with interrupt_once(), run.claim(plan, resume=resume, overwrite=overwrite, about=about or {}):
        sidecars, redo = run.survey(plan)
        for info in sidecars.values():
            run.pin(info["sources"])
        run.pin(sources or {})
        for name, data in (files or {}).items():
            run.write_pinned(name, data)
        run_context: dict[str, Any] = {
            "directory": os.path.abspath(run.directory),
            "sources": run.sources,
        }
        # workers of one machine, which share its cores; Ray limits each worker itself
        run_context["workers"] = workers if engine == "local" else 1
        plan = replace(plan, context={**plan.context, **run_context})
        reused = len(sidecars)
        driver = _Driver(run, plan, sidecars, progress)
        if reused < len(plan.shards):
            (run.directory / "manifest.json").unlink(missing_ok=True)
            run.note("started", engine=engine, workers=workers, kept=reused, of=len(plan.shards))
            for shard, why in redo.items():
                run.note("redo", shard=shard, why=why)
            driver.drive(crew)
        driver.report()
        before = run.manifest() or {}
        if before.get("result") != manifest.result(plan, sidecars):
            run.note("finished", shards=len(sidecars), computed=len(sidecars) - reused)
            if (run.directory / "manifest.json").exists() and not before:
                run.note("rebuilt", what="manifest.json", why="it could not be read")
            atomic.write_json(
                run.directory / "manifest.json", manifest.compose(run, plan, sidecars)
            )
        run.forget_replaced()
    return Summary(
        directory=run.directory,
        shards=len(sidecars),
        reused=reused,
        computed=len(sidecars) - reused,
        redone=redo,
        left_out=manifest.left_out(plan, sidecars),
        seconds=time.monotonic() - started,
    )


def _engine(
    engine: str,
    workers: int,
    address: str | None,
    gpus: float | None,
    devices: int,
    patience: float,
    shard_limit: float | None,
) -> Engine:
    limits = Limits(patience, SHARD_LIMIT if shard_limit is None else shard_limit)
    if workers < 1:
        raise UsageError(f"workers = {workers}", "Use 1 or more.")
    if engine == "ray":
        return RayWorkers(workers, address, gpus, limits=limits)
    if engine != "local":
        raise UsageError(f"no engine {engine!r}", "Use local or ray.")
    if address is not None or gpus:
        raise UsageError("address and gpus are for Ray", "Use --engine ray, or leave them out.")
    alone = workers == 1 and shard_limit is None
    return run_in_process if alone else LocalWorkers(workers, limits, devices)


class _Driver:
    """A driver, which turns the reports of an engine into files, events and progress."""

    def __init__(
        self,
        run: Run,
        plan: Plan,
        sidecars: dict[str, dict[str, Any]],
        progress: Callable[[RunProgress], None] | None,
    ) -> None:
        self.run, self.plan, self.sidecars, self.progress = run, plan, sidecars, progress
        self.meter = Meter(len(plan.shards), already=len(sidecars))
        self.error: FloatscopeError | None = None
        keys = plan.keys()
        todo = [shard for shard in plan.shards if shard.id not in sidecars]
        self.queue = JobQueue(Job(shard.id, shard.spec, keys[shard.id]) for shard in todo)

    def drive(self, engine: Engine) -> None:
        """Run the remaining shards with an engine; after a failure, store shards in flight, then raise."""
        reports = engine(self.plan, self.queue, self)
        try:
            self.report()
            for report in reports:
                self._take(report)
                self.report()
        except KeyboardInterrupt:
            message = (
                f"stopped: {len(self.sidecars)} of {len(self.plan.shards)} shards are stored in "
                f"{self.run.directory}. Run it again with --resume, and without --overwrite, to "
                "continue."
            )
            self._note_if_possible("interrupted", message=message)
            raise KeyboardInterrupt(message) from None
        except FloatscopeError as error:
            self._note_if_possible("stopped", error=str(error))
            raise
        finally:
            reports.close()
        if self.error:
            raise self.error

    def _take(self, report: Report) -> None:
        if isinstance(report, Done):
            try:
                self._store(report)
            except KeyboardInterrupt:
                self._store(report)  # storing the shard again is cheaper than computing it again
                raise
        elif isinstance(report, Failed):
            self.meter.lose(report.shard)
            failure = report.failure
            self.run.note(
                "failed", shard=report.shard, error=failure.message, traceback=failure.traceback
            )
            self._fail(error_of(report.shard, failure, str(self.run.log)))
        elif isinstance(report, Lost):
            self.meter.lose(report.shard)
            self.run.note("lost", shard=report.shard, why=report.reason, times=report.times)
            if report.is_last:
                self._fail(
                    RunError(
                        f"shard {report.shard} was lost {report.times} times: {report.reason}",
                        "Its workers were killed, ran out of memory or hung: give it fewer workers, "
                        "smaller shards or more time (patience, shard_limit of --engine), then run it again "
                        "with --resume.",
                    )
                )
        else:
            self.run.note("waiting", why=report.reason)

    def _store(self, report: Done) -> None:
        if report.shard in self.sidecars:
            return
        try:
            sources = sources_of(report.data)
            if sources and not all(info["sources"] for info in self.sidecars.values()):
                raise RunError(
                    f"shards in {self.run.directory} have no record of their sources: no shards "
                    "are added",
                    "Choose another --out, or start again with --overwrite.",
                )
            self.run.pin(sources)
        except RunError as error:
            self.meter.lose(report.shard)
            self.run.note("refused", shard=report.shard, why=error.problem)
            self._fail(error)
            return
        try:
            info = self.run.shards.write(report.shard, report.data)
        except OSError as error:
            raise atomic.unwritable(self.run.shards.path(report.shard), error) from error
        self.sidecars[report.shard] = info
        self.meter.finish(report.shard, report.seconds)
        spent = round(report.seconds, 3)
        self.run.note("stored", shard=report.shard, sha256=info["sha256"], seconds=spent)

    def _fail(self, error: FloatscopeError) -> None:
        self.error = self.error or error
        self.queue.stop()

    def _note_if_possible(self, event: str, **details: Any) -> None:
        with suppress(RunError):  # on a full disk, the event cannot be written either
            self.run.note(event, **details)

    def begin(self, shard: str) -> None:
        self.meter.begin(shard)
        self.report()

    def tick(self, shard: str, completed: float, total: float) -> None:
        self.meter.tick(shard, completed, total)
        self.report()

    def report(self) -> None:
        if self.progress:
            self.progress(self.meter.state())
