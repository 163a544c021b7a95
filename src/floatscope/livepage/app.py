"""What the live page's server answers, path by path. Models are behind `host`, finished runs in `runs`.

The scenes of runs are answered as those of any source. Every answer that is not a file is JSON.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from functools import partial
from importlib.metadata import version
from importlib.resources import files
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from ..report import embed
from ..report.answers import Refused, route
from ..report.guard import own_page
from ..report.serve import ScenePage
from . import messages, prompts, scratch
from .addresses import opened
from .answers import Stream, asked_of, download
from .export import exported, zipped
from .host import ModelHost
from .limits import LIMITS
from .messages import plain
from .python_code import code_of
from .run_stream import difference, streamed, wanted_of
from .runs import Runs

_TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
_SOURCES = "script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:"
_NOTEBOOK = "http://localhost:* http://127.0.0.1:*"
_ROOMS = (str(__package__), str(embed.__package__))


class LivePage(ScenePage):
    """The application: its models and its runs."""

    answers_half_closed = False  # a closed connection is a run that nobody wants

    def __init__(self, hosts: list[ModelHost], runs: Runs, *, notebook: bool = False) -> None:
        self.hosts = {host.id: host for host in hosts}
        self.runs, self.notebook = runs, notebook
        self.policy = own_page(_SOURCES, _NOTEBOOK if notebook else "'none'")
        super().__init__(runs.catalogue)

    def more_routes(self) -> list[Route]:
        post = partial(route, method="POST")
        return [
            route("/assets/{name}", self.asset),
            route("/setup", self.setup),
            route("/models", self.models),
            route("/history", self.history),
            route("/compare/{one}/{other}", self.compare),
            route("/trace/{run}", self.trace),
            post("/run", self.run),
            post("/tokens", self.tokens),
            post("/candidates", self.candidates),
            post("/pattern", self.pattern),
            post("/python", self.python),
            post("/export", self.export),
            post("/forget", self.forget),
            post("/state", self.state),
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
        """One model after the other: the first can be used while the others are on their way."""
        await asyncio.to_thread(scratch.sweep)
        for host in self.hosts.values():
            host.start()
            await host.settled()

    # The page

    async def page(self, request: Request) -> Response:
        return HTMLResponse(_file(_ROOMS[0], "live.html") or "")

    async def asset(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name == "viewer.bundle.js":
            return Response(embed.script(), media_type=_TYPES[".js"])
        kind = _TYPES.get(name[name.rfind(".") :] if "." in name else "")
        for room in _ROOMS if kind else ():
            if (text := _file(room, name)) is not None:
                return Response(text, media_type=kind)
        raise KeyError(name)

    async def setup(self, request: Request) -> Response:
        limits = {**LIMITS, "runs": self.runs.most, "run_bytes": self.runs.most_bytes}
        return JSONResponse(
            {
                "title": self.runs.catalogue.title,
                "models": self._about(),
                "examples": await asyncio.to_thread(prompts.examples),
                "limits": limits,
                "version": version("floatscope"),
                "notebook": self.notebook,
            }
        )

    async def models(self, request: Request) -> Response:
        return JSONResponse({"models": self._about()})

    def _about(self) -> list[dict[str, Any]]:
        return [host.about() for host in self.hosts.values()]

    # Runs that are there

    async def history(self, request: Request) -> Response:
        return JSONResponse(self.runs.history())

    async def compare(self, request: Request) -> Response:
        one, other = (self.runs[request.path_params[name]].run for name in ("one", "other"))
        return JSONResponse(await asyncio.to_thread(difference, self.runs, other, one, 0))

    async def trace(self, request: Request) -> Response:
        kept = self.runs[request.path_params["run"]]
        content = await asyncio.to_thread(zipped, kept.path)
        return download(content, "application/zip", f"{kept.run}.zarr.zip")

    async def forget(self, request: Request) -> Response:
        asked = await asked_of(request, messages.Several)
        return JSONResponse({"forgotten": self.runs.forget(asked.runs)})

    async def python(self, request: Request) -> Response:
        asked = await asked_of(request, messages.OneRun)
        return JSONResponse({"code": code_of(self.runs[asked.run])})

    async def export(self, request: Request) -> Response:
        asked = await asked_of(request, messages.Export)
        every = [self.runs[run] for run in dict.fromkeys(asked.runs)]
        names = [f"{one.name} ({one.run})" if len(every) > 1 else one.name for one in every]
        title = asked.title or f"Floatscope: {every[0].title}"
        traces = [self.runs.trace(one.run) for one in every]
        text = await asyncio.to_thread(exported, traces, names, title)
        return download(text.encode(), "text/html; charset=utf-8", "floatscope.html")

    async def state(self, request: Request) -> Response:
        asked = await asked_of(request, messages.State, LIMITS["state_chars"])
        return JSONResponse(opened(asked, self.hosts.values()))

    # What needs a model

    async def tokens(self, request: Request) -> Response:
        asked = await asked_of(request, messages.Tokens)
        host = self._host(asked.model)
        job = {"kind": "tokens", "prompt": plain(asked.prompt), "length": asked.length}
        return await self._answer(host, job)

    async def candidates(self, request: Request) -> Response:
        asked = await asked_of(request, messages.Candidates)
        return await self._closer(asked.run, "candidates", plain(asked))

    async def pattern(self, request: Request) -> Response:
        asked = await asked_of(request, messages.Pattern)
        return await self._closer(asked.run, "pattern", plain(asked))

    async def _closer(self, run: str, kind: str, asked: dict[str, Any]) -> Response:
        kept = self.runs[run]
        if asked["step"] >= kept.steps:
            raise KeyError(asked["step"])
        return await self._answer(self._host(kept.model), {**kept.job(), **asked, "kind": kind})

    async def _answer(self, host: ModelHost, job: dict[str, Any]) -> Response:
        """A job without steps: its one answer."""
        layout = host.facts.get("layout") or prompts.layout_of(host.spec)
        job = {**job, "prompt": prompts.settled(job["prompt"], layout)}
        last: Any = None
        async with aclosing(host.events(job)) as events:
            async for event in events:
                last = event
        if last["event"] == "error":
            raise Refused(400 if last["error"]["kind"] == "usage" else 503, **last["error"])
        return JSONResponse({k: v for k, v in last.items() if k not in ("event", "job")})

    def _host(self, model: str) -> ModelHost:
        host = self.hosts[model]
        if host.state == "failed":
            raise Refused(503, **host.error)
        return host

    async def run(self, request: Request) -> Response:
        wanted = wanted_of(await asked_of(request, messages.Run), self.runs)
        return Stream(streamed(self._host(wanted["model"]), self.runs, wanted))


def _file(room: str, name: str) -> str | None:
    """An asset by its bare name: only what lies directly in the folder has one."""
    for one in files(room).joinpath("assets").iterdir():
        if one.name == name and one.is_file():
            return one.read_text(encoding="utf-8")
    return None
