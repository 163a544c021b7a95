"""A model whose layers lie on two devices, a CPU and a GPU, traced as one: the statistics of one device.

    python bench/devices.py

Needs a CUDA GPU, torch, transformers, accelerate, xarray and the package. Prints the largest difference of
each statistic between the model on the GPU alone and the same model with its second half on the CPU.
"""

import tempfile
from pathlib import Path

import numpy as np
import torch
from accelerate.hooks import attach_align_device_hook_on_blocks

import floatscope as fs
from floatscope.models import tiny


def spread(model: fs.Model, layers: int) -> None:
    """The first half of the layers on the GPU, the others on the CPU; hooks as device_map makes them."""
    net = model.net
    where: dict[str, str] = {"": "cuda", "model.embed_tokens": "cuda", "model.rotary_emb": "cuda"}
    where |= {"model.norm": "cpu", "lm_head": "cpu"}
    where |= {f"model.layers.{n}": "cuda" if n < layers // 2 else "cpu" for n in range(layers)}
    for name, device in where.items():
        if name:
            net.get_submodule(name).to(device)
    attach_align_device_hook_on_blocks(net, where, offload=dict.fromkeys(where, False))
    model.__dict__.pop("on_one_device", None)


def main() -> None:
    shape = tiny.Shape(layers=4, width=64, heads=4, kv_heads=2)
    folder = Path(tempfile.mkdtemp())
    sampler = fs.Confidence(length=8, steps=4)
    for family, block in (("LLaDA", None), ("LLaDA-MoE", None), ("SDAR", 4)):
        path = tiny.write(family, folder / family, shape)
        whole = fs.load(path, dtype="float32", device="cuda", block=block)
        parted = fs.load(path, dtype="float32", device="cuda", block=block)
        spread(parted, shape.layers)
        assert not parted.on_one_device
        one, other = (
            m.trace("Hello there", sampler, keep=fs.statistics.STATISTICS) for m in (whole, parted)
        )
        assert np.array_equal(one.canvas.values, other.canvas.values), "other tokens"
        for name in sorted(map(str, one.data.data_vars)):
            a, b = one.data[name].values, other.data[name].values
            if a.dtype.kind == "f" and name != "row_key":
                off = np.nanmax(np.abs(a - b)) if np.isfinite(a).any() else 0.0
                print(f"{family:10} {name:18} {off:.2g}")
                assert off < 1e-3 * max(1.0, float(np.nanmax(np.abs(a)))), name
    torch.cuda.synchronize()
    print("the same on two devices as on one")


if __name__ == "__main__":
    main()
