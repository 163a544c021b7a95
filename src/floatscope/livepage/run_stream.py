"""Run a request, stream all events of the run, and store the run when it is finished."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import FloatscopeError
from ..report.answers import Refused, refused
from . import messages
from .answers import line_of
from .changed import changed
from .host import ModelHost
from .limits import LIMITS
from .messages import plain
from .prompts import settled
from .runs import RunInfo, Runs, without_text


def wanted_of(message: messages.Run, runs: Runs) -> dict[str, Any]:
    """Return a complete request: a branch takes model, prompt, sampler and edits from its origin.

    If the run or the step of the origin is unknown, KeyError is raised.
    """
    request = plain(message)
    if message.origin is None:
        return request
    origin = runs[message.origin.run]
    origin.require_trained()
    if message.model not in (None, origin.model):
        raise Refused(
            400, "usage", "a branch uses the model of its run", "Leave model out.", "model"
        )
    if message.origin.step >= origin.steps:
        raise KeyError(message.origin.step)
    before = origin.job()
    kept_touches = [
        touch
        for i, touch in enumerate(before["touches"])
        if i not in (message.origin.without or ())
    ]
    new_touches = [{"step": message.origin.step, **touch} for touch in request.get("touches", [])]
    touches = [*kept_touches, *new_touches]
    if len(touches) > LIMITS["touches"]:
        raise Refused(400, "limit", "too many touches", "Begin a new run.", "touches")
    inherited = {"prompt": before["prompt"], "sampler": before["sampler"]}
    return {**inherited, **request, "model": origin.model, "touches": touches}


def difference(runs: Runs, run: str, origin: str, step: int) -> dict[str, Any]:
    return changed(runs.trace(origin), runs.trace(run), origin, step)


async def streamed(
    host: ModelHost, runs: Runs, request: dict[str, Any]
) -> AsyncGenerator[bytes, None]:
    """Run a request and yield its events as JSON lines. Closing the generator ends the run."""
    run, path = runs.new()
    prompt = settled(request["prompt"], host.layout)
    touches, origin = request.get("touches", []), request.get("from")
    job = {"kind": "run", "prompt": prompt, "sampler": request.get("sampler")}
    job |= {"touches": touches, "path": str(path)}
    started: dict[str, Any] = {}
    try:
        async with aclosing(host.events(job)) as events:
            async for event in events:
                if isinstance(event, bytes):  # a step: it goes as it came
                    yield b'{"run":"%s",' % run.encode() + event[1:] + b"\n"
                    continue
                event = {**event, "run": run}
                event.pop("job", None)
                if event["event"] == "started":
                    described = zip(touches, event["touches"], strict=True)
                    touches = [{**without_text(touch), "text": text} for touch, text in described]
                    event |= {"model": host.id, "prompt": prompt, "touches": touches}
                    event["from"] = origin
                    started = event
                elif event["event"] == "done":
                    event |= await _kept(host, runs, path, started, event)
                yield line_of(event)
    except Exception as error:  # the page does not wait
        yield line_of({"event": "error", "run": run, "error": refused(error).error})


async def progressed(host: ModelHost, job: dict[str, Any]) -> AsyncGenerator[bytes, None]:
    """Run a job and yield its progress events as JSON lines. Closing the generator ends the job."""
    try:
        async with aclosing(
            host.events({**job, "prompt": settled(job["prompt"], host.layout)})
        ) as events:
            async for event in events:
                assert isinstance(event, dict)
                yield line_of({key: value for key, value in event.items() if key != "job"})
    except Exception as error:  # the page does not wait
        yield line_of({"event": "error", "error": refused(error).error})


async def controlled(
    hosts: Mapping[str, ModelHost], runs: Runs, origin: RunInfo
) -> AsyncGenerator[bytes, None]:
    """Trace the untrained control for a run, yield the events as JSON lines, and store the trace as a run."""
    host, (run, path) = hosts[origin.model], runs.new()
    job = {**origin.job(), "kind": "control", "to": str(path)}
    async with aclosing(progressed(host, job)) as lines:
        async for line in lines:
            event = json.loads(line)
            if event["event"] == "done":
                names = ("answer", "steps", "seconds", "bytes", "name", "fingerprint")
                summary = {name: event[name] for name in names}
                run_info = replace(
                    origin,
                    run=run,
                    path=path,
                    control=True,
                    origin={"run": origin.run, "step": 0},
                    at=time.time(),
                    **summary,
                )
                event |= {"run": run, "dropped": runs.keep(run_info), "history": run_info.row()}
            yield line_of(event)


async def _kept(
    host: ModelHost, runs: Runs, path: Path, started: dict[str, Any], done: dict[str, Any]
) -> dict[str, Any]:
    """Store a finished run, and return fields to add to its last event for the page."""
    run, origin = done["run"], started["from"]
    fields = {name: started[name] for name in ("prompt", "sampler", "touches", "code")}
    fields |= {name: done[name] for name in ("answer", "steps", "seconds", "bytes")}
    fields |= {name: host.facts[name] for name in ("name", "fingerprint")}
    run_info = RunInfo(
        run=run,
        model=host.id,
        spec=host.spec,
        options=host.options,
        title=started["scene"]["title"],
        origin=origin,
        path=path,
        **fields,
    )
    dropped = runs.keep(run_info)
    what_changed = None
    if origin is not None and origin["run"] not in dropped:
        try:
            args = (runs, run, origin["run"], origin["step"])
            what_changed = await asyncio.to_thread(difference, *args)
        except (KeyError, FloatscopeError):  # the origin was forgotten meanwhile
            what_changed = None
    row = run_info.row()
    return {"changed": what_changed, "dropped": dropped, "state": row["state"], "history": row}
