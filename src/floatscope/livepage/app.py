"""The answers of the live page's server, path by path. `host` runs models; `runs` stores finished runs.

Every answer that is not a file is JSON.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, asynccontextmanager
from functools import partial
from importlib.metadata import version
from importlib.resources import files
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from ..report import embed
from . import messages, prompts, scratch
from .addresses import opened
from .answers import Stream, asked_of, download, http_error, number_of, route
from .export import exported, zipped
from .host import ModelHost, Refused
from .limits import LIMITS
from .messages import plain
from .python_code import code_of
from .run_stream import difference, streamed, wanted_of
from .runs import Runs

_TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
_ROOMS = (str(__package__), str(embed.__package__))


class LivePage:
    """The application with its models and its runs."""

    def __init__(self, hosts: list[ModelHost], runs: Runs, *, notebook: bool = False) -> None:
        self.hosts = {host.id: host for host in hosts}
        self.runs, self.notebook = runs, notebook
        get, post = partial(route, methods=["GET"]), partial(route, methods=["POST"])
        self.asgi = Starlette(
            lifespan=self._lifespan,
            routes=[
                get("/", self.page),
                get("/assets/{name}", self.asset),
                get("/setup", self.setup),
                get("/models", self.models),
                get("/index", self.index),
                get("/scene/{run}", self.scene),
                get("/scene/{run}/heads/{step}", self.heads),
                get("/scene/{run}/head/{layer}/{head}", self.head),
                get("/history", self.history),
                get("/compare/{one}/{other}", self.compare),
                get("/trace/{run}", self.trace),
                post("/run", self.run),
                post("/tokens", self.tokens),
                post("/candidates", self.candidates),
                post("/pattern", self.pattern),
                post("/python", self.python),
                post("/export", self.export),
                post("/forget", self.forget),
                post("/state", self.state),
            ],
            exception_handlers={404: http_error, 405: http_error},
        )
        self.asgi.router.redirect_slashes = False

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncGenerator[None, None]:
        loading = asyncio.ensure_future(self._load())
        try:
            yield
        finally:
            loading.cancel()
            for host in self.hosts.values():
                host.close()
            self.runs.close()

    async def _load(self) -> None:
        """Load one model after the other, so that the first can be used while the others load."""
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

    async def index(self, request: Request) -> Response:
        return JSONResponse({**await asyncio.to_thread(self.runs.catalogue.index), "keys": True})

    async def scene(self, request: Request) -> Response:
        return await self._part(request, self.runs.catalogue.scene, [])

    async def heads(self, request: Request) -> Response:
        return await self._part(request, self.runs.catalogue.heads, ["step"])

    async def head(self, request: Request) -> Response:
        return await self._part(request, self.runs.catalogue.head, ["layer", "head"])

    async def _part(self, request: Request, make: Callable[..., Any], names: list[str]) -> Response:
        run = self.runs[request.path_params["run"]].run
        numbers = [number_of(request.path_params[name]) for name in names]
        text = await asyncio.to_thread(lambda: embed.as_json(make(run, *numbers)))
        return Response(text, media_type="application/json")

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
        """Run a job without steps, and return its single answer."""
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
    """Return an asset by its name; only files directly in the folder can be requested."""
    for one in files(room).joinpath("assets").iterdir():
        if one.name == name and one.is_file():
            return one.read_text(encoding="utf-8")
    return None
