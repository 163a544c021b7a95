"""Requests made to hurt the live page, each from its seed, given to its application with a model behind it.

    python -m tests.attacks.hostile_live --count 1000 --seed 0

Every request is answered, with an error that says what is wrong where it is; no traceback, no 5xx but for a
model that is not there; nothing without the key, from another host or origin; and afterwards a run works.
"""

import argparse
import asyncio
import json
import random
import sys
import tempfile
from collections import Counter

import floatscope as fs
from floatscope.livepage.app import LivePage
from floatscope.livepage.host import ModelHosts
from floatscope.livepage.notebook import loaded
from floatscope.livepage.runs import Runs
from floatscope.report.loopback import LoopbackServer

PROMPT = {"question": "Who?", "passages": ["Ann.", "Bo."], "gold": 1}
SAMPLER = {"name": "confidence", "settings": {"length": 2, "steps": 2}}
RUN = {"model": "m0", "prompt": {"text": "Hi"}, "sampler": SAMPLER}
TOUCHES = [
    {"kind": "force", "step": 0, "position": 12, "token": 65},
    {"kind": "remask", "step": 0, "positions": [12]},
    {"kind": "ablate", "step": 0, "heads": [[0, 1]], "to": "zero"},
    {"kind": "hide", "step": 0, "positions": [1], "layers": [0], "heads": None},
    {"kind": "value", "step": 0, "positions": [1], "to": "mean"},
    {"kind": "cut", "step": 0, "queries": ["answer"], "keys": ["prompt"]},
]
LINKED = {"fingerprint": "x", "model": "pair/mdm", "prompt": PROMPT, "touches": TOUCHES}
BRANCH = {**LINKED, "sampler": SAMPLER, "touches": [], "from": {"run": 0, "step": 1}}
VIEW = {"step": 1, "layer": 0, "head": 1, "key": 3, "colour": "lift", "grid": "peak"}
VIEW |= {"end": False, "pattern": 0, "row": 12}
STATE = {"v": 1, "runs": [LINKED, BRANCH], "view": VIEW}  # what a link holds
POSTS = [
    *(("run", RUN | {"touches": [touch]}) for touch in TOUCHES),
    ("run", RUN),
    ("run", {"from": {"run": "r1", "step": 1}, "touches": TOUCHES[:1]}),
    ("tokens", {"model": "m0", "prompt": PROMPT, "length": 4}),
    ("candidates", {"run": "r1", "step": 0, "position": 12, "top": 5}),
    ("pattern", {"run": "r1", "step": 0, "layer": 0, "head": 0, "row": 12}),
    ("python", {"run": "r1"}),
    ("export", {"runs": ["r1"], "title": "t"}),
    ("forget", {"runs": ["r9"]}),
    *[("state", STATE)] * 3,
]
GETS = """ setup models index history scene/r1 scene/r1/heads/0 scene/r1/head/0/0 compare/r1/r1 trace/r1
assets/viewer.css assets/viewer.bundle.js""".split(" ")
NOWHERE = """scene/r999 scene/r1/heads/99 scene/r1/heads/-1 scene/r1/head/9/9 scene/../../etc/passwd
scene/..%2f assets/../app.py assets/..%2fapp.py assets/__init__.py assets/ assets/.. assets/%2e%2e trace/..
trace/r1/zarr.json compare/r1 compare/r1/r999 run tokens state favicon.ico RUN setup/ //setup scene/r1%00
scene/%72%31""".split()
VALUES = [  # that cannot be, and, at the end, some that can
    *(
        None,
        True,
        False,
        -1,
        0,
        10**6,
        10**30,
        -(10**30),
        1.5,
        1e308,
        "",
        "0",
        "r1",
        "m0",
        "m9",
        "r0",
    ),
    *(
        "\x00",
        "<script>alert(1)</script>",
        "../../etc/passwd",
        "x" * 5000,
        "é" * 200,
        "\ud800",
        "{{7*7}}",
    ),
    *(
        [],
        {},
        [[]],
        [None],
        ["x"] * 300,
        [0] * 5000,
        {"a": {"b": {}}},
        {"__proto__": 1},
        "__proto__",
        "constructor",
        "hasOwnProperty",
        {"kind": "force"},
    ),
    *({"name": "confidence", "settings": {"length": 10**9}}, {"name": "os.system", "settings": {}}),
    {"name": "position-calibrated", "settings": {"frequencies": "/etc/passwd"}},
    {"name": "confidence", "settings": {"length": 2, "steps": 9}},
    *(
        1,
        2,
        3,
        7,
        12,
        13,
        65,
        258,
        259,
        0.5,
        "answer",
        "gold",
        "prompt",
        "mean",
        "world",
        "r1",
        [12],
        [0, 1],
    ),
    {"text": " "},
    {"text": "a b " * 400},
]
FINE = {200, 400, 403, 404, 405, 413, 415}


