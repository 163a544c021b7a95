"""Requests made to hurt, each from its seed, sent raw to a served viewer.

    python -m tests.attacks.hostile_requests --count 500 --seed 0

Every connection must end in whole HTTP responses or be closed, in time; no traceback, no 5xx but for
what is not supported, nothing without the key, nothing from outside; and afterwards a good request works.
"""

import argparse
import contextlib
import io
import random
import re
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from floatscope.report.loopback import Connection
from floatscope.report.serve import make_server

OLD = Path(__file__).parents[1] / "data" / "trace.zarr"
SECRET = b"nobody must read this"
LIMIT = 60  # seconds for one connection: a hang, not a slow machine
_POLL = 0.02  # seconds between two looks at a connection on which nothing comes
UNSUPPORTED = {501, 505}
STATUS = re.compile(rb"HTTP/1\.[01] ([0-9]{3}) [ -~]*\r\n")
LENGTH = re.compile(rb"(?i)\r\ncontent-length: ([0-9]+)\r\n")

GOOD = ["", "index", "scene/t0", "scene/t0/heads/0", "scene/t0/heads/1", "scene/t0/head/0/0"]
NOWHERE = """scene/t9 scene/t0/heads/999999 scene/t0/heads/-1 scene/t0/heads/1e9 scene/ scene secret.txt
../secret.txt ..%2fsecret.txt %2e%2e/secret.txt ..%5csecret.txt ....//secret.txt ..;/secret.txt
scene/../../secret.txt scene/..%2f..%2fsecret.txt scene/t0%00 scene/t0%2f..%2f..%2fsecret.txt
t.zarr/zarr.json t.zarr/secret.txt /etc/passwd //etc/passwd file:///etc/passwd index/ INDEX index%20
scene/t0/head/0/999999 scene/t0/head/999999/0 scene/t0/head/0 scene/t0/head/0/-1 scene/t0/head/0/0/0
scene/t0/head/٣/0 scene/t9/head/0/0 scene/t0/head//0
scene/t0/heads/٣ scene/%74%30 ?key= #index index;a=b index\\..\\secret.txt""".split()
METHODS = "POST PUT HEAD DELETE OPTIONS TRACE CONNECT PATCH get G PROPFIND GET\x00 \x01 GÉT".split(
    " "
)
VERSIONS = (
    "HTTP/1.0 HTTP/0.9 HTTP/2.0 HTTP/1.2 HTTP/9.9 HTTP/1 HTTP/1.1.1 HTTP/²  http/1.1 FTP/1.1".split(
        " "
    )
)
VERSIONS += [f"HTTP/{'9' * 5000}.1"]
HOSTS = ["evil.example", "127.0.0.1", "127.0.0.1:1", "localhost:99999", "[::1]:{port}", "", "\xff"]
HOSTS += [
    "127.0.0.1:{port}\r\nHost: evil.example",
    "evil@127.0.0.1:{port}",
    "127.0.0.1.evil:{port}",
]
HEADERS = [
    *("Range: bytes=0-0", "Range: bytes=-1", "Range: bytes=9-1,0-,-" + "9" * 99, "Range: lines=1"),
    *(
        "Content-Length: 5",
        "Content-Length: -1",
        "Content-Length: 99999999999",
        "Content-Length: x",
    ),
    *("Transfer-Encoding: chunked", "Transfer-Encoding: gzip, chunked", "Expect: 100-continue"),
    *("Connection: upgrade\r\nUpgrade: websocket", "Upgrade: h2c", "Connection: keep-alive"),
    *("Origin: http://evil.example", "Cookie: " + "a=b; " * 2000, "Accept-Encoding: gzip;q=9"),
    *(
        "X: " + "x" * 70_000,
        "X" * 70_000,
        "X: é\x00\x1b[2J",
        " folded: yes",
        ":",
        "no colon",
        "\tX: 1",
    ),
    *("\r\n".join(f"X{i}: 1" for i in range(150)), "X: a\rb: c", "If-Range: *\r\nIf-Match: *"),
]
GARBAGE = [
    b"",
    b"\r\n" * 50,
    b"\0" * 100,
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"GET",
    b"\n",
]
GARBAGE += [
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET /\r\n",
    b"GET / HTTP/1.1",
    b"A" * 200_000,
    b"\xff\xfe",
]


def request(seed: int, key: str = "0" * 32, port: int = 1) -> bytes:
    """The bytes of this seed."""
    rng = random.Random(seed)
    raw = _one(rng, key, port)
    for _ in range(rng.choice([0, 0, 0, 0, 1, 20])):  # one after the other on one connection
        raw += _one(rng, key, port)
    return raw


