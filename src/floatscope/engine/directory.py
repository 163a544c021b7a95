"""Read and write a run directory: the request, the log, and the results.

The directory contains `run.json` (the request), `log.jsonl` (events, append-only), `shards/`,
`manifest.json` (only when the run is finished) and `run.lock`. Other programs may keep files in it. Reading
needs no lock; writing requires `claim`.
"""

import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from .. import atomic, untrusted
from ..errors import RunError
from . import lock
from .plan import SCHEMA, Output, Plan, as_json, differences, is_name, listed
from .shards import Damaged, Shards

Event = dict[str, Any]
_RUN: dict[str, type] = {
    "worker": str,
    "request": dict,
    "shards": int,
    "fingerprint": str,
    "about": dict,
}
# Entries of a run directory that Floatscope writes.
_MOVED = re.compile(r"\d+-\d+")  # name of a replaced run: process id and time of the move
OWN = frozenset(
    "run.json log.jsonl manifest.json run.lock shards results figures report.html summary.json "
    "registration.json".split()
)


class Unreadable(RunError):
    """The error for an unreadable file of a run. The content of this file can be computed again."""


class Run:
    """A run directory, with methods that read, verify and write its files."""

    def __init__(self, directory: Path | str) -> None:
        self.directory = Path(directory)
        self.shards = Shards(self.directory / "shards")
        self.listener: Callable[[Event], None] | None = None
        self._sources: dict[str, str] | None = None

    @property
    def log(self) -> Path:
        """Path of the run's log."""
        return self.directory / "log.jsonl"

    def read_request(self) -> dict[str, Any] | None:
        """Return the content of run.json; None if the directory contains no run."""
        content = self._json("run.json")
        return content if content is None else require_run(content, self.directory / "run.json")

    def manifest(self) -> dict[str, Any] | None:
        """Return the content of manifest.json; None before the run is finished, or if it is unreadable."""
        try:
            manifest = self._json("manifest.json")
            if manifest is not None:
                _require_manifest(manifest, self.directory / "manifest.json")
            return manifest
        except Unreadable:
            return None

    def read(self, shard: str, names: tuple[str, ...] | None = None) -> Output:
        """Read a shard's metadata and datasets (all, or those in `names`), after checking its sha256.

        The sha256 must equal the sha256 in the manifest or, before the run is finished, in the shard's
        sidecar.
        """
        output = self.shards.read(shard, names, self._digests.get(shard))
        if differing := self._differing(output.sources):
            raise RunError(
                f"{self.shards.path(shard)} was computed from another {differing} than the run's",
                "Run it again with --resume: damaged shards are redone.",
            )
        return output

    @cached_property
    def _digests(self) -> dict[str, str]:
        """The sha256 of each shard in the manifest, by shard id; {} before the run is finished."""
        manifest = self.manifest() or {"result": {"shards": []}}
        return {shard["shard"]: shard["sha256"] for shard in manifest["result"]["shards"]}

    @property
    def sources(self) -> dict[str, str]:
        """Checksums of the files and models that the run is computed from, by name, as in run.json."""
        if self._sources is None:
            self._sources = dict((self.read_request() or {}).get("sources", {}))
        return self._sources

    def _differing(self, sources: Mapping[str, str]) -> str | None:
        """Return the name of the first source whose checksum differs from the run's; None if all agree."""
        return next((n for n, c in sources.items() if self.sources.get(n, c) != c), None)

    def pin(self, sources: Mapping[str, str]) -> None:
        """Write the checksums of new sources to run.json; refuse changed sources.

        A run therefore never mixes two versions of a model or of a data set.
        """
        if name := self._differing(sources):
            raise RunError(
                f"{name} has changed since {self.directory} was started (its checksum was "
                f"{self.sources[name][:12]}…, and is now {sources[name][:12]}…)",
                "Restore the original, choose another --out, or start again with --overwrite.",
            )
        if not sources.items() <= self.sources.items():
            self._sources = dict(sorted({**self.sources, **sources}.items()))
            run = {**(self.read_request() or {}), "sources": self._sources}
            atomic.write_json(self.directory / "run.json", run)

    def write_pinned(self, name: str, data: bytes) -> None:
        """Write a file into the run's directory, pin the file's checksum, and log this event.

        If an earlier start was killed between writing the file and logging the event, the event is logged
        now.
        """
        digest = hashlib.sha256(data).hexdigest()
        self.pin({name: digest})
        path = self.directory / name
        try:
            unchanged = untrusted.read_bytes(path, len(data) + 1) == data
        except (FileNotFoundError, untrusted.Unreadable):
            unchanged = False
        if not unchanged:
            atomic.write(path, data)
        wrote = [
            e.get("sha256")
            for e in self.events()
            if (e.get("event"), e.get("file")) == ("wrote", name)
        ]
        if not unchanged or wrote[-1:] != [digest]:
            self.note("wrote", file=name, sha256=digest)

    def events(self) -> Iterator[Event]:
        """Yield the events of the log, except lines that were cut short when a process was killed."""
        with suppress(FileNotFoundError, untrusted.Unreadable):
            for line in untrusted.read_lines(self.log):
                with suppress(untrusted.Unreadable):
                    yield untrusted.parse_object(line)

    @contextmanager
    def claim(
        self, plan: Plan, *, resume: bool, overwrite: bool, about: dict[str, Any]
    ) -> Iterator[None]:
        """Lock the directory for a plan while the `with` block runs.

        Raise an error if the directory is in use or holds a different run.
        """
        if overwrite:
            self._move_aside()
        self.make_folder("shards")
        with lock.hold(self.directory / "run.lock"):
            self._ask(plan, resume, as_json(about, "about"))
            for name in ("run.json", "manifest.json"):
                atomic.sweep(self.directory, name)
            if stale := atomic.sweep(self.shards.folder):
                self.note("swept", files=stale)
            yield

    def _ask(self, plan: Plan, resume: bool, about: dict[str, Any]) -> None:
        description = {
            "schema": SCHEMA,
            "worker": plan.worker,
            "request": plan.request,
            "shards": len(plan.shards),
            "fingerprint": plan.fingerprint,
        }
        try:
            previous = self.read_request()
        except Unreadable as damage:
            self._sources = {}
            self._require_shards_of(plan, damage)
            previous = None
        # A run without stored shards is replaced: it has no results that could be mixed.
        if previous is None or not self.shards.ids():
            self._sources = {}
            atomic.write_json(self.directory / "run.json", {**description, "about": about})
            return
        if not resume:
            raise RunError(
                f"{self.directory} already contains a run",
                "Continue it with --resume, choose another --out, or replace it with --overwrite.",
            )
        before = previous.pop("about", {})
        previous.pop("sources", None)
        if previous != description:
            # A difference between fingerprints does not show which fields differ.
            differing = [
                line
                for line in differences(previous, description, "run")
                if ".fingerprint" not in line
            ]
            difference = listed(differing) or "the specs of the shards differ"
            raise RunError(
                f"{self.directory} contains another run: {difference}",
                "Choose another --out, or replace it with --overwrite.",
            )
        if changed := list(differences(before, about, "about")):
            self.note("changed", what=changed)

    def _require_shards_of(self, plan: Plan, damage: RunError) -> None:
        """Refuse a damaged run.json unless stored shards belong to the plan; the caller then rewrites it."""
        sidecars, _ = self.survey(plan)
        if not sidecars:
            raise RunError(
                f"{damage.problem}, and none of its shards belongs to this request",
                "Repeat the original request with --resume, or choose another --out.",
            ) from damage
        self.note("rebuilt", what="run.json", why=damage.problem, shards=len(sidecars))

    def _move_aside(self) -> None:
        """Move the run in the directory aside, so that a new run can replace it.

        Raise an error if the directory has files that Floatscope did not write. The replaced run is kept
        beside the new run until the new run is complete; then `forget_replaced` removes the replaced run.
        """
        if not self.directory.exists():
            return
        names = {path.name for path in self.directory.iterdir() if not atomic.is_partial(path)}
        foreign = sorted(names - OWN)
        if foreign:
            raise RunError(
                f"{self.directory} contains {foreign[0]}, which Floatscope did not write: nothing is "
                "overwritten",
                "Choose another --out, or move your own files elsewhere.",
            )
        if "run.json" not in names:
            return
        real_path = self.directory.resolve()
        why = "or contains the working directory" if Path.cwd().is_relative_to(real_path) else ""
        why = "a link" if self.directory.is_symlink() or self._replaced.is_symlink() else why
        if why:
            raise RunError(
                f"{self.directory} is {why}: it cannot be moved aside",
                "Run the command from another directory, and give the run's real path.",
            )
        with lock.hold(self.directory / "run.lock"):
            try:
                self._replaced.mkdir(exist_ok=True)
                real_path.rename(self._replaced / f"{os.getpid()}-{time.time_ns()}")
            except OSError as error:
                raise atomic.unwritable(self.directory, error) from error

    def make_folder(self, name: str) -> Path:
        """Create a folder in the run's directory, and return its path; refuse a link in its place."""
        folder = self.directory / name
        if folder.is_symlink():
            raise RunError(
                f"{folder} is a link, and Floatscope does not write through links",
                "Remove the link, or choose another --out.",
            )
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise atomic.unwritable(folder, error) from error
        return folder

    @property
    def _replaced(self) -> Path:
        real_path = self.directory.resolve()
        return real_path.with_name(f".{real_path.name}.replaced")

    def forget_replaced(self) -> None:
        """Remove the replaced runs that `_move_aside` has moved aside."""
        if self._replaced.is_symlink():
            return
        for old in self._replaced.glob("*/run.json"):
            if _MOVED.fullmatch(old.parent.name) and not old.parent.is_symlink():
                shutil.rmtree(old.parent, ignore_errors=True)
        with suppress(OSError):  # no run was replaced, or the folder contains other files
            self._replaced.rmdir()

    def survey(self, plan: Plan) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
        """Return the sidecars of the plan's intact shards, and why each damaged shard must be redone.

        Both values are dicts by shard id.
        """
        lying, keys = self.shards.ids(), plan.keys()
        sidecars: dict[str, dict[str, Any]] = {}
        redo: dict[str, str] = {}
        sources = dict(self.sources)
        for shard in (shard for shard in keys if shard in lying):
            try:
                info = self.shards.verify(shard, keys[shard])
                for name, checksum in info["sources"].items():
                    if sources.setdefault(name, checksum) != checksum:
                        raise Damaged(f"it was computed from another {name}")
                sidecars[shard] = info
            except Damaged as error:
                redo[shard] = str(error)
            except OSError as error:
                redo[shard] = f"its file cannot be read: {error.strerror}"
        return sidecars, redo

    def note(self, event: str, **details: Any) -> Event:
        """Append an event with the current time to the log, pass it to the listener, and return it."""
        timestamp = datetime.now(UTC).isoformat(timespec="milliseconds")
        entry = {"time": timestamp, "event": event, **details}
        line = json.dumps(entry, ensure_ascii=False) + "\n"
        try:
            untrusted.append(self.log, line.encode("utf-8", "backslashreplace"))
        except OSError as error:
            raise atomic.unwritable(self.log, error) from error
        if self.listener:
            self.listener(entry)
        return entry

    def _json(self, name: str) -> dict[str, Any] | None:
        path = self.directory / name
        try:
            return untrusted.read_object(path)
        except FileNotFoundError:
            return None
        except untrusted.Unreadable as error:
            raise _damaged(path, error) from error


def require_run(content: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return the content of a run.json after checking it; refuse content that this version cannot read."""
    if content.get("schema") != SCHEMA:
        raise RunError(
            f"{path} has schema {content.get('schema')!r:.80}; this version of Floatscope reads schema "
            f"{SCHEMA}",
            "Use the version that wrote it, or another --out.",
        )
    try:
        untrusted.require_fields(content, _RUN)
        untrusted.texts(content, "sources")
    except untrusted.Unreadable as error:
        raise _damaged(path, error) from error
    return content


def _require_manifest(manifest: dict[str, Any], path: Path) -> None:
    try:
        untrusted.require_fields(manifest, {"result.shards": list, "result.left_out": list})
        for entry in manifest["result"]["shards"]:
            untrusted.require_fields(entry, {"shard": str, "sha256": str, "bytes": int})
            if not is_name(entry["shard"]):
                raise untrusted.Unreadable(f"names a shard {entry['shard']!r:.80}")
    except untrusted.Unreadable as error:
        raise _damaged(path, error) from error


def _damaged(path: Path, error: untrusted.Unreadable) -> Unreadable:
    return Unreadable(
        f"{path} is damaged: it {error.problem}",
        "Run the same command again with --resume: the file is rewritten and the shards are kept.",
    )
