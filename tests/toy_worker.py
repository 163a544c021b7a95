"""A worker for the engine's tests: datasets from a seed, a count of computations, gates and mishaps.

Where the counts lie is in the environment, for it must not be part of the request: a line is added
to `$TOY_COUNTS/<seed>` when a shard is begun. `$TOY_GATES` says which shards then wait until a file
is there: {"3": "go"} holds shard 3 until `$TOY_COUNTS/go` is; {"2": "3"}, shard 2 until 3 is begun. A
mishap happens once, unless it is called "… always", and leaves a file with the process it happened to. As a
program: run a plan into a directory, for others to kill. `$TOY_WEIGHTS` is the checksum of what the output
is computed from, where it is set.
"""

import json
import os
import re
import signal
import sys
from functools import partialmethod
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import xarray as xr
from waiting import until

from floatscope.engine import Output, Plan, Shard, execute
from floatscope.engine.interrupt import interrupt_once
from floatscope.errors import ModelError


def plan(shards=6, size=2000, mishap=None, at=2, first=0, **request):
    """A plan of so many shards from this number on; `mishap` befalls the one with that number."""
    return Plan(
        request={"size": size, "mishap": mishap, "at": at, **request},
        worker="toy_worker:make",
        shards=tuple(Shard(f"toy-{i:03d}", {"seed": i}) for i in range(first, first + shards)),
    )


def make(request, context):
    folder = Path(os.environ["TOY_COUNTS"])
    folder.mkdir(parents=True, exist_ok=True)

    def work(spec, tick):
        seed = spec["seed"]
        with (folder / str(seed)).open("a") as count:
            count.write(f"{os.getpid()}\n")
        if gate := json.loads(os.environ.get("TOY_GATES", "{}")).get(str(seed)):
            until((folder / gate).exists, f"shard {seed} waits for {gate}")
        for i in range(4):
            tick(i + 1, 4)
        if seed == request["at"]:
            befall(request["mishap"], folder)
        values = np.random.default_rng(seed).normal(size=request["size"]).astype(np.float32)
        meta = {"seed": seed, "text": "ü \ud800 漢"}  # a lone surrogate, as JSON data can have
        if seed == 1:
            meta["left_out"] = [{"example": 7, "why": "too long"}]
        words = np.array(["a", f"<{seed}>"])
        weights = os.environ.get("TOY_WEIGHTS")
        sources = {} if weights is None else {"model toy": weights}
        turned = ("column", "row"), values.reshape(-1, 10).T
        data = {"numbers": xr.Dataset({"values": ("cell", values), "turned": turned})}
        data["texts"] = xr.Dataset({"words": ("word", words)}, attrs={"seed": seed})
        return Output(data, meta, sources)

    return work


def placed(request, context):
    """A worker that says which GPUs it was given, once so many workers have come."""
    folder = Path(os.environ["TOY_COUNTS"])

    def work(spec, tick):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"came-{os.getpid()}").touch()
        until(lambda: len(list(folder.glob("came-*"))) >= request["workers"], "the other workers")
        return Output({}, {"pid": os.getpid(), "gpus": os.environ.get("CUDA_VISIBLE_DEVICES")})

    return work


def placed_after_a_death(request, context):
    """The same of two workers; the one with shard s0 dies at its first try, beside the other."""
    folder = Path(os.environ["TOY_COUNTS"])

    def work(spec, tick):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"came-{spec['number']}").touch()
        if spec["number"] == 0:
            until((folder / "came-1").exists, "the other worker")
            befall("die", folder)
            (folder / "replaced").touch()
        else:
            until((folder / "replaced").exists, "the worker that takes the place")
        return Output({}, {"gpus": os.environ.get("CUDA_VISIBLE_DEVICES")})

    return work


def befall(mishap, folder):
    mark = folder / f"happened: {mishap}"
    if mishap is None or (mark.exists() and not mishap.endswith("always")):
        return
    if mishap.startswith("send half"):
        Connection._send = partialmethod(half, mark=mark)
        return
    mark.write_text(str(os.getpid()))
    if mishap.startswith("die"):
        os.kill(os.getpid(), signal.SIGKILL)
    if mishap.startswith("stop"):
        os.kill(os.getpid(), signal.SIGSTOP)
        # Another thread may receive the signal: this one must not finish the shard before it acts.
        until((folder / "never").exists, "what never comes")
    if mishap.startswith("hold"):
        re.match(
            "(a+)+$", "a" * 60 + "b"
        )  # years in C, where no other thread of Python gets a turn
    if mishap.startswith("forget"):
        until((folder / "never").exists, "what never comes")
    if mishap.startswith("refuse"):
        raise ModelError("a weight is NaN", "Download it again.")
    if mishap.startswith("crash"):
        raise ZeroDivisionError("one by nought")


def half(self, data, write=os.write, *, mark):
    """Send the beginning of a long message, then stop the process."""
    if len(data) < 10_000:
        return Connection_send(self, data, write)
    write(self.fileno(), bytes(data[:1000]))
    mark.write_text(str(os.getpid()))
    os.kill(os.getpid(), signal.SIGSTOP)


Connection_send = Connection._send


def counts(folder):
    """How often each shard was begun."""
    numbered = [path for path in Path(folder).glob("*") if path.name.isdigit()]
    return {f"toy-{int(path.name):03d}": len(path.read_text().split()) for path in numbered}


if __name__ == "__main__":
    directory, shards, workers = sys.argv[1:]
    print("ready", flush=True)
    with interrupt_once(to_the_end=True):  # as in the command line's main
        try:
            execute(plan(int(shards)), directory, workers=int(workers))
        except KeyboardInterrupt as stopped:
            print(stopped, file=sys.stderr)
            sys.exit(130)
