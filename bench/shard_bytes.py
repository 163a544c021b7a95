"""What a study's shard stores, from real shards of the embedded pair, and what it would at another size.

Datasets are made longer as `scale_parts.templates` does it; `check` compares that with a model of another
shape, really run.

    python bench/shard_bytes.py            # bytes a question of LLaDA-8B's shape, and the check
"""

import argparse
import json
import math
import tempfile
from pathlib import Path
from typing import Any

from scale_parts.templates import (
    KINDS,
    enlarged,
    llada,
    measured,
    shape_of,
    write_templates,
)

from floatscope.engine import Output
from floatscope.engine.shards import Shards, encode


def raw_bytes(output: Output, index: int, sizes: dict[str, int]) -> int:
    """Bytes of an example's measures, with dimensions of these sizes."""
    return sum(
        math.prod(shape_of(array, sizes)) * array.dtype.itemsize
        for data in measured(output, index).values()
        for array in data.variables.values()
    )


def check(folder: Path) -> dict[str, int]:
    """The formula against a model of another shape: bytes foretold from the pair, and stored."""
    from floatscope.models import tiny
    from floatscope.studies import request_of
    from floatscope.studies.demo import DEMO
    from floatscope.studies.study import by_default
    from floatscope.studies.worker import make

    shape = tiny.Shape(layers=5, heads=8, kv_heads=8, width=64, context=8192)
    path = tiny.write("LLaDA", folder / "model", shape)
    fields = {"models": [str(path)], "limit": 2, "view": 1, "length": 12, "steps": 6}
    fields |= {"template": "world", "frequencies": None, "studies": by_default()}
    worker = make(request_of({**DEMO, **fields}).model_dump(mode="json"), {})
    spec = {"kind": "trace", "model": str(path), "domain": "questions", "start": 0, "stop": 2}
    real = worker(spec, lambda done, of: None)
    pair = Shards(folder).read("trace-mdm")
    sizes = {
        str(dim): size
        for data in measured(real, 0).values()
        for dim, size in data.sizes.items()
        if dim in llada()
    }
    return {"foretold": raw_bytes(pair, 0, sizes), "stored": raw_bytes(real, 0, {})}


def table(folder: Path, sizes: dict[str, int]) -> dict[str, Any]:
    """Bytes a question of LLaDA-8B's shape: raw, and in a shard's file."""
    shards = Shards(folder)
    found: dict[str, Any] = {}
    for kind in KINDS:
        output = shards.read(f"trace-{kind}")
        small = {f"1/{name}": enlarged(data, sizes) for name, data in measured(output, 1).items()}
        examples = [e for e in output.meta["examples"] if e["index"] == 1]
        file = len(encode("x", "", Output(small, {**output.meta, "examples": examples})))
        found[kind] = {
            "measures_raw": raw_bytes(output, 0, sizes),
            "measures_file": file,
            "arrays": sum(len(data.variables) for data in small.values()),
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
