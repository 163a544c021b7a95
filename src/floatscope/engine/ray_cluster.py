"""A Ray cluster as a run needs it: installed, reachable, still alive. No work is done here."""

import os
import socket
import time
from typing import Any

from ..errors import RunError

_CHECK_SECONDS = 5.0
_HEAD_SECONDS = 40.0  # a head may be restarted; after 60 s without one Ray ends the program, unasked


class Cluster:
    """Whether the cluster that a run works with still exists."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        context = ray.get_runtime_context()
        self._head, self._node = context.gcs_address, context.get_node_id()
        self._checked = self._answered = time.monotonic()
        self._watched = not _refusal(self._head)  # behind a `ray://` address it is not seen from here

    def check(self) -> None:
        """Now and then. An error where the head, or the last machine, or this one is out of it."""
        now = time.monotonic()
        if not self._watched or now - self._checked < _CHECK_SECONDS:
            return
        if now - self._checked > _HEAD_SECONDS:  # nobody asked: a machine that slept, or a slow disk
            self._answered = now
        self._checked = now
        if why := _refusal(self._head):
            if now - self._answered > _HEAD_SECONDS:
                raise _gone(f"its head at {self._head} no longer answers ({why})")
            return
        self._answered = now
        alive = {node["NodeID"] for node in self._ray.nodes() if node["Alive"]}
        if self._node not in alive:
            raise _gone("this machine is no longer a part of it" if alive else "no machine is left")

    def free(self) -> str:
        """What a further worker could have. Without a head Ray would not come back from this question."""
        if self._watched and _refusal(self._head):
            return "not known: its head does not answer"
        free = self._ray.available_resources()
        return f"{free.get('CPU', 0):g} CPUs and {free.get('GPU', 0):g} GPUs"


def _gone(why: str) -> RunError:
    return RunError(
        f"the Ray cluster is lost: {why}",
        "What was stored is kept: start Ray again, then run it again with --resume.",
    )


def imported() -> Any:
    # Ray reports its use to its makers unless told not to; a measurement has nothing to report.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as error:
        raise RunError(
            "the Ray engine needs Ray, which is not installed",
            "pip install 'floatscope[ray]', or use --engine local.",
        ) from error
    return ray


def knock(address: str, seconds: float = 10.0) -> None:
    """Ray tries an address where nobody answers for minutes; "auto" and client URLs are its own."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=seconds).close()


def _refusal(address: str) -> str:
    """Why nobody answers there; nothing where somebody does."""
    try:
        knock(address, seconds=2.0)
    except OSError as error:
        return str(error.strerror or error)
    return ""
