"""Clients of the served view that want in, want it stopped, or just go away; and two seeded attacks."""

import http.client
import socket
import threading
from contextlib import contextmanager

import hostile_records
import hostile_requests
import pytest
from waiting import LIMIT, until

from floatscope.report.loopback import PATIENCE
from floatscope.report.serve import make_server


class Slow:
    """A source whose index takes until it is let go, and whose scene is large."""

    title = "Slow"

    def __init__(self):
        self.asked, self.go = threading.Event(), threading.Event()

    def index(self):
        self.asked.set()
        assert self.go.wait(LIMIT)
        return {"examples": []}

    def scene(self, scene_id):
        return {"text": "x" * 20_000_000}

    def heads(self, scene_id, step):
        raise KeyError(step)

    def head(self, scene_id, layer, head):
        raise KeyError(head)


@contextmanager
def serving(source):
    server = make_server(source)
    server.clock = hostile_requests.Clock(server)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def server():
    with serving(Slow()) as made:
        yield made


def connected(server):
    return socket.create_connection(("127.0.0.1", server.server_port), timeout=LIMIT)


def rest_of(connection):
    received = b""
    try:
        while piece := connection.recv(1 << 16):
            received += piece
    except ConnectionError:
        pass
    return received


def status_of(server, path, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=LIMIT)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, body


def test_without_the_key_nothing_is_shown(server):
    assert status_of(server, f"/{server.key}/")[0] == 200
    assert server.url == f"http://127.0.0.1:{server.server_port}/{server.key}/"
    keys = ["", server.key[:-1], server.key + "0", server.key.upper() + "z", "%C3%A9", "0" * 32]
    for path in ("/", "/index", f"/{server.key}", *(f"/{key}/index" for key in keys)):
        status, body = status_of(server, path)
        assert status == 403 and b"key" in body
    with serving(Slow()) as other:
        assert other.key != server.key
        assert status_of(other, f"/{server.key}/")[0] == 403


def received(server, connection, count):
    """Until the server has read so many bytes of a connection; its end of it."""

    def has_read():
        end = server.clock.end_of(connection)
        return end if end is not None and end.received == count else None

    return until(has_read, f"the server has read {count} bytes")


@pytest.mark.parametrize("half", [b"", b"GET /", b"GET / HTTP/1.1\r\nHost: 127", b"\r"])
def test_half_a_request_is_cut_after_its_time(server, half):
    with connected(server) as connection:
        connection.sendall(half)
        received(server, connection, len(half))
        server.clock.elapse(1)
        assert server.connections == 1
        server.clock.elapse(PATIENCE)
        assert b" 200 " not in rest_of(connection)
    until(lambda: not server.connections, "the connection is forgotten")


def test_bytes_that_drip_in_give_a_request_no_more_time(server):
    with connected(server) as connection:
        for count in (1, 2, 3):
            connection.sendall(b"x")
            received(server, connection, count)
            assert server.connections == 1
            server.clock.elapse(PATIENCE / 3)
        until(lambda: not server.connections, "the server hangs up")
        assert rest_of(connection) == b""


def test_patience_is_for_requests_and_not_for_answers(server):
    with connected(server) as connection:
        lines = f"GET /{server.key}/index HTTP/1.1\r\nHost: 127.0.0.1:{server.server_port}\r\n\r\n"
        connection.sendall(lines.encode())
        assert server.page.source.asked.wait(LIMIT)
        with connected(server) as silent:
            received(server, silent, 0)
            server.clock.elapse(10 * PATIENCE)
            assert rest_of(silent) == b""
        connection.shutdown(socket.SHUT_WR)
        server.page.source.go.set()
        assert b"HTTP/1.1 200 " in rest_of(connection)


def test_a_crowd_is_turned_away(server):
    server.most = 2
    with connected(server), connected(server) as second:
        until(lambda: server.connections == 2, "both are welcome")
        with connected(server) as third:
            assert rest_of(third) == b""
        second.close()
        until(lambda: server.connections == 1, "one has left")
        assert status_of(server, f"/{server.key}/")[0] == 200


def test_a_client_that_goes_away_is_no_error(server, capsys):
    path = f"/{server.key}/scene/t0"
    for wanted in (0, 10):
        with connected(server) as connection:
            host = f"127.0.0.1:{server.server_port}"
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            assert len(connection.recv(wanted)) == wanted
            linger = b"\1\0\0\0\0\0\0\0"  # a reset, with most of the answer unread
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    until(lambda: not server.connections, "both are forgotten")
    assert status_of(server, path)[0] == 200
    assert capsys.readouterr().err == ""


def test_a_client_that_does_not_read_is_cut(server):
    with connected(server) as connection:
        host = f"127.0.0.1:{server.server_port}"
        lines = f"GET /{server.key}/scene/t0 HTTP/1.1\r\nHost: {host}\r\n\r\n"
        connection.sendall(lines.encode())
        end = received(server, connection, len(lines))
        until(lambda: end.flow.write_paused, "the answer is held up")
        server.clock.elapse(PATIENCE - 1)
        assert server.connections == 1
        server.clock.elapse(1)
        until(lambda: not server.connections, "the server hangs up")
        assert len(rest_of(connection)) < 20_000_000


def test_a_body_is_not_the_next_request(server):
    host = f"Host: 127.0.0.1:{server.server_port}\r\n"
    smuggled = f"GET /{server.key}/ HTTP/1.1\r\n{host}\r\n"
    with connected(server) as connection:
        head = f"GET /{server.key}/x HTTP/1.1\r\n{host}Content-Length: {len(smuggled)}\r\n\r\n"
        connection.sendall((head + smuggled).encode())
        connection.shutdown(socket.SHUT_WR)
        received = rest_of(connection)
    assert received.count(b"HTTP/1.1 ") == 1 and received.startswith(b"HTTP/1.1 404")


def test_an_answer_comes_whole_though_more_was_sent(server):
    """A page, then what ends the connection, then more than is ever read."""
    host = f"Host: 127.0.0.1:{server.server_port}\r\n"
    page = f"GET /{server.key}/ HTTP/1.1\r\n{host}\r\n"
    with connected(server) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall((page + "POST / HTTP/1.1\r\n\r\n" + "x" * 400_000).encode())
        until(lambda: connection.recv(1, socket.MSG_PEEK), "an answer has begun")
        connection.shutdown(socket.SHUT_WR)
        received = rest_of(connection)
    assert received.count(b"</html>") == 1 and b"HTTP/1.1 400 " in received


@pytest.mark.parametrize("version", ["HTTP/0.9", "HTTP/2.0", ""])
def test_every_answer_has_a_status(server, version):
    with connected(server) as connection:
        connection.sendall(f"GET /{server.key}/ {version}\r\n\r\n".encode())
        connection.shutdown(socket.SHUT_WR)
        assert rest_of(connection).startswith(b"HTTP/1.1 ")


# Seeded; in full: python -m tests.attacks.hostile_requests, python -m tests.attacks.hostile_records


def test_seeded_requests():
    outcomes, failures = hostile_requests.attack(60)
    assert not failures
    assert {"200", "403", "400", "went away"} <= outcomes.keys() and sum(outcomes.values()) == 60
    assert hostile_requests.request(7) == hostile_requests.request(7) != hostile_requests.request(8)


def test_seeded_records():
    outcomes, failures = hostile_records.attack(200)
    assert not failures
    assert {"read", "read, some bad", "refused"} == outcomes.keys()
    assert hostile_records.record(7) == hostile_records.record(7) != hostile_records.record(8)
