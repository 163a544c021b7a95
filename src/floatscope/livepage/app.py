"""Define the routes of the live page's server.

`host` runs the models, and `runs` stores finished runs. `ScenePage` serves the scenes of runs, as it serves
the scenes of every other source. All other responses are JSON objects, streams of JSON lines, or files.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from pathlib import PurePath
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from ..report import embed
from ..report.answers import Refused, route
from ..report.guard import own_page
from ..report.serve import ScenePage
from ..trace import Trace
from . import messages, prompts, scratch
from .addresses import opened
from .answers import Stream, download, posted
from .changed import attention_at, head_difference
from .export import code_of, exported, zipped
from .host import ModelHost
from .limits import LIMITS
from .messages import plain
from .run_stream import controlled, difference, progressed, streamed, wanted_of
from .runs import RunInfo, Runs

_TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
_SOURCES = "script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:"
_NOTEBOOK = "http://localhost:* http://127.0.0.1:*"


class LivePage(ScenePage):
    """The web application of the live page, with its models and its runs."""

    answers_half_closed = False  # a closed connection is a run that nobody wants

    def __init__(self, hosts: list[ModelHost], runs: Runs, *, notebook: bool = False) -> None:
        self.hosts = {host.id: host for host in hosts}
        self.runs, self.notebook = runs, notebook
        self.policy = own_page(_SOURCES, _NOTEBOOK if notebook else "'none'")
        super().__init__(runs.catalogue)

    def more_routes(self) -> list[Route]:
        return [
            route("/assets/{name}", self.asset),
            route("/setup", self.setup),
            route("/models", self.models),
            route("/history", self.history),
            route("/compare/{one}/{other}", self.compare),
            route("/compare/{one}/{other}/{step:int}/{at:int}", self.compare_steps),
            route(
                "/compare/{one}/{other}/{step:int}/{at:int}/{layer:int}/{head:int}",
                self.compare_heads,
            ),
            route("/trace/{run}", self.trace),
            posted("/run", messages.Run, self.run),
            posted("/tokens", messages.Tokens, self.tokens),
            posted("/candidates", messages.Candidates, self.candidates),
            posted("/pattern", messages.Pattern, self.pattern),
            posted("/rank", messages.Rank, self.rank),
            posted("/control", messages.RunReference, self.control),
            posted("/python", messages.RunReference, self.python),
            posted("/export", messages.Export, self.export),
            posted("/forget", messages.RunReferences, self.forget),
            posted("/state", messages.State, self.state, LIMITS["state_chars"]),
        ]

    @asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncGenerator[None, None]:
        loading = asyncio.ensure_future(self._load())
        try:
            yield
        finally:
            loading.cancel()
            for host in self.hosts.values():
                host.close()
            self.close()

    def close(self) -> None:
        self.runs.close()

    async def _load(self) -> None:
        """Load the models one after another, so that the first model can be used while other models load."""
        await asyncio.to_thread(scratch.sweep)
        for host in self.hosts.values():
            host.start()
            await host.settled()

    # The page

    async def page(self, request: Request) -> Response:
        return HTMLResponse(files(__package__).joinpath("assets", "live.html").read_text("utf-8"))

    async def asset(self, request: Request) -> Response:
        name = request.path_params["name"]
        return Response(_assets()[name], media_type=_TYPES[PurePath(name).suffix])

    async def setup(self, request: Request) -> dict[str, Any]:
        return {
            "title": self.source.title,
            "examples": await asyncio.to_thread(prompts.examples),
            "limits": {**LIMITS, "runs": self.runs.most, "run_bytes": self.runs.most_bytes},
            "version": version("floatscope"),
            "notebook": self.notebook,
            **await self.models(request),
        }

    async def models(self, request: Request) -> dict[str, Any]:
        return {"models": [host.about() for host in self.hosts.values()]}

    # Runs that are there

    async def history(self, request: Request) -> dict[str, Any]:
        return self.runs.history()

    async def compare(self, request: Request) -> dict[str, Any]:
        first, other = (self.runs[request.path_params[name]].run for name in ("one", "other"))
        return await asyncio.to_thread(difference, self.runs, other, first, 0)

    async def compare_steps(self, request: Request) -> dict[str, Any]:
        return await asyncio.to_thread(attention_at, *self._two_steps(request))

    async def compare_heads(self, request: Request) -> dict[str, Any]:
        traces, params = self._two_steps(request), request.path_params
        where = [params["layer"], params["head"]]
        for trace in traces[:2]:
            sizes = trace.data["column_sum"].sizes
            if where[0] >= sizes["layer"] or where[1] >= sizes["head"]:
                raise KeyError(where)
        return await asyncio.to_thread(head_difference, *traces, *where)

    def _two_steps(self, request: Request) -> tuple[Trace, Trace, int, int]:
        """Return the traces of two runs and a step of each; raise KeyError for an unknown run or step."""
        params = request.path_params
        first, other = (self.runs.trace(params[name]) for name in ("one", "other"))
        for trace, step in ((first, params["step"]), (other, params["at"])):
            if step >= trace.n_steps:
                raise KeyError(step)
        return first, other, params["step"], params["at"]

    async def trace(self, request: Request) -> Response:
        run_info = self.runs[request.path_params["run"]]
        content = await asyncio.to_thread(zipped, run_info.path)
        return download(content, "application/zip", f"{run_info.run}.zarr.zip")

    async def forget(self, message: messages.RunReferences) -> dict[str, Any]:
        return {"forgotten": self.runs.forget(message.runs)}

    async def python(self, message: messages.RunReference) -> dict[str, Any]:
        return {"code": code_of(self._trained(message.run))}

    async def export(self, message: messages.Export) -> Response:
        chosen_runs = [self.runs[run] for run in dict.fromkeys(message.runs)]
        names = [
            f"{run.name} ({run.run})" if len(chosen_runs) > 1 else run.name for run in chosen_runs
        ]
        title = message.title or f"Floatscope: {chosen_runs[0].title}"
        traces = [self.runs.trace(run.run) for run in chosen_runs]
        edits = [[str(touch["text"]) for touch in run.touches] for run in chosen_runs]
        text = await asyncio.to_thread(exported, traces, names, edits, title)
        return download(text.encode(), "text/html; charset=utf-8", "floatscope.html")

    async def state(self, message: messages.State) -> dict[str, Any]:
        return opened(message, self.hosts.values())

    # What needs a model

    async def run(self, message: messages.Run) -> Response:
        request = wanted_of(message, self.runs)
        return Stream(streamed(self._host(request["model"]), self.runs, request))

    async def tokens(self, message: messages.Tokens) -> dict[str, Any]:
        job = {"kind": "tokens", "prompt": plain(message.prompt), "length": message.length}
        return await self._answer(self._host(message.model), job)

    async def candidates(self, message: messages.Candidates) -> dict[str, Any]:
        return await self._closer("candidates", message)

    async def pattern(self, message: messages.Pattern) -> dict[str, Any]:
        return await self._closer("pattern", message)

    async def _closer(
        self, kind: str, message: messages.Candidates | messages.Pattern
    ) -> dict[str, Any]:
        return await self._answer(*self._job(kind, message))

    async def rank(self, message: messages.Rank) -> Response:
        host, job = self._job("rank", message)
        return Stream(progressed(host, job))

    async def control(self, message: messages.RunReference) -> Response:
        return Stream(controlled(self.hosts, self.runs, self._trained(message.run)))

    def _job(
        self, kind: str, message: messages.Candidates | messages.Pattern | messages.Rank
    ) -> tuple[ModelHost, dict[str, Any]]:
        """Return the host of a run's model, and the job that recomputes one of the run's steps."""
        run_info = self._trained(message.run)
        if message.step >= run_info.steps:
            raise KeyError(message.step)
        return self._host(run_info.model), {**run_info.job(), **plain(message), "kind": kind}

    def _trained(self, run: str) -> RunInfo:
        """Return a run of a trained model; raise Refused for a run of an untrained control."""
        run_info = self.runs[run]
        run_info.require_trained()
        return run_info

    async def _answer(self, host: ModelHost, job: dict[str, Any]) -> dict[str, Any]:
        """Run a job that sends one answer instead of steps, and return the answer."""
        job = {**job, "prompt": prompts.settled(job["prompt"], host.layout)}
        last: Any = None
        async with aclosing(host.events(job)) as events:
            async for event in events:
                last = event
        if last["event"] == "error":
            raise Refused(400 if last["error"]["kind"] == "usage" else 503, **last["error"])
        return {k: v for k, v in last.items() if k not in ("event", "job")}

    def _host(self, model: str) -> ModelHost:
        host = self.hosts[model]
        if host.state == "failed":
            raise Refused(503, **host.error)
        return host


@cache
def _assets() -> dict[str, str]:
    """Return scripts and styles by file name; `viewer.bundle.js` joins the viewer's scripts."""
    folders = [files(room).joinpath("assets") for room in (embed.__package__, __package__)]
    named = {file.name: file for folder in folders for file in folder.iterdir()}
    texts = {
        name: file.read_text(encoding="utf-8")
        for name, file in named.items()
        if PurePath(name).suffix in _TYPES
    }
    return texts | {"viewer.bundle.js": embed.script(), "terms.js": embed.terms()}