def mutated(rng, value, depth=0):
    """The same JSON with something else somewhere in it."""
    if isinstance(value, dict) and value and (depth == 0 or rng.random() < 0.7):
        key = rng.choice(list(value))
        kind = rng.random()
        if kind < 0.15:
            return {k: v for k, v in value.items() if k != key}
        if kind < 0.25:
            return {
                **value,
                rng.choice(["x", "__class__", "__proto__", "model", "from", ""]): rng.choice(
                    VALUES
                ),
            }
        return {**value, key: mutated(rng, value[key], depth + 1)}
    if isinstance(value, list) and value and rng.random() < 0.7:
        at = rng.randrange(len(value))
        return [*value[:at], mutated(rng, value[at], depth + 1), *value[at + 1 :]]
    return rng.choice(VALUES)


def request(seed, key, port):
    """Method, path, headers, body of this seed; and whether it may be answered with 200 at all."""
    rng = random.Random(seed)
    headers = {"host": f"127.0.0.1:{port}", "content-type": "application/json"}
    method, path, body, barred = "POST", "", b"", False
    kind = rng.choice("body body body body text key host origin type method get nowhere".split())
    path, message = rng.choice(POSTS)
    body = json.dumps(message).encode()
    if kind == "body":
        for _ in range(rng.randint(1, 3)):
            message = mutated(rng, message)
        body = json.dumps(message).encode("utf-8", "surrogatepass")
    elif kind == "text":
        body = rng.choice(
            [
                *(
                    b"",
                    b"{",
                    b"null",
                    b"[]",
                    b"NaN",
                    b'{"run":NaN}',
                    b"\xff\xfe",
                    rng.randbytes(300),
                ),
                *(
                    body[: rng.randrange(len(body))],
                    b"[" * 100_000,
                    b'{"a":' * 20_000,
                    b'"' + b"x" * 1_100_000,
                ),
            ]
        )
    elif kind == "key":
        key, barred = rng.choice([key[:-1], key + "0", "", "%30" * 32, "é", "0" * 32]), True
    elif kind == "host":
        hosts = [
            "evil.example",
            "127.0.0.1",
            f"evil.example:{port}",
            "localhost:1",
            "",
            f"[::1]:{port}",
        ]
        headers["host"], barred = rng.choice(hosts), True
    elif kind == "origin":
        origins = [
            "http://evil.example",
            "null",
            f"https://127.0.0.1:{port}",
            "http://127.0.0.1:1",
            "",
            "*",
        ]
        headers["origin"], barred = rng.choice(origins), True
    elif kind == "type":
        kinds = ["text/plain", "application/x-www-form-urlencoded", "", "multipart/form-data"]
        headers["content-type"], barred = rng.choice(kinds), True
    elif kind == "method":
        method = rng.choice("PUT DELETE PATCH OPTIONS TRACE GET HEAD X".split())
        barred = True
    elif kind == "get":
        method, path, body = "GET", rng.choice(GETS), b""
    else:
        method, path, body, barred = "GET", rng.choice(NOWHERE), b"", True
    return method, f"/{key}/{path}", headers, body, barred


