"""What the live page's server answers: paths, requests, streams. Models are behind `host`, runs in `runs`.

Every answer that is not a file is JSON; an error has a kind, a message and a remedy, and never a traceback.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from functools import partial
from importlib.metadata import version
from importlib.resources import files
from typing import Any, TypeVar

from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from ..errors import FloatscopeError
from ..report import embed
from . import messages, prompts
from .changed import changed
from .export import exported, zipped
from .host import ModelHost, Refused
from .limits import LIMITS
from .messages import Message, plain
from .python_code import code_of
from .runs import Kept, Runs, without_text

M = TypeVar("M", bound=Message)
_TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
_ROOMS = (str(__package__), str(embed.__package__))


class LivePage:
    """The application: its models and its runs."""

    def __init__(self, hosts: list[ModelHost], runs: Runs, *, notebook: bool = False) -> None:
        self.hosts = {host.id: host for host in hosts}
        self.runs, self.notebook = runs, notebook
        get, post = partial(_route, methods=["GET"]), partial(_route, methods=["POST"])
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
            exception_handlers={404: _http_error, 405: _http_error},
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
        """One model after the other: the first can be used while the others are on their way."""
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
        numbers = [_number(request.path_params[name]) for name in names]
        text = await asyncio.to_thread(lambda: embed.as_json(make(run, *numbers)))
        return Response(text, media_type="application/json")

    async def history(self, request: Request) -> Response:
        return JSONResponse(self.runs.history())

    async def compare(self, request: Request) -> Response:
        one, other = (self.runs[request.path_params[name]].run for name in ("one", "other"))
        return JSONResponse(await asyncio.to_thread(self._changed, other, one, 0))

    def _changed(self, run: str, origin: str, step: int) -> dict[str, Any]:
        return changed(self.runs.trace(origin), self.runs.trace(run), origin, step)

    async def trace(self, request: Request) -> Response:
        kept = self.runs[request.path_params["run"]]
        content = await asyncio.to_thread(zipped, kept.path)
        return _file_of(content, "application/zip", f"{kept.run}.zarr.zip")

    async def forget(self, request: Request) -> Response:
        asked = await _asked(request, messages.Several)
        return JSONResponse({"forgotten": self.runs.forget(asked.runs)})

    async def python(self, request: Request) -> Response:
        asked = await _asked(request, messages.OneRun)
        return JSONResponse({"code": code_of(self.runs[asked.run])})

    async def export(self, request: Request) -> Response:
        asked = await _asked(request, messages.Export)
        every = [self.runs[run] for run in dict.fromkeys(asked.runs)]
        names = [f"{one.name} ({one.run})" if len(every) > 1 else one.name for one in every]
        title = asked.title or f"Floatscope: {every[0].title}"
        traces = [self.runs.trace(one.run) for one in every]
        text = await asyncio.to_thread(exported, traces, names, title)
        return _file_of(text.encode(), "text/html; charset=utf-8", "floatscope.html")

    async def state(self, request: Request) -> Response:
        asked = await _asked(request, messages.State, LIMITS["state_chars"])
        here = {host.facts.get("fingerprint"): host.id for host in self.hosts.values()}
        waiting = [h.spec for h in self.hosts.values() if h.state in ("loading", "restarting")]
        runs: list[dict[str, Any] | None] = []
        missing = []
        for one in asked.runs:
            if one.fingerprint in here:
                wanted = {k: v for k, v in plain(one).items() if k not in ("fingerprint", "from")}
                runs.append({**wanted, "model": here[one.fingerprint]})
                continue
            runs.append(None)
            named = one.model or one.fingerprint
            remedy = f"Start floatscope live --model {one.model}." if one.model else ""
            if waiting:
                remedy = f"Wait: {', '.join(waiting)} is still being loaded."
            missing.append(
                {
                    "fingerprint": one.fingerprint,
                    "model": one.model,
                    "message": f"the link is of {named} ({one.fingerprint}), which is not loaded here",
                    "remedy": remedy,
                }
            )
        return JSONResponse({"runs": runs, "view": asked.view, "missing": missing})

    # What needs a model

    async def tokens(self, request: Request) -> Response:
        asked = await _asked(request, messages.Tokens)
        host = self._host(asked.model)
        job = {"kind": "tokens", "prompt": plain(asked.prompt), "length": asked.length}
        return await self._answer(host, job)

    async def candidates(self, request: Request) -> Response:
        asked = await _asked(request, messages.Candidates)
        return await self._closer(asked.run, "candidates", plain(asked))

    async def pattern(self, request: Request) -> Response:
        asked = await _asked(request, messages.Pattern)
        return await self._closer(asked.run, "pattern", plain(asked))

    async def _closer(self, run: str, kind: str, asked: dict[str, Any]) -> Response:
        kept = self.runs[run]
        if asked["step"] >= kept.steps:
            raise KeyError(asked["step"])
        return await self._answer(self._host(kept.model), {**kept.job(), **asked, "kind": kind})

    async def _answer(self, host: ModelHost, job: dict[str, Any]) -> Response:
        """A job without steps: its one answer."""
        last: Any = None
        async with aclosing(self._events(host, job)) as events:
            async for event in events:
                last = event
        if last["event"] == "error":
            raise Refused(400 if last["error"]["kind"] == "usage" else 503, **last["error"])
        return JSONResponse({k: v for k, v in last.items() if k not in ("event", "job")})

    async def _events(self, host: ModelHost, job: dict[str, Any]) -> AsyncGenerator[Any, None]:
        if "prompt" in job and host.state == "ready":
            job = {**job, "prompt": prompts.settled(job["prompt"], host.facts["layout"])}
        elif "prompt" in job:
            layout = prompts.layout_of(host.spec)
            job = {**job, "prompt": prompts.settled(job["prompt"], layout)}
        async with aclosing(host.events(job)) as events:
            async for event in events:
                yield event

    def _host(self, model: str) -> ModelHost:
        host = self.hosts[model]
        if host.state == "failed":
            raise Refused(503, **host.error)
        return host

    async def run(self, request: Request) -> Response:
        asked = await _asked(request, messages.Run)
        origin = None if asked.origin is None else self.runs[asked.origin.run]
        wanted = plain(asked)
        if origin is not None and asked.origin is not None:
            if asked.model not in (None, origin.model):
                raise Refused(
                    400, "usage", "a branch stays in its model", "Leave model out.", "model"
                )
            if asked.origin.step >= origin.steps:
                raise KeyError(asked.origin.step)
            before = origin.job()
            own = [{"step": asked.origin.step, **touch} for touch in wanted.get("touches", [])]
            wanted = {
                "prompt": before["prompt"],
                "sampler": before["sampler"],
                **wanted,
                "model": origin.model,
                "touches": [*before["touches"], *own],
            }
            if len(wanted["touches"]) > LIMITS["touches"]:
                raise Refused(400, "limit", "too many touches", "Begin a new run.", "touches")
        return _Stream(self._run(self._host(wanted["model"]), wanted))

    async def _run(self, host: ModelHost, wanted: dict[str, Any]) -> AsyncGenerator[bytes, None]:
        run, path = self.runs.new()
        layout = host.facts.get("layout") or prompts.layout_of(host.spec)
        prompt = prompts.settled(wanted["prompt"], layout)
        touches, origin = wanted.get("touches", []), wanted.get("from")
        job = {"kind": "run", "prompt": prompt, "sampler": wanted.get("sampler")}
        job |= {"touches": touches, "path": str(path)}
        begun: dict[str, Any] = {}
        try:
            async with aclosing(host.events(job)) as events:
                async for event in events:
                    if isinstance(event, bytes):  # a step: it goes as it came
                        yield b'{"run":"%s",' % run.encode() + event[1:] + b"\n"
                        continue
                    event = {**event, "run": run}
                    event.pop("job", None)
                    if event["event"] == "started":
                        texts = event["touches"]
                        touches = [
                            {**without_text(t), "text": said}
                            for t, said in zip(touches, texts, strict=True)
                        ]
                        event |= {"model": host.id, "prompt": prompt, "touches": touches}
                        event["from"] = origin
                        begun = event
                    elif event["event"] == "done":
                        event |= await self._keep(host, run, path, begun, event, origin)
                    yield _line(event)
        except Refused as refused:
            yield _line({"event": "error", "run": run, "error": refused.error})
        except FloatscopeError as error:
            told = {"kind": "usage", "message": error.what, "remedy": error.remedy}
            yield _line({"event": "error", "run": run, "error": told})

    async def _keep(
        self, host: ModelHost, run: str, path: Any, begun: Any, done: Any, origin: Any
    ) -> dict[str, Any]:
        kept = Kept(
            run=run,
            model=host.id,
            spec=host.spec,
            options=host.options,
            name=host.facts["name"],
            fingerprint=host.facts["fingerprint"],
            title=begun["scene"]["title"],
            prompt=begun["prompt"],
            sampler=begun["sampler"],
            touches=begun["touches"],
            code=begun["code"],
            origin=origin,
            answer=done["answer"],
            steps=done["steps"],
            seconds=done["seconds"],
            bytes=done["bytes"],
            path=path,
        )
        difference = None
        dropped = self.runs.keep(kept)
        if origin is not None and origin["run"] not in dropped:
            try:
                args = (run, origin["run"], origin["step"])
                difference = await asyncio.to_thread(self._changed, *args)
            except (KeyError, FloatscopeError):  # the origin was forgotten meanwhile
                difference = None
        row = kept.row()
        return {"changed": difference, "dropped": dropped, "state": row["state"], "history": row}


class _Stream(Response):
    """Lines as they come, until the last or until nobody listens."""

    media_type = "application/x-ndjson"

    def __init__(self, lines: AsyncGenerator[bytes, None]) -> None:
        super().__init__()
        self.lines = lines
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        task = asyncio.ensure_future(self._send(send))
        gone = asyncio.ensure_future(_disconnected(receive))
        try:
            await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in (task, gone):
                one.cancel()
            await asyncio.gather(task, gone, return_exceptions=True)

    async def _send(self, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)
        async with aclosing(self.lines) as lines:
            async for line in lines:
                await send({"type": "http.response.body", "body": line, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _line(event: dict[str, Any]) -> bytes:
    return json.dumps(event, allow_nan=False, separators=(",", ":")).encode() + b"\n"


# Requests and errors


async def _asked(request: Request, kind: type[M], most: int = LIMITS["body"]) -> M:
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > most:
            raise Refused(413, "limit", f"the request has more than {most} bytes", "Send less.")
    try:
        return kind.model_validate_json(bytes(body))
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        said = first["msg"].removeprefix("Value error, ")
        message = f"{where}: {said}" if where else said
        raise Refused(
            400, "usage", message, "Correct the request; docs/live.md has its form.", where
        ) from error


def error_response(status: int, error: dict[str, str]) -> Response:
    return JSONResponse({"error": error}, status)


def _route(
    path: str, answer: Callable[[Request], Awaitable[Response]], methods: list[str]
) -> Route:
    async def guarded(request: Request) -> Response:
        try:
            return await answer(request)
        except Refused as refused:
            return error_response(refused.status, refused.error)
        except KeyError as error:
            return error_response(404, _gone(str(error.args[0]) if error.args else ""))
        except FloatscopeError as error:
            told = {"kind": "usage", "message": error.what, "remedy": error.remedy}
            return error_response(400, told)
        except ClientDisconnect:
            return Response(status_code=400)
        except Exception as error:  # a bug of ours: said, not shown
            told = {
                "kind": "internal",
                "message": f"{type(error).__name__}",
                "remedy": "Try again.",
            }
            return error_response(500, told)

    return Route(path, guarded, methods=methods)


def _gone(what: str) -> dict[str, str]:
    remedy = "Runs are kept until the server ends or makes room: see history. Reload the page."
    return {"kind": "gone", "message": f"there is no {what[:60]!r} here", "remedy": remedy}


async def _http_error(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 404)
    if status == 405:
        told = {
            "kind": "usage",
            "message": "this path has no such method",
            "remedy": "See docs/live.md.",
        }
        return error_response(405, told)
    return error_response(404, _gone(request.url.path))


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 7):
        raise KeyError(text)
    return int(text)


def _file(room: str, name: str) -> str | None:
    """An asset by its bare name: only what lies directly in the folder has one."""
    for one in files(room).joinpath("assets").iterdir():
        if one.name == name and one.is_file():
            return one.read_text(encoding="utf-8")
    return None


def _file_of(content: bytes, kind: str, name: str) -> Response:
    headers = {"content-disposition": f'attachment; filename="{name}"'}
    return Response(content, media_type=kind, headers=headers)
