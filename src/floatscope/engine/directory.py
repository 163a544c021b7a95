"""A run directory: what was asked, what happened, what is done.

`run.json` (the question), `log.jsonl` (events, only ever added to), `shards/`, `manifest.json` (there
when the run is finished, and only then) and `run.lock`. Other files in it are other people's. Reading
needs no lock; writing goes through `claim`.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..errors import RunError
from . import atomic, lock
from .plan import SCHEMA, Output, Plan, as_json, differences
from .shards import Damaged, Shards

Event = dict[str, Any]
_SHOWN = 5  # differences named in an error


class Run:
    """A directory and what is in it."""

    def __init__(self, directory: Path | str) -> None:
        self.directory = Path(directory)
        self.shards = Shards(self.directory / "shards")
        self.listener: Callable[[Event], None] | None = None

    @property
    def log(self) -> Path:
        return self.directory / "log.jsonl"

    def asked(self) -> dict[str, Any] | None:
        """run.json, or None before there was a run."""
        asked = self._json("run.json")
        if asked is not None and asked.get("schema") != SCHEMA:
            raise RunError(
                f"{self.directory / 'run.json'} has schema {asked.get('schema')}; this version of "
                f"Floatscope reads schema {SCHEMA}",
                "Use the version that wrote it, or another --out.",
            )
        return asked

    def manifest(self) -> dict[str, Any] | None:
        """manifest.json, or None before the run is finished."""
        return self._json("manifest.json")

    def read(self, shard: str, names: tuple[str, ...] | None = None) -> Output:
        return self.shards.read(shard, names)

    def events(self) -> Iterator[Event]:
        """The log, without lines that a kill cut short."""
        if self.log.exists():
            with self.log.open("rb") as lines:
                for line in lines:
                    try:
                        event = json.loads(line)
                    except ValueError:
                        continue
                    if isinstance(event, dict):
                        yield event

    @contextmanager
    def claim(
        self, plan: Plan, *, resume: bool, overwrite: bool, about: dict[str, Any]
    ) -> Iterator[None]:
        """Lock the directory for this plan, or say why not."""
        try:
            self.shards.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise atomic.unwritable(self.shards.folder, error) from error
        with lock.held(self.directory / "run.lock"):
            if overwrite:
                self._clear()
            self._ask(plan, resume, as_json(about, "about"))
            for name in ("run.json", "manifest.json"):
                atomic.sweep(self.directory, name)
            if stale := atomic.sweep(self.shards.folder):
                self.note("swept", files=stale)
            yield

    def _ask(self, plan: Plan, resume: bool, about: dict[str, Any]) -> None:
        asked = {
            "schema": SCHEMA,
            "worker": plan.worker,
            "request": plan.request,
            "shards": len(plan.shards),
            "fingerprint": plan.fingerprint,
        }
        there = self.asked()
        if there is None:
            atomic.write_json(self.directory / "run.json", {**asked, "about": about})
            return
        if not resume:
            raise RunError(
                f"{self.directory} holds a run already",
                "Go on with it (--resume), choose another --out, or replace it (--overwrite).",
            )
        before = there.pop("about", {})
        if there != asked:
            # The fingerprint is the last to differ: it says that, but not what.
            differing = [
                line for line in differences(there, asked, "run") if ".fingerprint" not in line
            ]
            more = f"; and {len(differing) - _SHOWN} more" if len(differing) > _SHOWN else ""
            raise RunError(
                f"{self.directory} holds another run: "
                + (
                    "; ".join(differing[:_SHOWN]) + more
                    or "run.shards differ in what they are told"
                ),
                "Choose another --out, or replace it (--overwrite).",
            )
        if changed := list(differences(before, about, "about")):
            self.note("changed", what=changed)

    def _clear(self) -> None:
        """Remove a run's own files. The question goes last: without it, nothing claims the rest."""
        try:
            for shard in self.shards.ids():
                self.shards.remove(shard)
            for name in ("manifest.json", "log.jsonl", "run.json"):
                (self.directory / name).unlink(missing_ok=True)
        except OSError as error:
            raise atomic.unwritable(self.directory, error) from error

    def survey(self, plan: Plan) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
        """Sidecars of the shards that are done; and why others, of which something is there, are not."""
        lying, keys = self.shards.ids(), plan.keys()
        done, redo = {}, {}
        for shard in (shard for shard in keys if shard in lying):
            try:
                done[shard] = self.shards.verify(shard, keys[shard])
            except Damaged as error:
                redo[shard] = str(error)
            except OSError as error:
                redo[shard] = f"its file cannot be read: {error.strerror}"
        return done, redo

    def note(self, event: str, **details: Any) -> Event:
        """Add an event to the log, and tell whoever listens."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        entry = {"time": now, "event": event, **details}
        line = json.dumps(entry, ensure_ascii=False) + "\n"
        try:
            with self.log.open("ab+") as file:
                if file.tell():
                    file.seek(-1, 2)
                    if file.read(1) != b"\n":  # a kill or a full disk cut the last line short
                        file.write(b"\n")
                file.write(line.encode("utf-8", "backslashreplace"))
        except OSError as error:
            raise atomic.unwritable(self.log, error) from error
        if self.listener:
            self.listener(entry)
        return entry

    def _json(self, name: str) -> dict[str, Any] | None:
        path = self.directory / name
        try:
            content = json.loads(path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise RunError(
                f"{path} cannot be read: {error}", "Use another --out, or --overwrite."
            ) from error
        if not isinstance(content, dict):
            raise RunError(f"{path} is not Floatscope's", "Use another --out.")
        return content
