"""The core on a GPU: is it right there, and what does the fallback path cost?

    python bench/cuda.py [--json FILE]

Needs torch with CUDA, transformers and jaxtyping alone. First the self-check of the embedded pair in
float32 and bfloat16; then column sums, entropy and region sums against the float64 reference on
sampled heads; then a forward of LLaDA-8B's shape with random weights, plain and traced, by the
`blocked` path that serves every device. A fused kernel is another benchmark's subject.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from floatscope import selfcheck
from floatscope.attention import STATISTICS, Capture, Labels, Scene, View, blocked, reference
from floatscope.attention.overhear import Overhear
from floatscope.models import Direction, Model, load, seam
from floatscope.models.registry import family_by_name


def check_pair() -> list[dict[str, Any]]:
    found = []
    for name in ("pair/mdm", "pair/arm"):
        for dtype in ("float32", "bfloat16"):
            model = load(name, into=Model, device="cuda", dtype=dtype)
            selfcheck.check(model)
            found.append({"model": name, "dtype": dtype, "self_check": "passed", **exact(model)})
            print(found[-1], flush=True)
    return found


def exact(model: Model, size: int = 700) -> dict[str, Any]:
    """Largest error of every layer's sums against float64, relative to the largest value."""
    ids = torch.randint(4, 8000, (2, size), generator=torch.Generator().manual_seed(0)).cuda()
    visible = model.visibility(size, size, torch.tensor([0, 50], device="cuda"))
    region = (torch.arange(size, device="cuda") * 5 // size).expand(2, -1)
    region = region.masked_fill(~visible.key_is_real, -1)
    labels = Labels(region.clamp(max=2), 3, region, 5)
    worst: dict[str, float] = {"column_sum": 0, "entropy": 0, "region_sum": 0}
    heard = []

    def compare(call: seam.Call, proceed: seam.Proceed) -> torch.Tensor:
        with Overhear() as ear:
            output = proceed(call)
        lse = ear.lse(call.query)
        heard.append(lse is not None)
        view = View(
            call.query, call.key, call.scale, call.mask, call.causal, visible, labels, lse=lse
        )
        fast, slow = blocked.sums(view), reference.sums(view)
        counted = labels.counted[..., 0]
        for name in worst:
            a, b = getattr(fast, name).double(), getattr(slow, name)
            if name != "column_sum":
                weight = counted if a.ndim == 3 else counted[..., None]
                a, b = a * weight, b * weight
            worst[name] = max(worst[name], float((a - b).abs().max() / b.abs().max()))
        return output

    with seam.attached(model.net, compare, innermost=True):
        model.forward(ids, torch.tensor([size - 1], device="cuda"), visible)
    return {"lse_overheard": sum(heard) / len(heard), **worst}


def big(layers: int = 32) -> Model:
    """LLaDA-8B's shape with random weights."""
    config = LlamaConfig(
        hidden_size=4096,
        num_hidden_layers=layers,
        num_attention_heads=32,
        num_key_value_heads=32,
        intermediate_size=12288,
        vocab_size=126464,
        max_position_embeddings=32768,
        is_causal=False,
        attn_implementation="sdpa",
    )
    with torch.device("cuda"):
        torch.set_default_dtype(torch.bfloat16)
        net = LlamaForCausalLM(config).eval()
        torch.set_default_dtype(torch.float32)
    kind = family_by_name("LLaDA")
    return Model("LLaDA-8B shape", net, None, kind, Direction.BIDIRECTIONAL, None, 0, 126336, ())


def milliseconds(run: Callable[[], object], rounds: int = 5) -> float:
    run()
    best = float("inf")
    for _ in range(rounds):
        torch.cuda.synchronize()
        start = time.perf_counter()
        run()
        torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return best * 1e3


def cost(sizes: list[int]) -> list[dict[str, Any]]:
    model, rows = big(), []
    for size in sizes:
        ids = torch.randint(0, 126000, (1, size), device="cuda")
        visible = model.visibility(size, size, torch.zeros(1, dtype=torch.long, device="cuda"))
        window = (size - 64, size)
        region = (torch.arange(size, device="cuda")[None] * 4 // size + 2).clone()
        region[:, -64:] = 0
        row: dict[str, Any] = {"S": size}

        def plain(
            ids: torch.Tensor = ids, window: tuple[int, int] = window, visible: Any = visible
        ) -> object:
            return model.predict(ids, *window, visible)

        torch.cuda.reset_peak_memory_stats()
        row["plain_ms"] = milliseconds(plain)
        row["plain_GiB"] = torch.cuda.max_memory_allocated() / 2**30
        for way, keep, n in (("mass", {"mass"}, 1), ("all", set(STATISTICS), 3)):
            group = region.clamp(max=2) if n == 3 else torch.zeros_like(region)
            scene = Scene(visible, Labels(group, n, region, 6), window, cached=False)
            with Capture(model, keep, range(model.n_layers), range(model.n_heads)) as capture:

                def traced(
                    capture: Capture = capture, scene: Scene = scene, run: Any = plain
                ) -> object:
                    with capture.forward(scene):
                        run()
                    return None

                torch.cuda.reset_peak_memory_stats()
                row[f"{way}_ratio"] = milliseconds(traced, 3) / row["plain_ms"]
                row[f"{way}_GiB"] = torch.cuda.max_memory_allocated() / 2**30
        rows.append(row)
        print(row, flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[1024, 4096])
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    print(torch.cuda.get_device_name(), "torch", torch.__version__)
    found = {"pair": check_pair(), "cost": cost(args.sizes)}
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
