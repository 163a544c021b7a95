"""A Ray cluster as a run needs it: installed, reachable, still alive. No work is done here."""

import atexit
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ..errors import RunError

_CHECK_SECONDS = 5.0
_HEAD_SECONDS = (
    40.0  # a head may be restarted; after 60 s without one Ray ends the program, unasked
)
_LEAVING_SECONDS = 30.0


class Cluster:
    """Whether the cluster that a run works with still exists, and what it has to give.

    A thread asks: from a head that is gone, or hangs, Ray does not come back with an answer.
    """

    def __init__(self, ray: Any) -> None:
        from ray.util.client import ray as client

        self._ray = ray
        self._machines: set[str] | None = None
        self._free = "not known"
        self._asked = self._answered = time.monotonic()
        self._asking: threading.Thread | None = None
        # Behind a `ray://` address there is no machine of the cluster's here; Ray says when it is gone.
        self._here = None if client.is_connected() else ray.get_runtime_context().get_node_id()

    def check(self) -> None:
        """Now and then. An error where the head, or the last machine, or this one is out of it."""
        now = time.monotonic()
        if now - self._asked < _CHECK_SECONDS:
            return
        if now - self._asked > _HEAD_SECONDS:  # nobody asked: a machine that slept, or a slow disk
            self._answered = now
        self._asked = now
        if self._asking is None or not self._asking.is_alive():
            self._asking = threading.Thread(target=self._ask, daemon=True)
            self._asking.start()
        if now - self._answered > _HEAD_SECONDS:
            raise gone("its head no longer answers")
        if self._machines is not None and self._here not in (None, *self._machines):
            some = "this machine is no longer a part of it"
            raise gone(some if self._machines else "no machine is left")

    def free(self) -> str:
        """What a further worker could have, as far as it was heard."""
        return self._free

    def _ask(self) -> None:
        with suppress(Exception):  # no answer is the answer
            self._machines = {node["NodeID"] for node in self._ray.nodes() if node["Alive"]}
            free = self._ray.available_resources()
            self._free = f"{free.get('CPU', 0):g} CPUs and {free.get('GPU', 0):g} GPUs"
            self._answered = time.monotonic()


def leave(ray: Any, steps: list[Callable[[], None]]) -> None:
    """Take these steps, in a thread: with a head that hangs Ray would end neither them nor the program."""

    def take() -> None:
        for step in steps:
            step()

    leaving = threading.Thread(target=take, daemon=True)
    leaving.start()
    leaving.join(_LEAVING_SECONDS)
    if leaving.is_alive():
        atexit.unregister(ray.shutdown)


def gone(why: str) -> RunError:
    return RunError(
        f"the Ray cluster is lost: {why}",
        "What was stored is kept: start Ray again, then run it again with --resume.",
    )


def imported() -> Any:
    # Ray reports its use to its makers unless told not to; a measurement has nothing to report.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Ray's own 15 would leave a worker hardly any time beside other programs; a local process has 0.
    os.environ.setdefault("RAY_worker_niceness", "0")
    try:
        import ray
    except ImportError as error:
        raise RunError(
            "the Ray engine needs Ray, which is not installed",
            "pip install 'floatscope[ray]', or use --engine local.",
        ) from error
    return ray


def knock(address: str) -> None:
    """Ray tries an address where nobody answers for minutes; "auto" and client URLs are its own."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
