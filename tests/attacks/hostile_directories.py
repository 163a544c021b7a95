"""Hostile directories from a seed: valid runs, traces, adapters and study files, then one to three changes.

`directory(seed, folder)` writes one and says what is wrong with it; `attempt(kind, folder)` does with it what
a user would: report, view, verify, repeat or resume a run, look at a trace, load an adapter, run a study's
file, load a checkpoint. Each attempt is a forked process with limits. It may work, or end with one of
Floatscope's own errors; no traceback, no more than LIMIT seconds of work, no wait that does not end, no more
than MEMORY bytes, and no code of the directory's (every one brings a canary). 20 of them are tried with the
tests, more by

    python -m tests.attacks.hostile_directories --count 300

It does not judge what a changed run reports: numbers that were changed with their checksums are numbers.
"""

import argparse
import asyncio
import atexit
import contextlib
import hashlib
import json
import os
import random
import resource
import shutil
import signal
import struct
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections import Counter
from functools import cache
from pathlib import Path

import pyarrow

sys.path.insert(0, str(Path(__file__).parent))
import hostile_checkpoints as checkpoints

LIMIT = 10  # seconds of the attempt's own work, whatever else the machine does
PATIENCE = 120  # seconds until an attempt that does not work at all counts as hung
MEMORY = 2 << 30  # bytes beyond what the process had before
CANARY = "ran"
KINDS = ("run", "run", "run", "trace", "trace", "adapter", "config", "checkpoint")
TRACE = Path(__file__).parents[1] / "data" / "trace.zarr"
REQUEST = {
    **{"studies": ["floating", "knowledge"], "data": "world:one", "limit": 2, "questions": 4},
    **{"length": 3, "steps": 2, "view": 1, "shard": 2, "controls": 0},
}
NUMBERS = "limit questions shard view length steps controls threads seed batch_size heads".split()
HUGE = (10**9, 2**31 - 1, 2**62, 10**30, -1, 0)


# What valid ones look like


@cache
def _valid():
    """Every kind once, made by a process of its own, in a folder that is removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="valid-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    said = _forked(lambda: _write(folder), patience=600, limit=600)
    if said[0] != "works":
        raise RuntimeError(f"no valid directories: {said}")
    return folder


def _write(folder):
    import torch

    import floatscope as fs
    from floatscope.models import adapters, tiny
    from floatscope.studies import request_of
    from floatscope.studies.run import run
    from floatscope.trace.unfinished import CANVAS, Unfinished

    shape = tiny.Shape(**checkpoints.SHAPE | {"context": 256})
    base = tiny.write("LLaDA", folder / "base", shape)
    model = fs.load(base)
    request = REQUEST | {"models": [f"tiny={base}"]}
    run(request_of(request), folder / "run")
    shutil.rmtree(folder / "run" / "results")  # written, and never read
    (folder / "config").mkdir()
    (folder / "config" / "study.json").write_text(json.dumps(request))
    lines = [f"{key} = {json.dumps(value)}" for key, value in request.items()]
    (folder / "config" / "study.toml").write_text("\n".join(lines))
    yaml = [f"{key}: {json.dumps(value)}" for key, value in request.items()]
    (folder / "config" / "study.yaml").write_text("\n".join(yaml))
    trace = fs.Trace.load(TRACE)
    trace.save(folder / "trace" / "a.zarr")
    trace.save(folder / "trace" / "b.zarr")
    import numpy as np

    about = {
        "attributes": {"mask_id": 0, "prompt_length": 1, **trace.data.attrs},
        **{name: [0] for name in ("layer", "head")},
        **{name: ["a"] for name in ("group", "source", "target")},
        "region": ["question", "answer"],
    }
    growing = Unfinished(folder / "trace" / "c.zarr", 4, json.loads(json.dumps(about, default=str)))
    growing.write(0, {CANVAS: (("key",), np.array([1, 0]))})
    names = [n for n, m in model.net.named_modules() if isinstance(m, torch.nn.Linear) and "0" in n]
    tensors = {}
    for name in names[:2]:
        module = model.net.get_submodule(name)
        tensors[f"{name}.lora_A.weight"] = 0.1 * torch.randn(2, module.in_features)
        tensors[f"{name}.lora_B.weight"] = 0.1 * torch.randn(module.out_features, 2)
    part = adapters.write(folder / "adapter", tensors, {"r": 2, "lora_alpha": 4})
    adapters.write_selfcheck(part, fs.load(base, adapter=part), [5, 6, 7], [0, 2])
    (part / "floatscope.json").write_text(json.dumps({"name": "adapted"}))


# What is done to them


def _files(folder):
    found = [Path(at) / name for at, _, names in os.walk(folder) for name in names]
    regular = [file for file in found if file.is_file() and not file.is_symlink()]
    return sorted(file for file in regular if file.name != "evil.py")


def _small(file):
    return file.is_file() and not file.is_symlink() and file.stat().st_size < 1 << 20


def _is_no_folder(path):
    return path.is_symlink() or not path.is_dir()


def _loaded(file):
    """What a file holds that no change before made something else of."""
    if not _small(file):
        raise ValueError(f"{file.name} is no JSON file any more")
    return json.loads(file.read_bytes())


def _nearby(change):
    """One of the changes to a checkpoint's folder, in a folder somewhere below."""

    def apply(draw, folder):
        near = draw.choice(_files(folder)).parent
        return f"{near.relative_to(folder)}: {change(draw, near)}"

    return apply


