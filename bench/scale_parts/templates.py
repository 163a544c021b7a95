"""Real shards of the embedded pair, and the same arrays as they would be for a larger model.

Every array of a shard names its dimensions, so the same shard for a larger model is each array with
its named dimensions made longer.
"""

from pathlib import Path

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
    """Real shards of the pair, one of each kind and model: two traces (one viewed), four answers."""
    from floatscope.studies import request_of
    from floatscope.studies.demo import DEMO
    from floatscope.studies.study import by_default
    from floatscope.studies.worker import make

    fields = {"limit": 2, "questions": 4, "view": 1, "studies": by_default()}
    worker = make(request_of({**DEMO, **fields}).model_dump(mode="json"), {})
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
    """Arrays of one traced example's measures, with their dimensions."""
    one = next(e for e in output.meta["examples"] if e["index"] == index)
    return {
        f"{part}/{kind}/{name}": (what["dims"], output.arrays[f"{index}/{part}/{kind}/{name}"])
        for part, said in one["values"].items()
        for kind in ("variables", "coords")
        for name, what in said[kind].items()
    }


def shape_of(dims: list[str], old: tuple[int, ...], sizes: dict[str, int]) -> tuple[int, ...]:
    return tuple(sizes.get(dim, size) for dim, size in zip(dims, old, strict=True))


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
