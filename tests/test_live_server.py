"""The server of the live page: who may ask, who waits, what it says of a model that dies or hangs."""

import asyncio
import os
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import webbrowser
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import uvicorn
from live_client import Client, serving
from waiting import LIMIT, until

import floatscope as fs
from floatscope.livepage.limits import LIMITS
from floatscope.livepage.notebook import live
from floatscope.livepage.scratch import Scratch, sweep
from floatscope.livepage.serve import default_models, make_server, serve
from floatscope.report.loopback import LoopbackServer, forwarding
from floatscope.report.serve import serve as serve_traces

SHORT = {"name": "confidence", "settings": {"length": 4, "steps": 4}}
ASK = {"model": "m0", "prompt": {"text": "Go on"}, "sampler": SHORT}


@pytest.fixture
def shown(llada):
    with live(llada) as made:
        yield made


@pytest.fixture
def page(shown):
    return Client(shown._server).ready()


class Held:
    """A hook on the network that lets a forward go on when it is told to."""

    def __init__(self, model):
        self.begun, self.go = threading.Event(), threading.Event()
        self.calls = 0
        self._hook = model.net.register_forward_pre_hook(self._wait)

    def _wait(self, module, args):
        self.calls += 1
        self.begun.set()
        assert self.go.wait(LIMIT)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.go.set()
        self._hook.remove()


# Who may ask


def test_only_who_has_the_address_is_answered(shown, page):
    server = shown._server
    own = f"http://127.0.0.1:{server.server_port}"
    assert server.server_address[0] == "127.0.0.1" and server.url == f"{own}/{server.key}/"
    body = {"model": "m0", "prompt": {"text": "Hi"}}
    for headers, status in [
        ({"Origin": own}, 200),
        ({"Origin": own.replace("127.0.0.1", "localhost")}, 200),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": own + "0"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Host": "evil.example"}, 403),
        ({"content-type": "text/plain"}, 415),
    ]:
        assert page.ask("POST", "tokens", body, headers)[0] == status, headers
    other = Client(server)
    for key in ("", server.key[:-1], server.key + "0", "0" * 32):
        other.key = key
        status, answer = other.ask("GET", "setup")
        assert status == 403 and "key" in answer["error"]["message"]
    assert page.ask("PUT", "setup", {})[0] == 405
    assert page.ask("POST", "tokens", b"x" * 1_000_001)[0] == 413
    status, wrong = page.ask("POST", "run", {**ASK, "prompt": {"text": 5}})
    assert (status, wrong["error"]["field"]) == (400, "prompt.text")


def test_a_browser_may_load_nothing_from_elsewhere(page):
    connection = page.connection("GET", "")
    answer = connection.getresponse()
    answer.read()
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "script-src 'self';" in policy
    assert "frame-ancestors http://localhost:* http://127.0.0.1:*" in policy  # a notebook's frame
    assert answer.headers["x-content-type-options"] == "nosniff"
    connection.close()
    assert b"floatscopeViewer" in page.get("assets/viewer.bundle.js")
    for name in ("..", "live.html", "__init__.py", "..%2fapp.py", "viewer.css%00"):
        assert page.ask("GET", f"assets/{name}")[0] == 404


def test_the_setup_says_what_a_page_needs(page, llada):
    setup = page.get("setup")
    (model,) = setup["models"]
    assert model["state"] == "ready" and model["fingerprint"] == llada.fingerprint
    assert (model["layers"], model["heads"]) == (llada.n_layers, llada.n_heads)
    names = {sampler["name"] for sampler in model["samplers"]}
    assert "confidence" in names and "autoregressive" not in names
    fields = {f["name"]: f for s in model["samplers"] for f in s["fields"]}
    assert "frequencies" not in fields and fields["steps"]["optional"]
    for example in setup["examples"]:
        tokens = page.post("tokens", {"model": "m0", "prompt": example["prompt"]})
        assert 0 < tokens["length"] == len(tokens["tokens"]) == len(tokens["ids"])