def _fifo(draw, folder):
    file = draw.choice(_files(folder))
    file.unlink()
    os.mkfifo(file)
    return f"{file.relative_to(folder)} is a FIFO"


def _device(draw, folder):
    file = draw.choice(_files(folder))
    file.unlink()
    file.symlink_to(to := draw.choice(["/dev/zero", "/dev/full", "/proc/self/mem", "/dev/tty"]))
    return f"{file.relative_to(folder)} is a link to {to}"


def _sparse(draw, folder):
    file = draw.choice(_files(folder))
    os.truncate(file, size := draw.choice([40 << 20, 3 << 30, 1 << 40]))
    return f"{file.relative_to(folder)} is made {size >> 20} MB long"


def _deep(draw, folder):
    file = draw.choice([f for f in _files(folder) if f.suffix in (".json", ".jsonl")] or [None])
    if file is None:
        return _fifo(draw, folder)
    depth = draw.choice([70, 500, 990, 100_000])
    file.write_text(draw.choice(['{"a":', '{"request":', "["]) * depth)
    if draw.random() < 0.5:
        file.write_text('{"request": ' + "[" * depth + "]" * depth + "}")
    return f"{file.relative_to(folder)} is {depth} levels deep"


def _field(draw, folder):
    """A field somewhere in one of the JSON files: removed, or another value in its place."""
    files = [f for f in _files(folder) if f.suffix == ".json"]
    first = [f for f in files if f.name in ("run.json", "manifest.json", "adapter_config.json")]
    if not files:
        return _fifo(draw, folder)
    file = draw.choice(first if first and draw.random() < 0.6 else files)
    try:
        content = _loaded(file)
        where, key = checkpoints._place(draw, content)
    except (ValueError, IndexError, RecursionError):
        return f"{file.relative_to(folder)} has no field to change"
    said = _changed(draw, where, key)
    file.write_text(json.dumps(content))
    return f"{file.relative_to(folder)}: {said}"


def _changed(draw, where, key):
    if draw.random() < 0.3:
        del where[key]
        return f"{key!r:.40} removed"
    where[key] = value = draw.choice([checkpoints._value(draw), draw.choice(HUGE)])
    return f"{key!r:.40} = {value!r:.40}"


def _number(draw, folder):
    """A number of a run's request that nobody has the data or the memory for."""
    file = folder / "run.json"
    try:
        content = _loaded(file)
        content["request"][name := draw.choice(NUMBERS)] = value = draw.choice(HUGE)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return _field(draw, folder)
    if draw.random() < 0.3:
        content["request"]["extra_runs"] = [{"limit": value}] * draw.choice([1, 1000])
    file.write_text(json.dumps(content))
    return f"run.json: {name} = {value}"


def _text(draw, folder):
    """A path, a name or a code that leads somewhere else."""
    file = folder / "run.json"
    try:
        content = _loaded(file)
        request = content["request"]
        name = draw.choice("data models frequencies sampler plugins asked_as template".split())
        value = draw.choice(
            (
                *("/dev/zero", "~nobody-here/x", "a" * 5000, "a\0b", "../" * 9 + "dev/zero"),
                *("evil.py", "long:answer", "world:none", "confidence,steps=nan", "\udcff"),
            )
        )
        request[name] = [value] if name in ("models", "plugins") else value
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return _field(draw, folder)
    file.write_text(json.dumps(content))
    return f"run.json: {name} = {value!r:.40}"


