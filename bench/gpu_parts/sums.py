"""The statistics alone: against float64, and the column sums against another kernel."""

import json
from dataclasses import replace
from typing import Any

import torch

from floatscope.attention import Labels, View, reference
from floatscope.attention.cpu import blocked
from floatscope.attention.gpu import fused
from floatscope.attention.lse_capture import LseCapture
from floatscope.models import Direction, Visibility

from .common import Row, Run, alone, in_turn


def random_view(size: int, heads: int, kv: int, dtype: torch.dtype, **options: Any) -> View:
    """q, k and the log-sum-exp of one layer, with attention as sharp as a trained model's."""
    direction: Direction = options.get("direction", Direction.BIDIRECTIONAL)
    block = 32 if direction is Direction.BLOCK_CAUSAL else None
    batch = 2
    padding = torch.tensor([0, options.get("padding", 0)], device="cuda")
    query = torch.randn(batch, size, heads, 128, device="cuda", dtype=dtype).transpose(1, 2) * 2
    key = torch.randn(batch, size, kv, 128, device="cuda", dtype=dtype).transpose(1, 2)
    model_like = Direction(direction)
    visible = Visibility(model_like, block, padding, size, size)
    region = torch.randint(0, 6, (batch, size), device="cuda")
    region = region.sort(1).values.masked_fill(~visible.key_is_real, -1)
    mask, causal = visible.mask, visible.is_causal and visible.mask is None
    if options.get("edited"):
        drawn = torch.rand(batch, heads, size, size, device="cuda") < 0.5
        mask = visible.matrix[:, None] & (drawn | torch.eye(size, device="cuda").bool())
        causal = False
    wide = key.repeat_interleave(heads // kv, dim=1)
    with LseCapture() as ear, torch.inference_mode():
        torch.nn.functional.scaled_dot_product_attention(
            query, wide, wide, attn_mask=mask, is_causal=causal
        )
    labels = Labels(region.clamp(max=2), 3, region, 6)
    state = torch.rand(batch, size, 6, device="cuda")
    state = state * (region >= 0)[..., None]
    lse = ear.lse(query)
    assert lse is not None, "attention kept no log-sum-exp"
    return View(query, key, 128**-0.5, mask, causal, visible, labels, lse, state)


def exact() -> list[Row]:
    """Largest error of sampled heads against float64, relative to each array's largest value."""
    cases: list[tuple[str, tuple[int, int, int], dict[str, Any]]] = [
        ("full", (4096, 8, 8), {}),
        ("full, odd size", (1001, 8, 8), {}),
        ("grouped heads", (2048, 28, 4), {}),
        ("padding", (2048, 8, 8), {"padding": 500}),
        ("causal", (2048, 8, 2), {"direction": Direction.CAUSAL}),
        ("causal, padding", (1500, 8, 2), {"direction": Direction.CAUSAL, "padding": 77}),
        ("block-causal", (2048, 8, 2), {"direction": Direction.BLOCK_CAUSAL}),
        ("edited mask a head", (1024, 8, 8), {"edited": True}),
    ]
    rows = []
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for name, shape, options in cases:
            view = random_view(*shape, dtype=dtype, **options)
            heads = [1, shape[1] - 1]
            fast = fused.sums(view)
            own = [h // (shape[1] // shape[2]) for h in heads]
            sampled = replace(
                view,
                query=view.query[:, heads],
                key=view.key[:, own],
                mask=view.mask
                if view.mask is None or view.mask.shape[1] == 1
                else view.mask[:, heads],
            )
            slow = reference.sums(sampled)
            counted = view.labels.counted[..., 0]
            row: Row = {"case": name, "dtype": str(dtype)[6:], "S": shape[0]}
            pairs = {
                "column_sum": (fast["column_sum"][:, :, heads], slow["column_sum"]),
                "entropy": (fast["entropy"][:, heads] * counted, slow["entropy"] * counted),
                "region_sum": (
                    fast["region_sum"][:, heads] * counted[..., None],
                    slow["region_sum"] * counted[..., None],
                ),
            }
            for what, (a, b) in pairs.items():
                row[what] = float((a.double() - b).abs().max() / b.abs().max())
            whole = blocked.sums(view, entropy=False, regions=False)["rolled"]
            error = (fast["rolled"] - whole).abs() * counted[:, 0, :, None]
            row["rolled"] = float(error.max() / whole.abs().max())
            rows.append(row)
            print(json.dumps(row), flush=True)
            del view, fast, slow, whole
            torch.cuda.empty_cache()
    return rows


def kernel() -> list[Row]:
    """The column sums alone, a layer of 32 heads, against flash-colreduce."""
    rows = []
    for size in (1024, 4096, 8192, 16384):
        view = random_view(size, 32, 32, torch.bfloat16)
        one = torch.zeros_like(view.labels.group[:1])
        view = replace(
            view, query=view.query[:1], key=view.key[:1], lse=view.lse[:1], state=None,  # type: ignore[index]
            visible=replace(view.visible, padding=view.visible.padding[:1]),
            labels=Labels(one, 1, one, 1),
        )  # fmt: skip
        runs: dict[str, Run] = {
            "ours": lambda view=view: fused.sums(view, entropy=False, regions=False),  # type: ignore[misc]
            "blocked": lambda view=view: blocked.sums(view, entropy=False, regions=False),  # type: ignore[misc]
        }
        try:
            from flash_colreduce import flash_colreduce

            query, key = view.query.contiguous(), view.key.contiguous()
            runs["flash-colreduce"] = lambda q=query, k=key: flash_colreduce(q, k, reduction="sum")  # type: ignore[misc]
        except ImportError:
            print("flash-colreduce is not installed")
        times = in_turn({name: alone(run) for name, run in runs.items()}, 5, repeats=8)
        row = {"S": size, **{f"{name}_ms": ms for name, ms in times.items()}}
        row["tflops"] = 2 * size**2 * 128 * 32 / times["ours"] / 1e9
        if "flash-colreduce" in times:
            row["times_as_fast"] = times["flash-colreduce"] / times["ours"]
        rows.append(row)
        print(json.dumps(row), flush=True)
        del view
    return rows
