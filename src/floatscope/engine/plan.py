"""A plan: what is asked, which function does it, and the shards it is cut into. Nothing runs here.

Everything in a plan is JSON, so that it can be written down, compared with what a directory holds,
and sent to another machine. The key of a shard ties its file to the whole question: another request,
another function or another spec is another key.
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
    """What a worker makes of one shard: labelled datasets by name, and JSON beside them.

    `meta["left_out"]`, a list, is what the worker left out and why; the manifest collects it.
    `sources` names everything the output was computed from and gives its checksum ("model pair/mdm",
    "data q.jsonl"). All shards of a run must agree on them.
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
    """A piece of work. Its id names its file; its spec is all the worker is told about it."""

    id: str
    spec: dict[str, Any]

    def __post_init__(self) -> None:
        if not is_name(self.id):
            raise UsageError(
                f"{self.id!r} cannot name a shard",
                "Use letters, digits, '.', '_' and '-', at most 120, a letter or digit first.",
            )
        object.__setattr__(self, "spec", as_json(self.spec, f"the spec of shard {self.id}"))


@dataclass(frozen=True)
class Plan:
    """`worker` is "module:function", a WorkerFactory.

    `left_out` is what was dropped while planning, one JSON object each, with the reason.
    `context` tells workers where to find things (a folder, checksums to expect). It is no part of the
    question: plans that differ in it have the same fingerprint and the same results.
    """

    request: dict[str, Any]
    worker: str
    shards: tuple[Shard, ...]
    left_out: tuple[dict[str, Any], ...] = ()
    context: dict[str, Any] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "request", as_json(self.request, "the request"))
        object.__setattr__(self, "left_out", tuple(as_json(self.left_out, "left_out")))
        seen: set[str] = set()
        for shard in self.shards:
            if shard.id.casefold() in seen:  # some file systems do not tell A from a
                raise UsageError(f"two shards are called {shard.id}", "Give each its own id.")
            seen.add(shard.id.casefold())

    @property
    def question(self) -> str:
        """Fingerprint of the request and the function, without the shards."""
        return fingerprint({"schema": SCHEMA, "request": self.request, "worker": self.worker})

    @property
    def fingerprint(self) -> str:
        """Of everything: two plans with the same one have the same results."""
        shards = [[shard.id, shard.spec] for shard in self.shards]
        return fingerprint([self.question, shards, self.left_out])

    def keys(self) -> dict[str, str]:
        """What each shard's file must carry to be an answer to this plan."""
        question = self.question
        return {shard.id: fingerprint([question, shard.id, shard.spec]) for shard in self.shards}


def is_name(text: str) -> bool:
    """Whether a text can name a shard, and so a file."""
    return _SAFE.fullmatch(text) is not None


def as_json(value: Any, what: str) -> Any:
    """The value as it comes back from JSON: tuples are lists, keys are text, NaN is refused."""
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"{what} cannot be written as JSON: {error}",
            "Use text, finite numbers, booleans, None, lists and dictionaries.",
        ) from error


def fingerprint(value: Any) -> str:
    """SHA-256 of the value's one canonical spelling."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def resolve(worker: str) -> Any:
    """The function that "module:function" names."""
    module, _, name = worker.partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(
            f"no worker {worker!r}: {error}",
            "Name it as module:function, importable wherever the work is done.",
        ) from error
    return function


def differences(old: Any, new: Any, where: str) -> Iterable[str]:
    """Where two pieces of JSON differ, a line each."""
    if isinstance(old, dict) and isinstance(new, dict):
        for name in sorted(old.keys() | new.keys()):
            if name not in old or name not in new:
                yield f"{where}.{name} is only {'asked now' if name in new else 'there'}"
            else:
                yield from differences(old[name], new[name], f"{where}.{name}")
    elif old != new:
        yield f"{where} is {_short(old)} there, {_short(new)} asked now"


def listed(differing: Sequence[str]) -> str:
    """Join the first of these lines, and count the others."""
    more = f"; and {len(differing) - _SHOWN} more" if len(differing) > _SHOWN else ""
    return "; ".join(differing[:_SHOWN]) + more


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "…"