def _shard(draw, folder):
    """What a shard's file holds: its header, an array, or far more than it seems to."""
    files = [f for f in _files(folder) if f.suffix == ".shard"]
    if not files:
        return _described(draw, folder)
    file = draw.choice(files)
    try:
        header, frames = taken_apart(file.read_bytes())
    except (OSError, ValueError, KeyError, TypeError, struct.error):
        return f"{file.name} is no shard any more"
    what = draw.choice(["header", "header", "header", "array", "array", "bomb", "many"])
    declared = None
    if what == "header":
        part = header["meta"] if draw.random() < 0.8 else header
        said = _changed(draw, *checkpoints._place(draw, part))
    elif what == "array" and frames:
        name = draw.choice(sorted(frames))
        said = f"{name}: {_dataset(draw, header, frames, name)!r:.90}"
    elif what == "bomb":
        said, size = "a bomb", draw.choice([60, 900]) << 20
        name = draw.choice([None, *frames, "more"])
        if name is None:
            declared = size
        else:
            frames[name] = zstd(bytes(size))
            header["data"][name] = [len(frames[name]), size]
    else:
        said = "100,000 entries"
        if frames and draw.random() < 0.5:
            name = draw.choice(sorted(frames))
            described, arrays = opened(header, frames, name)
            described["variables"] |= {f"{i}": EMPTY for i in range(100_000)}
            close(header, frames, name, described, arrays)
        else:
            header["data"] |= {f"{i}": [0, 0] for i in range(100_000)}
    file.write_bytes(put_together(header, frames, declared))
    return f"{file.name}: {said}"


def zstd(data):
    return pyarrow.compress(data, "zstd", asbytes=True)


EMPTY = {"dims": ["x"], "attrs": {}, "coordinate": False, "dtype": "<f4", "shape": [0]}


def opened(header, frames, name):
    """What a dataset's frame holds: the description, and the bytes of the arrays."""
    size = header["data"][name][1]
    content = pyarrow.decompress(frames[name], size, "zstd", asbytes=True)
    (length,) = struct.unpack("<Q", content[:8])
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def close(header, frames, name, described, arrays):
    """Put a dataset with this description and these bytes into a frame, and say so in the header."""
    text = json.dumps(described).encode()
    content = struct.pack("<Q", len(text)) + text + arrays
    frames[name] = zstd(content)
    header["data"][name] = [len(frames[name]), len(content)]


def taken_apart(data):
    """The header of a shard's file, and the frames of its datasets."""
    _, length, size = struct.unpack("<8sQQ", data[:24])
    header = json.loads(pyarrow.decompress(data[24 : 24 + length], size, "zstd", asbytes=True))
    at, frames = 24 + length, {}
    for name, (length, _) in header["data"].items():
        frames[name] = data[at : at + length]
        at += length
    return header, frames


def put_together(header, frames, declared=None):
    """A shard's file with this header, said to have so many bytes, and these frames."""
    text = json.dumps(header).encode()
    head = zstd(text)
    size = len(text) if declared is None else declared
    return b"".join([struct.pack("<8sQQ", b"FSSHARD\1", len(head), size), head, *frames.values()])


def _dataset(draw, header, frames, name):
    """What a header may say of a dataset, a frame of it, or how it may describe a variable."""
    if draw.random() < 0.5:
        frame = frames[name]
        frames[name] = draw.choice([frame, frame[:-3], frame + bytes(4000), b"", b"x" * 50])
        numbers = [len(frames[name]), header["data"][name][1], 0, -1, 10**15, "x", 1.5, True]
        header["data"][name] = draw.choice([draw.choices(numbers, k=2), [1], "text", None])
        return header["data"][name]
    described, arrays = opened(header, frames, name)
    shape = draw.choice(
        [[], [0], [3], [2, 3, 4, 5], [10**12], [-1], [2**62, 4], "x", [1.5], [True]]
    )
    kind = draw.choice(["<f4", "<U0", "<U5", "|O", "<M8[s]", "nonsense", "<f8", "|b1", "f4,O", 7])
    strange = draw.choice([["x", "x"], "xy", 1, None, {"x": 1}, [[1]], True, {}, []])
    said = {"dtype": kind, "shape": shape, "dims": strange, "attrs": strange, "coordinate": strange}
    part = draw.choice(sorted(said))
    about = draw.choice([*described["variables"].values(), described["variables"]])
    about[part] = said[part]
    if draw.random() < 0.2:
        described[draw.choice(["attrs", "variables"])] = strange
    close(header, frames, name, described, draw.choice([arrays, arrays[:-3], arrays + bytes(9)]))
    return {part: said[part]}