# Who waits


def test_twenty_clients_at_once_all_get_their_run(page, llada):
    short = {**ASK, "sampler": {"name": "confidence", "settings": {"length": 2, "steps": 1}}}
    with ThreadPoolExecutor(20) as clients, Held(llada) as held:
        runs = [clients.submit(page.run, short) for _ in range(20)]
        until(lambda: page.get("models")["models"][0]["queue"] == 20, "all have asked")
        held.go.set()
        every = [run.result() for run in runs]
    answers = {tuple(events[-1]["result_ids"]) for events in every}
    assert len(answers) == 1 and len({events[-1]["run"] for events in every}) == 20
    firsts = sorted(events[0].get("place", 0) for events in every)
    assert firsts == list(range(20))


def test_whoever_waits_is_told_the_place(page, llada):
    with Held(llada) as held, page.stream(ASK) as first:
        assert next(first)["event"] == "started"
        with page.stream(ASK) as second, page.stream(ASK) as third:
            assert next(second) | {"run": ""} == {
                "event": "queued",
                "run": "",
                "place": 1,
                "why": "busy",
            }
            assert next(third)["place"] == 2
            second.close()
            held.go.set()
            assert [e["event"] for e in first][-1] == "done"
        until(lambda: page.get("models")["models"][0]["queue"] == 0, "nobody waits")


def test_a_closed_connection_ends_the_run_between_steps(shown, page, llada):
    """A reload in mid-run: the model is free again, and what nobody saw is not kept."""
    long = {**ASK, "sampler": {"name": "confidence", "settings": {"length": 400}}}
    (host,) = shown._server.page.hosts.values()
    with Held(llada) as held:
        with page.stream(long) as events:
            assert next(events)["event"] == "started"
            assert held.begun.wait(LIMIT)
        until(lambda: host._draining, "the server has noticed")
        held.go.set()
        assert page.run(ASK)[-1]["event"] == "done"
    assert held.calls < 400 and [row["steps"] for row in page.get("history")["runs"]] == [4]


def test_too_many_that_wait_are_turned_away(page, llada, monkeypatch):
    monkeypatch.setitem(LIMITS, "queue", 1)
    with Held(llada), page.stream(ASK) as first, page.stream(ASK) as second:
        assert next(first)["event"] == "started" and next(second)["event"] == "queued"
        (refused,) = page.run(ASK)
        assert refused["error"]["kind"] == "busy" and refused["error"]["remedy"]


# What does not work


def test_what_does_not_fit_says_what_to_lower(page, llada, monkeypatch):
    (long,) = page.run({**ASK, "prompt": {"text": "word " * 300}})
    assert (
        long["error"]["kind"] == "usage" and "exceed the context of 512" in long["error"]["message"]
    )
    assert "passages" in long["error"]["remedy"]
    (many,) = page.run({**ASK, "sampler": {"name": "confidence", "settings": {"length": 9999}}})
    assert "at most" in many["error"]["message"]
    with monkeypatch.context() as low:
        low.setitem(LIMITS, "trace_bytes", 1000)
        (large,) = page.run(ASK)
        assert "4 steps of" in large["error"]["message"] and "steps" in large["error"]["remedy"]
    for error in (
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"),
    ):

        def full(module, args, error=error):
            raise error

        hook = llada.net.register_forward_pre_hook(full)
        *_, last = page.run(ASK)
        hook.remove()
        assert last["error"]["kind"] == "memory" and "length" in last["error"]["remedy"]
        assert "Traceback" not in last["error"]["message"]
        assert page.run(ASK)[-1]["event"] == "done" and not llada.edits


