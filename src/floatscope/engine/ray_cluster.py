"""Connect to a Ray cluster, and check that Ray is installed, reachable and alive."""

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
# time for a head to be restarted; after 60 s without a head Ray ends the program
_HEAD_SECONDS = 40.0
_END_SECONDS = 30.0


class Cluster:
    """The state of a Ray cluster, queried in a thread because Ray's calls do not return if its head hangs."""

    def __init__(self, ray: Any) -> None:
        from ray.util.client import ray as client

        self._ray = ray
        self._machines: set[str] | None = None
        self._free = "not known"
        self._queried = self._answered = time.monotonic()
        self._query: threading.Thread | None = None
        # Behind a `ray://` address this machine is no node of the cluster.
        self._node = None if client.is_connected() else ray.get_runtime_context().get_node_id()

    def check(self) -> None:
        """Raise RunError if the head, this machine or all machines have left the cluster.

        The cluster is queried every five seconds.
        """
        timestamp = time.monotonic()
        if timestamp - self._queried < _CHECK_SECONDS:
            return
        if timestamp - self._queried > _HEAD_SECONDS:  # this machine slept, or its disk was slow
            self._answered = timestamp
        self._queried = timestamp
        if self._query is None or not self._query.is_alive():
            self._query = threading.Thread(target=self._ask, daemon=True)
            self._query.start()
        if timestamp - self._answered > _HEAD_SECONDS:
            raise cluster_error("its head no longer answers")
        if self._machines is not None and self._node not in (None, *self._machines):
            reason = "this machine is no longer a part of it"
            raise cluster_error(reason if self._machines else "no machine is left")

    def free(self) -> str:
        """Return the free CPUs and GPUs as text, as of the cluster's latest answer."""
        return self._free

    def _ask(self) -> None:
        with suppress(Exception):  # `check` notices that there is no answer
            self._machines = {node["NodeID"] for node in self._ray.nodes() if node["Alive"]}
            free = self._ray.available_resources()
            self._free = f"{free.get('CPU', 0):g} CPUs and {free.get('GPU', 0):g} GPUs"
            self._answered = time.monotonic()


def run_in_thread(ray: Any, steps: list[Callable[[], None]]) -> None:
    """Run the final steps of a run in a thread, and wait for at most 30 s.

    The steps do not return if the cluster's head hangs.

    Args:
        ray (module): Ray. Its shutdown at exit is unregistered if the steps do not return.
        steps (list of callables): Steps, called one after the other.
    """

    def run() -> None:
        for step in steps:
            step()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(_END_SECONDS)
    if thread.is_alive():
        atexit.unregister(ray.shutdown)


def cluster_error(reason: str) -> RunError:
    """Return the error for a lost cluster, with the reason."""
    return RunError(
        f"the Ray cluster is lost: {reason}",
        "Stored shards are kept: restart Ray, then run the command again with --resume.",
    )


def import_ray() -> Any:
    """Import and return Ray; if it is not installed, raise an error that explains how to install it."""
    # By default Ray reports usage statistics to its makers.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Ray's default of 15 leaves workers little time beside other programs; local processes have 0.
    os.environ.setdefault("RAY_worker_niceness", "0")
    try:
        import ray
    except ImportError as error:
        raise RunError(
            "the Ray engine needs Ray, which is not installed",
            "pip install 'floatscope[ray]', or use --engine local.",
        ) from error
    return ray


def check_address(address: str) -> None:
    """Raise OSError if nothing answers at an address HOST:PORT, where Ray would retry for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