def _one(rng: random.Random, key: str, port: int) -> bytes:
    method, path, version = "GET", f"/{key}/" + rng.choice(GOOD), "HTTP/1.1"
    host, headers = f"127.0.0.1:{port}", []
    kind = rng.choice(
        "good path key method version host header header cut flip garbage long".split()
    )
    if kind == "path":
        path = f"/{key}/" + rng.choice(NOWHERE)
    elif kind == "key":
        wrong = [
            key[:-1],
            key + "0",
            key.upper() + "x",
            "",
            "é" * 32,
            "%30" * 32,
            "/" + key,
            f"{key}%2f",
        ]
        path = f"/{rng.choice(wrong)}/" + rng.choice([*GOOD, *NOWHERE])
        if rng.random() < 0.2:
            path = rng.choice(["*", f"http://127.0.0.1:{port}/{key}/index", "index", "//", "/../"])
    elif kind == "method":
        method = rng.choice(METHODS)
    elif kind == "version":
        version = rng.choice(VERSIONS)
    elif kind == "host":
        host = rng.choice(HOSTS).replace("{port}", str(port))
    elif kind == "header":
        headers = rng.sample(HEADERS, rng.randint(1, 4))
    elif kind == "garbage":
        return rng.choice([*GARBAGE, rng.randbytes(rng.randint(1, 5000))])
    elif kind == "long":
        path += rng.choice(["?", "/", "%"]) + "a" * rng.choice([60_000, 70_000, 300_000])
    lines = [f"{method} {path} {version}", f"Host: {host}", *headers, "", ""]
    raw = rng.choice(["\r\n"] * 9 + ["\n"]).join(lines).encode("utf-8", "surrogateescape")
    if kind == "cut":
        raw = raw[: rng.randrange(len(raw))]
    for _ in range(rng.randint(1, 4) if kind == "flip" else 0):
        at = rng.randrange(len(raw))
        raw = raw[:at] + rng.choice([b"", rng.randbytes(1), b"\r\n", b" "]) + raw[at + 1 :]
    return raw


class Clock:
    """The time of a server's connections: it passes when a test says so."""

    def __init__(self, server) -> None:
        self.now = 0.0
        self._open: dict[tuple[str, int], _Timed] = {}  # by the client's address
        server.connection = type("Timed", (_Timed,), {"clock": self})

    def end_of(self, client: socket.socket) -> "_Timed | None":
        """The server's end of a connection, or None where it is not open."""
        return self._open.get(client.getsockname())

    def elapse(self, seconds: float) -> None:
        """Let time pass for all connections; when this returns, the server has acted on it."""
        acted: Future[None] = Future()

        def act() -> None:
            self.now += seconds
            for connection in [*self._open.values()]:
                if any(timer.due <= self.now for timer in connection.timers):
                    connection.transport.abort()
            acted.set_result(None)

        (connection, *_) = [*self._open.values()]
        connection.loop.call_soon_threadsafe(act)
        acted.result(LIMIT)

    def run_out(self, client: socket.socket, sent: int) -> None:
        """Let time pass for a connection on which all was received and answered, and more is awaited."""

        def act() -> None:
            cycle = connection.cycle
            answered = cycle is None or cycle.response_complete
            left = connection.transport.get_write_buffer_size()
            if connection.timers and connection.received == sent and answered and not left:
                connection.transport.abort()

        if (connection := self.end_of(client)) is not None:
            connection.loop.call_soon_threadsafe(act)


