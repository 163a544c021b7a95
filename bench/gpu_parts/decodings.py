"""A whole decoding through the recorder: forwards, statistics, copies to the host."""

import json
import time
from dataclasses import replace
from typing import Any

import torch

from .common import GIB, KEEPS, WINDOW, Row, build


def decoding(name: str, steps: int, size: int, batch: int) -> list[Row]:
    """A whole decoding through the recorder: forwards, statistics, copies to the host."""
    from floatscope.decode import Autoregressive, Confidence
    from floatscope.decode.loop import decode
    from floatscope.recording.kept import KeptSteps
    from floatscope.recording.options import TraceOptions
    from floatscope.recording.recorder import Recorder
    from floatscope.sequences.prompt import Encoded

    model = build(name)
    sampler: Any = Confidence(length=WINDOW, steps=steps)
    if not model.is_diffusion:  # as many forwards, each a token: with a KV cache
        sampler = Autoregressive(length=steps)
    names = ("question", "passage 1", "passage 2", "passage 3")
    length = size - sampler.length
    prompts = []
    for b in range(batch):
        ids = torch.randint(0, 120000, (length,), generator=torch.Generator().manual_seed(b))
        regions = [names[i * 4 // length] for i in range(length)]
        prompts.append(Encoded(tuple(ids.tolist()), tuple(regions)))
    rows: list[Row] = []
    first: list[list[int]] = []
    # With a cache every step has another shape, and attention prepares for each: all are warmed.
    warm = ("warm", "warm plain", "warm mass") if not model.is_diffusion else ("warm",)
    for way in (*warm, "plain", "mass", "all", "plain again"):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        some = 2 if way == "warm" and model.is_diffusion else steps
        used = replace(sampler, **{"steps" if model.is_diffusion else "length": some})
        start = time.perf_counter()
        if "plain" in way:
            found = decode(model, prompts, used)
        else:
            keep = KEEPS.get(way.removeprefix("warm "), KEEPS["all"])[0]
            with Recorder(model, prompts, used, TraceOptions(keep=keep)) as recorder:
                found = decode(model, prompts, used, recorder)
            recorder.copier.settle()
        torch.cuda.synchronize()
        taken = time.perf_counter() - start
        row: Row = {"model": name, "way": way, "steps": some, "S": size, "batch": batch}
        row["s"] = taken
        row["peak_GiB"] = torch.cuda.max_memory_allocated() / GIB
        answers = [d.answer_ids for d in found]
        row["same_tokens"] = not rows or answers == first
        first = first if rows else answers
        if "plain" not in way:
            kept = [
                one.step_store for one in recorder.recorded if isinstance(one.step_store, KeptSteps)
            ]
            arrays = [array for one in kept for array in one.arrays.values()]
            row["kept_GiB"] = sum(a.nbytes for a in arrays) / GIB
            del recorder, arrays
        if not way.startswith("warm"):
            rows.append(row)
            print(json.dumps(row), flush=True)
    base = (rows[0]["s"] + rows[-1]["s"]) / 2
    for row in rows:
        row["ratio"] = row["s"] / base
        print(row["way"], round(row["ratio"], 3))
    return rows