def _described(draw, folder):
    """What a trace's arrays declare, or its attributes say."""
    stores = sorted(folder.glob("*.zarr"))
    files = [f for f in _files(folder) if f.name == "zarr.json"]
    if not stores or not files:
        return _field(draw, folder)
    file = draw.choice(files)
    try:
        said = _loaded(file)
        what = draw.choice(["shape", "chunks", "steps", "field", "field"])
        if what == "field":
            words = _changed(draw, *checkpoints._place(draw, said))
        else:
            size = draw.choice([0, 3_000_000, 2**40])
            for one in (
                [file] if what != "steps" else sorted(file.parent.parent.glob("*/zarr.json"))
            ):
                content = _loaded(one)
                grid = content["chunk_grid"]["configuration"]["chunk_shape"]
                for i, _ in enumerate(content["shape"][:1]):
                    content["shape"][i] = size if what != "chunks" else content["shape"][i]
                    grid[i] = size if what == "chunks" else grid[i]
                one.write_text(json.dumps(content))
            words = f"{what} of {size}"
            said = _loaded(file)
        file.write_text(json.dumps(said))
    except (OSError, ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        return f"{file.relative_to(folder)}: nothing to describe ({error!r:.60})"
    return f"{file.relative_to(folder)}: {words}"


def _sealed(folder):
    """Make every checksum fit again, so that it does not hide what else was changed."""
    from floatscope.trace import store

    for path in folder.glob("*.zarr"):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            if path.name != "c.zarr" and all(map(_small, filter(_is_no_folder, path.rglob("*")))):
                store.seal(path, 2)
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
        manifest = _loaded(folder / "manifest.json")
        for entry in manifest["result"]["shards"]:
            file = folder / "shards" / f"{entry['shard']}.shard"
            if not _small(file):
                continue
            told = digest_of(file)
            side = file.with_suffix(".json")
            side.write_text(json.dumps(_loaded(side) | told))
            entry |= told
        (folder / "manifest.json").write_text(json.dumps(manifest))


def digest_of(file):
    """What a sidecar and the manifest say of a shard's file."""
    return {
        "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
        "bytes": file.stat().st_size,
    }


def zeros(n):
    """A dataset with one variable, y."""
    import numpy as np
    import xarray as xr

    return xr.Dataset({"y": ("n", np.zeros(n))})


def _written(draw, folder):
    """A study's file: another value, another document, or one that grows when it is read."""
    file = draw.choice(_files(folder))
    kind = file.suffix
    lines = file.read_text().splitlines() if kind != ".json" else []
    equals = " = " if kind == ".toml" else ": "
    what = draw.choice(["value", "value", "document", "bomb"])
    value = draw.choice([*checkpoints.VALUES, *HUGE])
    if what == "value" and kind == ".json":
        return _field(draw, folder)
    if what == "value" and lines:
        name = draw.choice([*NUMBERS, "models", "data", "extra_runs", "plugins", "nonsense"])
        lines.append(f"{name}{equals}{json.dumps(value)}")
        new = "\n".join(line for line in lines[:-1] if not line.startswith(name)) + "\n" + lines[-1]
    elif what == "document":
        new = draw.choice(
            ["", "[]", "3", "{1: 2}", "? [a]\n: b", "\0", "!!python/object:os.system x"]
        )
    else:
        level = "\n".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12))
        new = "a0: &a0 [x]\n" + level + "\nmodels: *a11\n"
        new = draw.choice([new, "a: &a [*a]\n", "[" * 90_000, "x = " + "[" * 90_000])
    file.write_text(new)
    return f"{file.name}: {new[-60:]!r}"