def test_a_bug_in_a_forward_is_said_and_the_page_goes_on(page, llada):
    def wrong(module, args):
        raise ZeroDivisionError("division by zero")

    hook = llada.net.register_forward_pre_hook(wrong)
    *_, last = page.run({**ASK, "touches": [{"kind": "ablate", "step": 0, "heads": [[0, 0]]}]})
    hook.remove()
    assert last["error"]["kind"] == "internal" and "ZeroDivisionError" in last["error"]["message"]
    assert page.run(ASK)[-1]["event"] == "done" and not llada.edits


# Workers


def children(server):
    return {host.id: host._worker.process for host in server.page.hosts.values()}


def test_a_killed_worker_is_answered_and_replaced(checkpoints, tmp_path, monkeypatch):
    """Processes of their own, as `floatscope live` has them; one model that is none is named."""
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "config.json").write_text("{}")
    server = make_server([str(checkpoints["LLaDA"]), str(broken)], 0, {"dtype": "float32"})
    with serving(server) as page:
        page.ready()
        good, bad = page.get("models")["models"]
        assert good["state"] == "ready" and bad["state"] == "failed" and bad["message"]
        status, refused = page.ask("POST", "run", {**ASK, "model": "m1"})
        assert status == 503 and refused["error"]["message"] == bad["message"]
        before = page.run(ASK)
        worker = children(server)["m0"]
        os.kill(worker.pid, signal.SIGSTOP)  # so that it surely is at work when it is killed
        with page.stream(ASK) as events:
            os.kill(worker.pid, signal.SIGKILL)
            *_, last = events
        assert last["error"]["kind"] == "worker" and "signal 9" in last["error"]["message"]
        assert "run it again" in last["error"]["remedy"]
        again = page.run(ASK)
        assert again[-1]["result_ids"] == before[-1]["result_ids"]
        kept = before[-1]["run"]  # a run outlives its worker
        assert page.get(f"scene/{kept}")["answer"] == before[-1]["answer"]
        asked = {"run": kept, "step": 0, "position": before[0]["scene"]["prompt_length"]}
        assert page.post("candidates", asked)["candidates"]
        # One that hangs is ended after its time.
        host = server.page.hosts["m0"]
        until(lambda: host.state == "ready", "the new worker")
        os.kill(children(server)["m0"].pid, signal.SIGSTOP)

        async def time_out():
            monkeypatch.undo()
            raise TimeoutError

        monkeypatch.setattr(host, "next_message", time_out)
        *_, last = page.run(ASK)
        assert last["error"]["kind"] == "worker" and "no word" in last["error"]["message"]
        assert page.run(ASK)[-1]["event"] == "done"
        processes = children(server)
    assert all(not process.is_alive() for process in processes.values())


def test_what_is_said_over_ssh_and_which_models_are_there():
    assert forwarding(8123, {}) == ""
    there = {"SSH_CONNECTION": "10.0.0.2 5 10.0.0.9 22", "USER": "ann"}
    assert forwarding(8123, there).endswith("ssh -N -L 8123:127.0.0.1:8123 ann@10.0.0.9")
    other = {"SSH_CONNECTION": "10.0.0.2 5 10.0.0.9 2222"}
    assert forwarding(8123, other).endswith("8123:127.0.0.1:8123 -p 2222 10.0.0.9")
    assert default_models()[:2] == ["pair/mdm", "pair/arm"]
    with pytest.raises(fs.ModelError, match="no such model"):
        make_server(["nowhere"])
    with pytest.raises(fs.UsageError, match="loaded models"):
        fs.live("pair/mdm")


