"""Saved traces of a directory, found once and read when a scene is asked for. It never writes.

Requests come from several threads. What was read is kept under a lock; reading is done outside of it, so that
a trace on a slow disk, or one that takes long, does not keep others waiting.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import FloatscopeError, UsageError
from ..scenes.pack import header_of, scene_of, single_heads
from ..scenes.parts import Scene, blocks, range_of, sizes_of
from ..stats.anchors import ZScore
from ..trace import Trace
from ..trace.windows import require_global
from .embed import index_of

_BUDGET = 8_000_000  # a scene that is fetched may be heavier than one in a file
_RULE = ZScore()
_REMEMBERED = 8  # scenes kept in memory


@dataclass
class Catalogue:
    """Traces by id. `load` gives the trace of an id, with its arrays still on disk if it can."""

    title: str
    ids: list[str]
    load: Callable[[str], Trace]
    budget: int = _BUDGET
    paths: dict[str, Path] = field(default_factory=dict)  # where each lies, if it is a file's
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _reading: dict[str, threading.Lock] = field(default_factory=dict, repr=False)
    _scenes: "OrderedDict[str, Scene]" = field(default_factory=OrderedDict, repr=False)
    _summaries: dict[str, Scene | str] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, directory: Path) -> "Catalogue":
        """Every *.zarr below a directory, in the order of their names."""
        stores = sorted(p for p in directory.rglob("*.zarr") if not p.name.startswith("."))
        if not stores:
            raise UsageError(
                f"no saved traces below {directory}", "Give a directory that holds *.zarr traces."
            )
        paths = {f"t{i}": path for i, path in enumerate(stores)}
        title = f"Floatscope: {directory.resolve().name}"
        return cls(title, list(paths), partial(_lazily, paths), paths=paths)

    def show(self, ids: list[str]) -> None:
        """Others than before, of what `load` knows."""
        with self._lock:
            self.ids = ids
            every: tuple[dict[str, Any], ...] = self._scenes, self._summaries, self._reading
            for known in every:
                for gone in known.keys() - set(ids):
                    del known[gone]

    def index(self) -> dict[str, Any]:
        """Of each trace its labels and the ranges of its colours, read once.

        A trace that cannot be shown is named in `left_out`, with the reason.
        """
        known = {scene_id: self._summarised(scene_id) for scene_id in list(self.ids)}
        known = {scene_id: known[scene_id] for scene_id in self.ids if scene_id in known}
        scenes = {name: one for name, one in known.items() if not isinstance(one, str)}
        left_out = [one for one in known.values() if isinstance(one, str)]
        return index_of(scenes.values(), scenes) | {"left_out": left_out}

    @contextmanager
    def _read_once(self, scene_id: str) -> Iterator[None]:
        """Let one thread at a time read a trace; traces do not wait for each other."""
        with self._lock:
            own = self._reading.setdefault(scene_id, threading.Lock())
        with own:
            yield

    def _summarised(self, scene_id: str) -> Scene | str:
        """The summary, or why there is none."""
        with self._read_once(scene_id):
            if scene_id not in self._summaries:
                try:
                    self._summaries[scene_id] = self._summary(scene_id)
                except FloatscopeError as error:
                    self._summaries[scene_id] = str(error)
                except Exception as error:  # one bad trace must not hide the good ones
                    where = self.paths.get(scene_id, scene_id)
                    self._summaries[scene_id] = f"{where} cannot be shown: {error!r:.300}"
            return self._summaries[scene_id]

    def _summary(self, scene_id: str) -> Scene:
        """What the index needs of a scene, without packing it."""
        trace = self.load(scene_id)
        require_global(trace.data, "the viewer")
        shares, most = [], [0.0]
        for part in blocks(trace, np.arange(sizes_of(trace)[0])):
            shares.append(part.mass.mean(2))
            most.append(float(np.nanmax(part.mass)))
        return {
            **header_of(trace, _RULE),
            "range": range_of(np.concatenate(shares), np.array(most)),
        }

    def scene(self, scene_id: str) -> Scene:
        if scene_id not in self.ids:
            raise KeyError(scene_id)
        with self._read_once(scene_id):
            scene = self._scenes.get(scene_id)
            if scene is None:
                scene = scene_of(self.load(scene_id), budget=self.budget, fetched=True)
        with self._lock:
            self._scenes[scene_id] = scene
            self._scenes.move_to_end(scene_id)
            while len(self._scenes) > _REMEMBERED:
                self._scenes.popitem(last=False)
        return scene

    def heads(self, scene_id: str, step: int) -> Scene:
        """All heads at one step of a scene: a slice of the trace, in two bytes per value."""
        steps = self.scene(scene_id)["steps"]
        if not 0 <= step < len(steps):
            raise KeyError(step)
        trace = self.load(scene_id)
        at = np.flatnonzero(trace.data["step"].values == steps[step])
        return _whole(trace, at) | {"kept": [step]}

    def head(self, scene_id: str, layer: int, head: int) -> Scene:
        """One head at all steps of a scene: the other slice, read a few steps at a time."""
        scene = self.scene(scene_id)
        if not (0 <= layer < len(scene["layers"]) and 0 <= head < len(scene["heads"])):
            raise KeyError((layer, head))
        trace = self.load(scene_id)
        at = np.flatnonzero(np.isin(trace.data["step"].values, scene["steps"]))
        return _whole(Trace(trace.data.isel(layer=[layer], head=[head])), at)


@dataclass(frozen=True)
class StoredScenes:
    """Scenes that a run stores, to be served as they are: `read` and `header` take a scene's id."""

    title: str
    ids: list[str]
    read: Callable[[str], Scene]
    header: Callable[[str], Scene]

    def index(self) -> dict[str, Any]:
        """`whole`: no single heads can be fetched beside those of a scene."""
        return index_of(map(self.header, self.ids), self.ids) | {"left_out": [], "whole": True}

    def scene(self, scene_id: str) -> Scene:
        if scene_id not in self.ids:
            raise KeyError(scene_id)
        return self.read(scene_id)

    def heads(self, scene_id: str, step: int) -> Scene:
        raise KeyError(scene_id)

    def head(self, scene_id: str, layer: int, head: int) -> Scene:
        raise KeyError(scene_id)


def _whole(trace: Trace, steps: np.ndarray) -> Scene:
    heads = single_heads(trace, _RULE, steps, 1 << 40, [])
    assert heads is not None
    return heads


def _lazily(paths: dict[str, Path], scene_id: str) -> Trace:
    return Trace.load(paths[scene_id], lazy=True)