async def send(app, method, path, headers, body):
    """Status and body of one request, given to the application itself."""
    raw = path.encode("utf-8", "surrogatepass")
    scope = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method}
    scope |= {"scheme": "http", "path": path, "raw_path": raw, "query_string": b"", "root_path": ""}
    scope |= {"client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80)}
    scope["headers"] = [(k.encode(), v.encode("latin-1")) for k, v in headers.items()]
    sent, over = [{"type": "http.request", "body": body, "more_body": False}], asyncio.Event()
    status, received = [], bytearray()

    async def receive():
        if sent:
            return sent.pop()
        await over.wait()
        return {"type": "http.disconnect"}

    async def answer(message):
        if message["type"] == "http.response.start":
            status.append(message["status"])
        received.extend(message.get("body", b""))

    await app(scope, receive, answer)
    return status[0], bytes(received)


def judge_state(answer):
    """The page reads the answer to a link without looking: every field is there, of its kind."""
    state, runs = answer["state"], answer["state"]["runs"]
    assert state["v"] == 1 and len(runs) == len(answer["runs"]) <= 8
    assert set(state["view"]) <= set(VIEW) and "constructor" not in state["view"].values()
    for run, request in zip(runs, answer["runs"], strict=True):
        assert set(run) == {*LINKED, "sampler", "from"}
        assert isinstance(run["prompt"].get("text", run["prompt"].get("question")), str)
        assert run["sampler"] is None or isinstance(run["sampler"]["settings"], dict)
        assert all(isinstance(touch["step"], int) for touch in run["touches"])
        assert run["from"] is None or run["from"]["run"] in range(len(runs))
        assert request is None or set(request) == {"model", "prompt", "sampler", "touches"}
    assert [one["run"] for one in answer["missing"]] == [
        i for i, request in enumerate(answer["runs"]) if request is None
    ]
    assert all(one["message"] and one["remedy"] for one in answer["missing"])


def judge(status, content, barred, method):
    if status not in FINE:
        return f"status {status}: {content[:300]!r}"
    if b"Traceback" in content or b"site-packages" in content or b"root:x:" in content:
        return f"{content[:300]!r}"
    if barred and status == 200:
        return f"answered: {content[:200]!r}"
    if status >= 400 and method != "HEAD":
        error = json.loads(content)["error"]
        if not error["message"] or error["kind"] == "internal":
            return f"{error}"
    return ""


async def attacked(page, guarded, key, port, seeds):
    outcomes, failures = Counter(), []
    async with page.asgi.router.lifespan_context(page.asgi):
        headers = {"host": f"127.0.0.1:{port}", "content-type": "application/json"}
        good = ("POST", f"/{key}/run", headers, json.dumps(RUN).encode())
        assert b'"event":"done"' in (await send(guarded, *good))[1]
        for seed in seeds:
            *asked, barred = request(seed, key, port)
            status, content = await send(guarded, *asked)
            outcomes[status] += 1
            if status == 200 and asked[1].endswith("/run") and asked[0] == "POST":
                last = json.loads(content.splitlines()[-1])
                outcomes[last["event"]] += 1
                if last.get("error", {}).get("kind", "usage") not in ("usage", "limit"):
                    failures.append(f"seed {seed}: {last}")
            if status == 200 and asked[1].endswith("/state"):
                outcomes["opened"] += 1
                try:
                    judge_state(json.loads(content))
                except (AssertionError, KeyError):
                    failures.append(f"seed {seed}: {content[:300]!r}")
            if wrong := judge(status, content, barred, asked[0]):
                failures.append(f"seed {seed}: {asked[:2]}: {wrong}")
        if b'"event":"done"' not in (await send(guarded, *good))[1]:
            failures.append("a good run afterwards does not work")
    return outcomes, failures


def attack(model, count, seed=0):
    """Outcomes by status and last event, and what failed."""
    page = LivePage([loaded("m0", model, ModelHosts())], Runs("attacked", most=10_000))
    server = LoopbackServer(page, 0)  # for its guard; it is bound, and never serves
    try:
        seeds = range(seed, seed + count)
        return asyncio.run(attacked(page, server.app, server.key, server.server_port, seeds))
    finally:
        server.server_close()


def main():
    from floatscope.models import tiny

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        outcomes, failures = attack(
            fs.load(tiny.write("LLaDA", folder)), options.count, options.seed
        )
    print(f"{options.count} requests from seed {options.seed}")
    for name, n in sorted(outcomes.items(), key=str):
        print(f"  {name!s:<12}{n:>7}")
    print(f"  {'failures':<12}{len(failures):>7}")
    for failure in failures[:20]:
        print(failure, file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
