"""What a study's shard stores, from real shards of the embedded pair, and what it would at another size.

Every array of a shard names its dimensions, so the same shard for a larger model is each array with
its named dimensions made longer. `check` compares that with a model of another shape, really run.

    python bench/shard_bytes.py            # bytes a question of LLaDA-8B's shape, and the check
"""

import argparse
import json
import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from floatscope.engine import Output
from floatscope.engine.shards import Shards, encode

KINDS = ("mdm", "arm")
SAMPLED = "sampler-confidence"  # a setting that also keeps the order of reveals


def llada(positions: int = 1024, steps: int = 32) -> dict[str, int]:
    """Dimensions of a trace of LLaDA-8B (32 layers, 32 heads); one token is revealed a step."""
    return {
        **dict.fromkeys(("layer", "other", "head"), 32),
        **dict.fromkeys(("key", "query"), positions),
        **dict.fromkeys(("step", "tick", "event"), steps),
        "state": steps + 1,
    }


def write_templates(folder: Path) -> None:
    """Real shards of the pair, one of each kind and model: two traces (one kept), four answers."""
    from floatscope.studies import STUDIES, request_of
    from floatscope.studies.run import DEMO
    from floatscope.studies.worker import make

    fields = {"limit": 2, "questions": 4, "view": 1, "studies": tuple(STUDIES)}
    worker = make(request_of({**DEMO, **fields}).model_dump(mode="json"))
    shards = Shards(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for kind in KINDS:
        common = {"model": f"pair/{kind}", "start": 0}
        for name, spec in {
            "trace": {"kind": "trace", "domain": "questions", "stop": 2},
            "ask": {"kind": "ask", "setting": "with-passages", "stop": 4},
            "sampled": {"kind": "ask", "setting": SAMPLED, "stop": 4},
        }.items():
            output = worker({**common, **spec}, lambda done, of: None)
            shards.write(f"{name}-{kind}", encode(f"{name}-{kind}", "", output))


def example_arrays(output: Output, index: int) -> dict[str, tuple[list[str], np.ndarray]]:
    """Arrays of one traced example with their dimensions; those of a kept trace are in trace/."""
    one = next(e for e in output.meta["examples"] if e["index"] == index)
    parts = {**one["values"], **({"trace": one["trace"]} if "trace" in one else {})}
    return {
        f"{part}/{kind}/{name}": (what["dims"], output.arrays[f"{index}/{part}/{kind}/{name}"])
        for part, said in parts.items()
        for kind in ("variables", "coords")
        for name, what in said[kind].items()
    }


def shape_of(dims: list[str], old: tuple[int, ...], sizes: dict[str, int]) -> tuple[int, ...]:
    return tuple(sizes.get(dim, size) for dim, size in zip(dims, old, strict=True))


def raw_bytes(output: Output, index: int, sizes: dict[str, int]) -> dict[str, int]:
    """Bytes of an example's measures and of its kept trace, with dimensions of these sizes."""
    found = {"measures": 0, "trace": 0}
    for name, (dims, array) in example_arrays(output, index).items():
        part = "trace" if name.startswith("trace/") else "measures"
        found[part] += math.prod(shape_of(dims, array.shape, sizes)) * array.itemsize
    return found


def enlarged(dims: list[str], name: str, array: np.ndarray, sizes: dict[str, int]) -> np.ndarray:
    """The array at its new shape: the same values again and again, with noise in their last bits."""
    shape = shape_of(dims, array.shape, sizes)
    if dims == [name] and array.dtype.kind in "iu":
        return np.arange(shape[0], dtype=array.dtype)  # labels of a dimension
    large = np.resize(array, shape) if array.size else np.zeros(shape, array.dtype)
    if array.dtype.kind == "f":  # measured numbers hardly compress; repeated ones would
        noise = np.random.default_rng(0).random(shape, dtype=np.float32)
        noise *= 0.01
        noise += 1
        large *= noise.astype(array.dtype, copy=False)
    return large


def check(folder: Path) -> list[dict[str, Any]]:
    """The formula against a model of another shape: bytes foretold from the pair, and stored."""
    from floatscope import tiny
    from floatscope.studies import STUDIES, request_of
    from floatscope.studies.run import DEMO
    from floatscope.studies.worker import make

    shape = tiny.Shape(layers=5, heads=8, kv_heads=8, width=64, context=8192)
    path = tiny.write("LLaDA", folder / "model", shape)
    fields = {"models": [str(path)], "limit": 2, "view": 1, "length": 12, "steps": 6}
    fields |= {"template": "world", "frequencies": None, "studies": tuple(STUDIES)}
    worker = make(request_of({**DEMO, **fields}).model_dump(mode="json"))
    spec = {"kind": "trace", "model": str(path), "domain": "questions", "start": 0, "stop": 2}
    real = worker(spec, lambda done, of: None)
    pair = Shards(folder).read("trace-mdm")
    sizes = {
        dim: size
        for dims, array in example_arrays(real, 0).values()
        for dim, size in zip(dims, array.shape, strict=True)
        if dim in llada()
    }
    foretold, stored = raw_bytes(pair, 0, sizes), raw_bytes(real, 0, {})
    return [{"part": p, "foretold": foretold[p], "stored": stored[p]} for p in foretold]


def table(folder: Path, sizes: dict[str, int]) -> dict[str, Any]:
    """Bytes a question of LLaDA-8B's shape: raw, and in a shard's file."""
    shards = Shards(folder)
    found: dict[str, Any] = {}
    for kind in KINDS:
        output = shards.read(f"trace-{kind}")
        small = {
            f"1/{name}": enlarged(dims, name.rpartition("/")[2], array, sizes)
            for name, (dims, array) in example_arrays(output, 1).items()
        }
        one = [e for e in output.meta["examples"] if e["index"] == 1]
        file = len(encode("x", "", Output(small, {**output.meta, "examples": one})))
        raw = raw_bytes(output, 0, sizes)
        found[kind] = {
            "measures_raw": raw["measures"],
            "measures_file": file,
            "kept_trace_raw": raw["trace"],
            "arrays": len(small),
            "answer_file": shards.path(f"ask-{kind}").stat().st_size / 4,
            "answer_file_sampled": shards.path(f"sampled-{kind}").stat().st_size / 4,
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--positions", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--templates", type=Path, help="Only write the pair's shards there.")
    args = parser.parse_args()
    if args.templates:
        return write_templates(args.templates)
    with tempfile.TemporaryDirectory() as folder:
        write_templates(Path(folder))
        sizes = llada(args.positions, args.steps)
        print(json.dumps({"check": check(Path(folder)), **table(Path(folder), sizes)}, indent=1))


if __name__ == "__main__":
    main()