class _Timed(Connection):
    clock: Clock

    def connection_made(self, transport) -> None:
        self.timers: set[_Timer] = set()
        self.received = 0
        self.peer = transport.get_extra_info("peername")  # None where it has gone already
        self.clock._open[self.peer] = self
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self.received += len(data)

    def cut_after(self, seconds: float) -> "_Timer":
        return _Timer(self.timers, self.clock.now + seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.clock._open.pop(self.peer, None)


class _Timer:
    def __init__(self, timers: "set[_Timer]", due: float) -> None:
        self.timers, self.due = timers, due
        timers.add(self)

    def cancel(self) -> None:
        self.timers.discard(self)


def send(seed: int, key: str, port: int, clock: Clock) -> tuple[str, str]:
    """What became of it: a short name, and what was wrong with that, or "".

    The server's time passes for a client that stays without a word, and for no other: however slow the
    machine is, no answer is cut short.
    """
    rng, raw = random.Random(~seed), request(seed, key, port)
    ending = rng.choice(["ends", "ends", "ends", "stays", "goes", "pieces"])
    received = b""
    with socket.create_connection(("127.0.0.1", port), timeout=LIMIT) as connection:
        try:
            pieces = (
                [raw[i : i + 7] for i in range(0, len(raw), 7)] if ending == "pieces" else [raw]
            )
            pieces = pieces[:500]
            for piece in pieces:
                connection.sendall(piece)
            if ending == "goes":  # away, with a reset, in the middle of the answer
                linger = b"\1\0\0\0\0\0\0\0"
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                return "went away", ""
            if ending != "stays":
                connection.shutdown(socket.SHUT_WR)
            connection.settimeout(_POLL)
            last = time.monotonic() + LIMIT
            while True:
                try:
                    piece = connection.recv(1 << 16)
                except TimeoutError:
                    if time.monotonic() > last:
                        raise
                    if ending == "stays":
                        clock.run_out(connection, sum(map(len, pieces)))
                    continue
                if not piece:
                    break
                received += piece
        except TimeoutError:
            return "held", f"neither answered nor closed in {LIMIT} s"
        except OSError:  # closed with what was sent still unread
            if not received:
                return "closed", ""
    return judge(raw, received, key)


def judge(raw: bytes, received: bytes, key: str) -> tuple[str, str]:
    if SECRET in received or b"root:x:" in received:
        return "leak", "a file was served"
    statuses, left = [], received
    while left:
        head, gap, left = left.partition(b"\r\n\r\n")
        status, length = STATUS.match(head + b"\r\n"), LENGTH.search(head + b"\r\n")
        if not gap or not status or not (length or status[1] == b"100"):
            return "no HTTP", f"{received[:200]!r}"
        statuses.append(int(status[1]))
        bare = b"HEAD" in raw and (not left or left.startswith(b"HTTP/1."))  # has a length, no body
        if length and not bare:
            left = left[int(length[1]) :] if len(left) >= int(length[1]) else b"cut short"
    if not statuses:
        return "closed", ""
    name = "200" if set(statuses) == {200} else str(max(statuses))
    if any(one >= 500 and one not in UNSUPPORTED for one in statuses):
        return name, f"{received[:300]!r}"
    if 200 in statuses and f"/{key}/".encode() not in raw:
        return name, "answered without the key"
    return name, ""


def attack(count: int, seed: int = 0) -> tuple[Counter[str], list[str]]:
    """Outcomes by name, and what failed."""
    outcomes: Counter[str] = Counter()
    said = io.StringIO()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(said):
        served = Path(folder) / "served"
        shutil.copytree(OLD, served / "t.zarr")
        for place in (folder, served, served / "t.zarr"):
            (Path(place) / "secret.txt").write_bytes(SECRET)
        server = make_server(served)
        clock = Clock(server)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        failures = []
        try:
            with ThreadPoolExecutor(8) as clients:
                seeds = range(seed, seed + count)
                results = clients.map(
                    lambda one: send(one, server.key, server.server_port, clock), seeds
                )
                for one, (name, wrong) in zip(seeds, results, strict=True):
                    outcomes[name] += 1
                    if wrong:
                        failures.append(f"seed {one}: {name}: {wrong}")
            failures += _still_works(server)
        finally:
            server.shutdown()
            server.server_close()
            thread.join()
    if said.getvalue():
        failures.append(f"printed by the server: {said.getvalue()[:2000]}")
    return outcomes, failures


def _still_works(server) -> list[str]:
    raw = (
        f"GET /{server.key}/index HTTP/1.1\r\nHost: 127.0.0.1:{server.server_port}\r\n\r\n".encode()
    )
    received, last = b"", time.monotonic() + LIMIT
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=LIMIT) as connection:
        connection.sendall(raw)
        connection.shutdown(socket.SHUT_WR)
        while time.monotonic() < last and (piece := connection.recv(1 << 16)):
            received += piece
    if judge(raw, received, server.key) == ("200", "") and b'"examples"' in received:
        return []
    return [f"a good request afterwards: {received[:300]!r}"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    outcomes, failures = attack(options.count, options.seed)
    print(f"{options.count} requests from seed {options.seed}")
    for name, n in sorted(outcomes.items()):
        print(f"  {name:<12}{n:>7}")
    print(f"  {'failures':<12}{len(failures):>7}")
    for failure in failures[:20]:
        print(failure, file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
