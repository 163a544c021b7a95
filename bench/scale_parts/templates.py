"""Real shards of the embedded pair, and the same datasets as they would be for a larger model.

Every dataset of a shard names its dimensions, so the same shard for a larger model is each dataset with its
named dimensions made longer.
"""

from pathlib import Path

import numpy as np
import xarray as xr

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


def measured(output: Output, index: int) -> dict[str, xr.Dataset]:
    """Return the datasets of one traced example's measures, by measure; those of controls too."""
    return {
        name.partition("/")[2]: output.data[name]
        for example in output.meta["examples"]
        if example["index"] == index
        for name in example["values"].values()
    }


def shape_of(array: xr.Variable, sizes: dict[str, int]) -> tuple[int, ...]:
    return tuple(sizes.get(str(dim), size) for dim, size in array.sizes.items())


def enlarged(data: xr.Dataset, sizes: dict[str, int]) -> xr.Dataset:
    """The dataset with dimensions of these sizes."""
    variables = {name: _enlarged(name, data.variables[name], sizes) for name in data.variables}
    return xr.Dataset(variables, attrs=data.attrs).set_coords(list(data.coords))


def _enlarged(name: object, array: xr.Variable, sizes: dict[str, int]) -> xr.Variable:
    """An array at its new shape: the same values again and again, with noise in their last bits."""
    shape, values = shape_of(array, sizes), array.values
    if array.dims == (name,) and values.dtype.kind in "iu":  # labels of a dimension
        return xr.Variable(array.dims, np.arange(shape[0], dtype=values.dtype), array.attrs)
    large = np.resize(values, shape) if values.size else np.zeros(shape, values.dtype)
    if values.dtype.kind == "f":  # measured numbers hardly compress; repeated ones would
        noise = np.random.default_rng(0).random(shape, dtype=np.float32)
        noise *= 0.01
        noise += 1
        large *= noise.astype(values.dtype, copy=False)
    return xr.Variable(array.dims, large, array.attrs)
