"""A worker that stands for one with a GPU: it sleeps as long as a shard takes there, then returns one.

What it returns has the size, the datasets and the header of a real study's shard (see `templates`), or
is so many bytes of noise. All workers wait for each other before the first shard, so that start-up
and work can be told apart. Where the templates lie is in the environment, since it is no part of
what is asked. Each shard says when it was begun and ended, by whom, and how much memory that took.
"""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from floatscope.engine import Output
from floatscope.engine.shards import Shards

from .templates import SAMPLED, enlarged, measured

SETTINGS = "FLOATSCOPE_SCALE"  # {"templates": folder, "gate": folder, "workers": n, "sizes": {...}}
_PATIENCE = 600.0
Tick = Callable[[float, float], None]


def make(
    request: dict[str, Any], context: dict[str, Any]
) -> Callable[[dict[str, Any], Tick], Output]:
    settings = json.loads(os.environ[SETTINGS])
    meet(Path(settings["gate"]), settings["workers"])
    return Simulated(Shards(Path(settings["templates"])), settings["sizes"])


def meet(gate: Path, workers: int) -> None:
    """Wait until so many processes have come."""
    (gate / str(os.getpid())).touch()
    deadline = time.monotonic() + _PATIENCE
    while len(os.listdir(gate)) < workers:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{len(os.listdir(gate))} of {workers} workers came")
        time.sleep(0.05)


def memory(field: str = "VmHWM") -> int:
    """Of this process in bytes: the most so far, or VmRSS, now (Linux)."""
    status = Path("/proc/self/status").read_text()
    return int(status.split(f"{field}:")[1].split()[0]) * 1024


class Simulated:
    def __init__(self, templates: Shards, sizes: dict[str, int]) -> None:
        self.templates, self.sizes = templates, sizes
        self._noise = np.zeros(0, np.float32)
        self._examples: dict[str, tuple[dict[str, Any], dict[str, xr.Dataset]]] = {}

    def __call__(self, spec: dict[str, Any], tick: Tick) -> Output:
        begun = time.time()
        tick(0, 1)
        output = self._output(spec)
        # Making it up is not what is measured: it counts as part of the GPU's time.
        time.sleep(max(0.0, spec["seconds"] - (time.time() - begun)))
        said = {
            "begun": begun,
            "ended": time.time(),
            "pid": os.getpid(),
            "memory": memory(),
            "cpu": time.process_time(),  # so far; what encoding a shard takes is in the next one's
        }
        return Output(output.data, {**output.meta, "simulated": said})

    def _output(self, spec: dict[str, Any]) -> Output:
        if spec["kind"] == "noise":
            size = spec["bytes"] // 4
            if len(self._noise) != size:
                self._noise = np.random.default_rng(0).normal(size=size).astype(np.float32)
            return Output({"noise": xr.Dataset({"values": ("value", self._noise)})})
        if spec["kind"] == "trace":
            return self._traces(spec)
        return self._answers(spec)

    def _traces(self, spec: dict[str, Any]) -> Output:
        data: dict[str, xr.Dataset] = {}
        examples = []
        for index in range(spec["start"], spec["stop"]):
            example, measures = self._example(spec["as"])
            data |= {f"{index}/{name}": values for name, values in measures.items()}
            names = {key: f"{index}/{key}" for key in example["values"]}
            about = {"index": index, "id": f"{spec['domain']}/{index}", "values": names}
            examples.append({**example, **about})
        meta = self.templates.read(f"trace-{spec['as']}", ()).meta
        return Output(data, {**meta, "examples": examples, "left_out": []})

    def _example(self, kind: str) -> tuple[dict[str, Any], dict[str, xr.Dataset]]:
        """A traced example of the wanted size, which is not viewed."""
        if kind not in self._examples:
            output = self.templates.read(f"trace-{kind}")
            example = next(e for e in output.meta["examples"] if e["index"] == 1)
            data = {n: enlarged(values, self.sizes) for n, values in measured(output, 1).items()}
            self._examples[kind] = example, data
        return self._examples[kind]

    def _answers(self, spec: dict[str, Any]) -> Output:
        sampled = spec["setting"].startswith(SAMPLED.partition("-")[0])
        template = self.templates.read(f"{'sampled' if sampled else 'ask'}-{spec['as']}")
        data, rows = {}, []
        for place, index in enumerate(range(spec["start"], spec["stop"])):
            if template.meta["rows"]:
                row = template.meta["rows"][index % 4]
                rows.append({**row, "id": f"q{index}", "contains": float(index * 7 % 10 < 6)})
            if str(index % 4) in template.data:
                data[str(place)] = template.data[str(index % 4)]
        return Output(data, {**template.meta, "rows": rows})
