"""A client of the live page without a browser: requests, and streams read line by line as they come."""

import http.client
import json
import threading
from contextlib import contextmanager

from waiting import LIMIT, until


class Client:
    """Talks to a server of `floatscope.livepage`, as a program does that has its address."""

    def __init__(self, server):
        self.port, self.key = server.server_port, server.key

    def connection(self, method, path, body=None, headers=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT)
        given = {} if body is None else {"content-type": "application/json"}
        text = body if isinstance(body, bytes | None) else json.dumps(body)
        connection.request(method, f"/{self.key}/{path}", text, given | (headers or {}))
        return connection

    def ask(self, method, path, body=None, headers=None):
        """Status, and the answer: JSON where it is, bytes where not."""
        connection = self.connection(method, path, body, headers)
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        is_json = answer.headers["content-type"] == "application/json"
        return answer.status, json.loads(content) if is_json else content

    def get(self, path):
        status, answer = self.ask("GET", path)
        assert status == 200, answer
        return answer

    def post(self, path, body):
        status, answer = self.ask("POST", path, body)
        assert status == 200, answer
        return answer

    @contextmanager
    def stream(self, body):
        """The events of a run as they come; leaving closes the connection."""
        connection = self.connection("POST", "run", body)
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        try:
            yield (json.loads(line) for line in answer)
        finally:
            answer.close()
            connection.close()

    def run(self, body):
        with self.stream(body) as events:
            return list(events)

    def ready(self):
        until(
            lambda: all(m["state"] in ("ready", "failed") for m in self.get("models")["models"]),
            "the models are there",
        )
        return self


@contextmanager
def serving(server):
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield Client(server)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
