"""Define plans. A plan has a request, the function that computes shards, and a list of shards.

A plan contains only JSON values, so that it can be stored, compared with a stored run, and sent to another
machine. The key of a shard is a checksum of the request and the function, and of the shard's id and spec. No
shard is computed in this module.
"""

import hashlib
import importlib
import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import xarray as xr

from ..errors import UsageError

SCHEMA = 1  # of run.json, manifest.json and the shard files
_SHOWN = 5  # differences in a line
_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,119}")

Tick = Callable[[float, float], None]
"""`tick(done, of)`: how far a shard has come."""


@dataclass(frozen=True)
class Output:
    """The result of one shard: labelled datasets by name, and JSON metadata.

    The list `meta["left_out"]` states what the worker left out and why; the manifest collects the lists of
    all shards. `sources` has the checksum of each file or model that the output was computed from, by a name
    such as "model pair/mdm" or "data q.jsonl". The checksum of a source must be the same in all shards of a
    run.
    """

    data: dict[str, xr.Dataset]
    meta: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)


Worker = Callable[[dict[str, Any], Tick], Output]
"""Called with a shard's spec, as often as there are shards for it."""

WorkerFactory = Callable[[dict[str, Any], dict[str, Any]], Worker]
"""What a plan's `worker` names: called once per process with the plan's request and context."""


@dataclass(frozen=True)
class Shard:
    """A unit of work: an id, which names the shard's file, and a spec, which the worker receives."""

    id: str
    spec: dict[str, Any]

    def __post_init__(self) -> None:
        if not is_name(self.id):
            raise UsageError(
                f"{self.id!r} is no valid name of a shard",
                "Use at most 120 letters, digits, '.', '_' and '-', beginning with a letter or digit.",
            )
        object.__setattr__(self, "spec", as_json(self.spec, f"the spec of shard {self.id}"))


@dataclass(frozen=True)
class Plan:
    """A request with its worker and shards. `worker` is "module:function", a WorkerFactory.

    `left_out` lists the records that planning dropped, as JSON objects with the reason. `context` tells
    workers where files are and what checksums to expect. Plans that differ only in their context have the
    same fingerprint and results.
    """

    request: dict[str, Any]
    worker: str
    shards: tuple[Shard, ...]
    left_out: tuple[dict[str, Any], ...] = ()
    context: dict[str, Any] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "request", as_json(self.request, "the request"))
        object.__setattr__(self, "left_out", tuple(as_json(self.left_out, "left_out")))
        ids: set[str] = set()
        for shard in self.shards:
            if shard.id.casefold() in ids:  # some file systems ignore case
                raise UsageError(f"two shards are called {shard.id}", "Give each its own id.")
            ids.add(shard.id.casefold())

    @property
    def question(self) -> str:
        """Fingerprint of the request and the function, without shards."""
        return fingerprint({"schema": SCHEMA, "request": self.request, "worker": self.worker})

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the whole plan except its context; equal fingerprints give equal results."""
        shards = [[shard.id, shard.spec] for shard in self.shards]
        return fingerprint([self.question, shards, self.left_out])

    def keys(self) -> dict[str, str]:
        """Return the key to store in each shard's file, by the shard's id."""
        question = self.question
        return {shard.id: fingerprint([question, shard.id, shard.spec]) for shard in self.shards}


def is_name(text: str) -> bool:
    """Return whether a text is a valid shard id, which is also the name of the shard's file."""
    return _SAFE.fullmatch(text) is not None


def as_json(value: Any, label: str) -> Any:
    """Return a value after a round trip through JSON: tuples become lists, keys text; NaN is refused."""
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"{label} cannot be written as JSON: {error}",
            "Use text, finite numbers, booleans, None, lists and dictionaries.",
        ) from error


def fingerprint(value: Any) -> str:
    """Return the SHA-256 of a value's canonical JSON."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def resolve(worker: str) -> Any:
    """Import and return the function named by "module:function"."""
    module, _, name = worker.partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(
            f"no worker {worker!r}: {error}",
            "Name it as module:function, importable on every machine that computes shards.",
        ) from error
    return function


def differences(old: Any, new: Any, where: str) -> Iterable[str]:
    """Yield one line per difference between two JSON values; `where` is the path of the values."""
    if isinstance(old, dict) and isinstance(new, dict):
        for name in sorted(old.keys() | new.keys()):
            if name not in old or name not in new:
                yield f"{where}.{name} is missing {'there' if name in new else 'now'}"
            else:
                yield from differences(old[name], new[name], f"{where}.{name}")
    elif old != new:
        yield f"{where} is {_short(old)} there, {_short(new)} now"


def listed(differing: Sequence[str]) -> str:
    """Return the first five lines joined by semicolons, and the number of further lines."""
    suffix = f"; and {len(differing) - _SHOWN} more" if len(differing) > _SHOWN else ""
    return "; ".join(differing[:_SHOWN]) + suffix


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "…"