COMMON = (
    *(_fifo, _device, _sparse, _deep, _field, _field, _nearby(checkpoints._truncated)),
    *(_nearby(checkpoints._flipped), _nearby(checkpoints._replaced)),
    *(_nearby(checkpoints._linked), _nearby(checkpoints._made_a_folder)),
    _nearby(checkpoints._removed),
)
CHANGES = {
    "run": (
        *COMMON,
        _number,
        _number,
        _text,
        _text,
        _shard,
        _shard,
        _shard,
        _shard,
        _field,
        _field,
    ),
    "trace": (*COMMON, _described, _described, _described, _described, _described),
    "adapter": (*COMMON, _field, _field, _field, _field),
    "config": (_fifo, _device, _sparse, _written, _written, _written, _written, _written, _written),
}


def directory(seed, folder):
    """Write the hostile directory of this seed; its kind, and what is wrong with it in words."""
    draw = random.Random(seed)
    kind = draw.choice(KINDS)
    if kind == "checkpoint":
        return kind, checkpoints.checkpoint(seed, folder)
    shutil.copytree(_valid() / kind, folder)
    mark = folder / CANARY
    (folder / "evil.py").write_text(f"from pathlib import Path\nPath({str(mark)!r}).touch()\n")
    said = []
    for _ in range(draw.choice([1, 1, 1, 2, 3])):
        if _files(folder):
            change = draw.choice(CHANGES[kind])
            said.append(change(draw, folder))
            if change is _sparse:  # what comes after might read it
                break
    if draw.random() < 0.7:
        _sealed(folder)
    return kind, "; ".join(said)


# What a user does with them


def _commands(kind, folder, draw):
    """Command lines, and functions that do what a command does until it would serve."""
    valid, again = _valid(), folder.with_name("again")
    base = str(valid / "base")
    if kind == "run":
        yield lambda: _view(folder)
        yield ["report", str(folder), "--tables", "csv"]
        yield draw.choice(
            [
                ["verify", str(folder), "--shards", "1"],
                ["study", "--config", str(folder / "run.json"), "--out", str(again)],
                ["study", "--config", str(valid / "run" / "run.json"), "--out", str(folder)],
            ]
        )
    elif kind == "trace":
        yield lambda: _view(folder)
    elif kind == "adapter":
        prompt = ["--prompt", "Hello", "--length", "2", "--steps", "2"]
        yield ["trace", "--model", f"{base},adapter={folder}", *prompt]
    elif kind == "config":
        for suffix in ("json", "toml", "yaml"):
            file = folder / f"study.{suffix}"
            same = (valid / "config" / file.name).read_bytes()
            if not _small(file) or file.read_bytes() != same:
                yield ["study", "--config", str(file), "--out", str(again)]
    else:
        yield lambda: _load(folder)


def _load(folder):
    from floatscope.errors import ModelError

    outcome, text = checkpoints.attempt(folder)
    if outcome != "works":
        raise ModelError(text)


def _view(folder):
    from floatscope.errors import TraceError
    from floatscope.report.build import source_of
    from floatscope.report.serve import make_server

    server = make_server(source_of(folder))
    try:
        index = server.page.source.index()
        for example in index["examples"]:
            for scene in example["scenes"]:
                status = asyncio.run(_status(server.page.asgi, f"/scene/{scene['id']}"))
                assert status in (200, 400, 404, 500), status
        if index["left_out"]:
            raise TraceError("\n".join(index["left_out"]))
    finally:
        server.server_close()


async def _status(app, path):
    statuses = []

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message):
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    scope = {"type": "http", "method": "GET", "path": path, "headers": [], "query_string": b""}
    await app(scope, receive, send)
    return statuses[0]


def attempt(kind, folder, seed=0):
    """("works" | exit code, text) of each command; AssertionError where one breaks a promise."""
    outcomes = []
    for command in _commands(kind, Path(folder), random.Random(seed)):
        outcome, text = _forked(lambda command=command: _call(command))
        assert outcome not in ("traceback", "hung", "memory", "died"), (
            f"{command}: {outcome}\n{text}"
        )
        assert not (Path(folder) / CANARY).exists(), f"{command}: code of the directory ran"
        outcomes.append((outcome, text))
    return outcomes


