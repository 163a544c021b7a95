"""List the saved traces of a directory, and read a trace when its scene is requested.

This module writes no files. Requests come from several threads. Each trace has its own lock, so that a trace
that is slow to read does not block requests for other traces.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, lru_cache, partial
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


@dataclass(eq=False)
class Catalogue:
    """A source of scenes of traces; `load` returns a trace by id, with arrays left on disk if possible."""

    title: str
    ids: list[str]
    load: Callable[[str], Trace]
    budget: int = _BUDGET
    paths: dict[str, Path] = field(default_factory=dict)  # where each lies, if it is a file's

    def __post_init__(self) -> None:
        self._reading: dict[str, threading.Lock] = {}
        self._scene = lru_cache(_REMEMBERED)(self._pack)
        self._summary = cache(self._summarise)

    @classmethod
    def of(cls, directory: Path) -> "Catalogue":
        """Create the catalogue of all *.zarr traces below a directory, sorted by path."""
        stores = sorted(p for p in directory.rglob("*.zarr") if not p.name.startswith("."))
        if not stores:
            raise UsageError(
                f"no saved traces below {directory}", "Give a directory that holds *.zarr traces."
            )
        paths = {f"t{i}": path for i, path in enumerate(stores)}
        title = f"Floatscope: {directory.resolve().name}"
        return cls(title, list(paths), partial(_lazily, paths), paths=paths)

    def index(self) -> dict[str, Any]:
        """Return the index of scenes, with labels and colour ranges.

        For the index, each trace is read only once. Traces that cannot be shown are listed in `left_out`,
        with the reason.
        """
        known: dict[str, Scene | str] = {}
        for scene_id in list(self.ids):
            with self._reads(scene_id):
                known[scene_id] = self._summary(scene_id)
        known = {scene_id: known[scene_id] for scene_id in self.ids if scene_id in known}
        scenes = {name: one for name, one in known.items() if not isinstance(one, str)}
        left_out = [one for one in known.values() if isinstance(one, str)]
        return index_of(scenes.values(), scenes) | {"left_out": left_out}

    def _reads(self, scene_id: str) -> threading.Lock:
        """Return the lock of a trace, which one thread at a time holds to read it."""
        return self._reading.setdefault(scene_id, threading.Lock())

    def _summarise(self, scene_id: str) -> Scene | str:
        """Return the header and colour ranges of a scene without packing it, or why it cannot be shown."""
        try:
            trace = self.load(scene_id)
            require_global(trace.data, "the viewer")
            shares, most = [], [0.0]
            for part in blocks(trace, np.arange(sizes_of(trace)[0])):
                shares.append(part.mass.mean(2))
                most.append(float(np.nanmax(part.mass)))
            ranges = range_of(np.concatenate(shares), np.array(most))
            return {**header_of(trace, _RULE), "range": ranges}
        except FloatscopeError as error:
            return str(error)
        except Exception as error:  # one bad trace must not hide the good ones
            return f"{self.paths.get(scene_id, scene_id)} cannot be shown: {error!r:.300}"

    def _pack(self, scene_id: str) -> Scene:
        return scene_of(self.load(scene_id), budget=self.budget, fetched=True)

    def scene(self, scene_id: str) -> Scene:
        """Return the scene of a trace, from memory if it was requested recently."""
        if scene_id not in self.ids:
            raise KeyError(scene_id)
        with self._reads(scene_id):
            return self._scene(scene_id)

    def heads(self, scene_id: str, step: int) -> Scene:
        """Return the attention of all heads at one step of a scene, with two bytes per value.

        `step` is an index into the scene's steps.
        """
        steps = self.scene(scene_id)["steps"]
        if not 0 <= step < len(steps):
            raise KeyError(step)
        trace = self.load(scene_id)
        at = np.flatnonzero(trace.data["step"].values == steps[step])
        return _whole(trace, at) | {"kept": [step]}

    def head(self, scene_id: str, layer: int, head: int) -> Scene:
        """Return the attention of one head at all steps of a scene, with two bytes per value.

        `layer` and `head` are indices into the scene's layers and heads.
        """
        scene = self.scene(scene_id)
        if not (0 <= layer < len(scene["layers"]) and 0 <= head < len(scene["heads"])):
            raise KeyError((layer, head))
        trace = self.load(scene_id)
        at = np.flatnonzero(np.isin(trace.data["step"].values, scene["steps"]))
        return _whole(Trace(trace.data.isel(layer=[layer], head=[head])), at)


@dataclass(frozen=True)
class StoredScenes:
    """A source of the scenes that a run stores.

    `read` returns the scene with an id. `header` returns the same scene without packed arrays.
    """

    title: str
    ids: list[str]
    read: Callable[[str], Scene]
    header: Callable[[str], Scene]

    def index(self) -> dict[str, Any]:
        """Return the index of scenes; `whole` means that single heads cannot be fetched separately."""
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
