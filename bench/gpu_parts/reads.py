"""Single forwards over finished texts (`Model.read`): whole reads over a plain forward of the same size."""

import json
import statistics
import time
from collections.abc import Callable

import torch

from floatscope.models import Visibility, attention_hook
from floatscope.recording.finished import reading
from floatscope.recording.options import TraceOptions
from floatscope.sequences.prompt import Encoded

from .common import KEEPS, Row, build, forward_of
from .replays import batch_of


def reads(rounds: int = 7) -> list[Row]:
    """Time from the call to the finished trace; `first` is the first read of its size, which is launched."""
    model, rows = build("LLaDA-8B"), []
    model.text = lambda ids: ""  # type: ignore[method-assign]  # no tokenizer
    for size in (256, 1024, 2048):
        (prompt,) = batch_of([size + 64])
        ids = torch.tensor([prompt.ids], device="cuda")
        visible = forward_of(model, 1, size, 1).visible

        def plain(
            ids: torch.Tensor = ids, size: int = size, visible: Visibility = visible
        ) -> object:
            with attention_hook.enable(model.net):
                return model.predict(ids, size - 1, size, visible)

        def read(keep: str, prompt: Encoded = prompt) -> Callable[[], object]:
            options = TraceOptions(keep=KEEPS[keep][0])
            return lambda: reading(model, prompt, [], options)

        ways = {"plain": plain, "mass": read("mass"), "all": read("all")}
        row: Row = {"S": size}
        row |= {f"{name}_first_ms": milliseconds(way) for name, way in ways.items()}
        for way in ways.values():
            for _ in range(20):  # a size that repeats is recorded, once that pays
                way()
        times: dict[str, list[float]] = {name: [] for name in ways}
        for turn in range(rounds):
            for name in list(ways)[:: -1 if turn % 2 else 1]:
                times[name].append(milliseconds(ways[name]))
        plain_ms = row["plain_ms"] = statistics.median(times["plain"])
        row |= {name: statistics.median(times[name]) / plain_ms for name in ("mass", "all")}
        rows.append(row)
        print(json.dumps(row), flush=True)
    return rows


def milliseconds(way: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    way()
    torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - start)