def _call(command):
    from floatscope.cli import main

    if callable(command):
        command()
        return
    sys.argv = ["floatscope", *command, *(["--workers", "1"] if command[0] == "study" else [])]
    main()


def _forked(work, limit=LIMIT, patience=PATIENCE, memory=MEMORY):
    """Do the work in a process of its own, with limits; what it came to, and what it said."""
    from floatscope.errors import FloatscopeError

    said = tempfile.TemporaryFile()  # noqa: SIM115
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    child = os.fork()
    if child == 0:
        code = 70
        try:
            os.dup2(said.fileno(), 1)
            os.dup2(said.fileno(), 2)
            sys.stdout, sys.stderr = (os.fdopen(os.dup(n), "w") for n in (1, 2))
            import torch

            torch.set_num_threads(1)  # a fork has none of the threads that were there before
            warnings.simplefilter("ignore")  # other libraries' words about a damaged file
            os.environ["HF_HUB_OFFLINE"] = "1"
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            most = pages * resource.getpagesize() + 3 * MEMORY  # the machine has other work, too
            resource.setrlimit(resource.RLIMIT_AS, (most, most))
            signal.setitimer(signal.ITIMER_PROF, limit)  # its signal ends the process
            signal.signal(signal.SIGPROF, signal.SIG_DFL)
            work()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        except FloatscopeError as error:
            print(error)
            code = error.exit_code
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush(), sys.stderr.flush()
            os._exit(code)
    hung = threading.Event()

    def stop():
        hung.set()
        os.kill(child, signal.SIGKILL)

    timer = threading.Timer(patience, stop)
    timer.start()
    _, status, usage = os.wait4(child, 0)
    timer.cancel()
    said.seek(0)
    text = said.read().decode("utf-8", "replace")
    said.close()
    code = os.waitstatus_to_exitcode(status)
    if hung.is_set() or code == -signal.SIGPROF:
        return "hung", text[-3000:]
    if code < 0:
        return "died", f"signal {-code}\n{text[-3000:]}"
    if code == 70 or "Traceback (most recent call last)" in text:
        return "traceback", text[-5000:]
    if (usage.ru_maxrss << 10) - before > memory:
        return "memory", f"{usage.ru_maxrss >> 10} MB\n{text[-3000:]}"
    return ("works" if code == 0 else f"exit {code}"), text[-300:]


def main(count=300, seed=0, *, verbose=False):
    """Counts by kind and outcome, and what went wrong: a list of (seed, description, why)."""
    counts, failures = Counter(), []
    for n in range(seed, seed + count):
        with tempfile.TemporaryDirectory() as place:
            kind, said = directory(n, Path(place) / "it")
            begun = time.monotonic()
            try:
                outcomes = attempt(kind, Path(place) / "it", n)
            except AssertionError as error:
                outcomes = [("FAILURE", str(error))]
                failures.append((n, f"{kind}: {said}", str(error)))
        counts.update((kind, outcome) for outcome, _ in outcomes)
        if verbose:
            spent = time.monotonic() - begun
            print(f"{n:5d}  {kind:10s} {spent:5.1f} s  {said[:200]!r}", flush=True)
            for outcome, text in outcomes:
                print(f"         {outcome}: {' '.join(text.split())[:300]!r}", flush=True)
    return counts, failures


def _command():
    given = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    given.add_argument("--count", type=int, default=300)
    given.add_argument("--seed", type=int, default=0)
    given.add_argument("--verbose", action="store_true")
    options = given.parse_args()
    # Imported once, before all forks; nothing is computed here, which would start threads.
    import floatscope.cli
    import floatscope.report.build
    import floatscope.report.paper
    import floatscope.report.serve
    import floatscope.studies.run
    import floatscope.studies.worker  # noqa: F401

    counts, failures = main(options.count, options.seed, verbose=options.verbose)
    outcomes = sorted({outcome for _, outcome in counts})
    print("".join(f"{name:>12s}" for name in ("directory", *outcomes)))
    for kind in dict.fromkeys(KINDS):
        numbers = [counts[kind, outcome] for outcome in outcomes]
        print(f"{kind:>12s}" + "".join(f"{number:12d}" for number in numbers))
    for n, said, why in failures:
        print(f"\nseed {n}, {said}\n{why}")
    print(f"{options.count} hostile directories, {len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(_command())