# How it ends


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (uvicorn.Config, "get_loop_factory"),  # between the first coroutine and the event loop
        (asyncio.Runner, "run"),  # between the event loop and uvicorn's own ear
        (uvicorn.Server, "startup"),
        (asyncio.Runner, "close"),
    ],
)
@pytest.mark.parametrize("page", ["viewer", "live"])
def test_ctrl_c_at_any_moment_ends_a_server_cleanly(
    page, owner, name, llada, tmp_path, monkeypatch, capsys
):
    """It comes as `name` is called. A coroutine that was never awaited fails here too."""
    right, pressed, said = getattr(owner, name), [], []

    def press(*args, **options):
        if not pressed:
            pressed.append(name)
            signal.raise_signal(signal.SIGINT)
        return right(*args, **options)

    if name == "close":  # which is only called when the server has an end
        monkeypatch.setattr(uvicorn.Server, "main_loop", lambda server: asyncio.sleep(0))
    monkeypatch.setattr(owner, name, press)
    if page == "viewer":
        llada.trace([5, 6], fs.Confidence(length=2, steps=1)).save(tmp_path / "t.zarr")
        serve_traces(tmp_path, say=said.append)
    else:
        serve([], say=said.append)
    assert pressed and said[0].startswith("http://127.0.0.1:") and said[-1] == "ended"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_signal_that_ends_the_server_removes_its_folder(name, tmp_path, monkeypatch):
    number = getattr(signal, name)
    right = uvicorn.Server.main_loop

    async def receive_signal(server):
        signal.raise_signal(number)
        await right(server)

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(uvicorn.Server, "main_loop", receive_signal)
    monkeypatch.setattr("webbrowser.open", lambda url: made.extend(tmp_path.iterdir()))
    before, made = signal.signal(number, signal.SIG_DFL), []
    try:
        with pytest.raises(SystemExit) as ended:
            serve([], open_browser=True, say=lambda text: None)
        assert ended.value.code == 128 + number
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, before)
    assert len(made) == 1 and list(tmp_path.iterdir()) == []


KILLED = """
import os, signal
from floatscope.livepage.scratch import Scratch
scratch = Scratch()
(scratch.path / "r1.zarr").mkdir()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_next_start_removes_folders_of_killed_servers_and_nothing_else(tmp_path, monkeypatch):
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    killed = subprocess.run([sys.executable, "-c", KILLED], env=environment, check=False)
    (stale,) = tmp_path.iterdir()
    assert killed.returncode == -signal.SIGKILL and list(stale.iterdir())
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(0o700)
    (tmp_path / "floatscope-live-linkedto").symlink_to(elsewhere)
    readable, foreign = (tmp_path / f"floatscope-live-{name}" for name in ("readable", "foreign_"))
    readable.mkdir()
    readable.chmod(0o755)
    foreign.mkdir(0o700)
    (foreign / "thesis.tex").touch()
    (tmp_path / "floatscope-live-a_file__").touch()
    own = Scratch()
    names = {path.name for path in tmp_path.iterdir()} - {stale.name}
    sweep()
    assert {path.name for path in tmp_path.iterdir()} == names
    stale.mkdir(0o700)
    with serving(make_server([])):
        until(lambda: not stale.exists(), "the server has swept")
    assert {path.name for path in tmp_path.iterdir()} == names
    own.close()


# The key


def test_key_is_not_on_the_command_line_of_the_browser(tmp_path, monkeypatch):
    script, told, shown = (tmp_path / name for name in ("browser", "arguments", "copy.html"))
    script.write_text(
        f'#!/bin/sh\nprintf "%s\\n" "$0" "$@" > {told}\ncp -p "${{1#file://}}" {shown}\n'
    )
    script.chmod(0o700)
    monkeypatch.setenv("BROWSER", str(script))
    monkeypatch.setattr(webbrowser, "_tryorder", None)  # BROWSER is read once, when first needed
    monkeypatch.setattr(webbrowser, "_browsers", {})
    monkeypatch.setattr(LoopbackServer, "serve_forever", lambda server: servers.append(server))
    servers, said = [], []
    serve([], open_browser=True, say=said.append)
    (server,) = servers
    assert said[0].startswith(server.url)
    assert server.key not in told.read_text() and "open.html" in told.read_text()
    assert f'content="0;url={server.url}"' in shown.read_text()
    assert stat.S_IMODE(shown.stat().st_mode) == 0o600
    assert not server.page.runs.folder.exists()
