"""Tracing changes no bit: attention's output, logits, and a step with a KV cache."""

import copy
import gc
import json
from dataclasses import replace

import torch
from transformers import DynamicCache

from floatscope.attention import Capture, Forward, Labels, View, reference
from floatscope.attention.gpu import fused
from floatscope.attention.gpu.strongest import log_sum_exp
from floatscope.attention.lse_capture import LseCapture
from floatscope.models import Model, attention_hook
from floatscope.statistics import STATISTICS

from .common import SHAPES, WINDOW, Row, build


def same() -> list[Row]:
    """Logits with and without tracing, bit for bit; and the attention call's own output."""
    rows: list[Row] = [same_attention()]
    print(json.dumps(rows[0]), flush=True)
    for name in SHAPES:
        model = build(name)
        for batch, size in ((1, 4096), (4, 1000)):
            ids = torch.randint(0, 120000, (batch, size), device="cuda")
            padding = torch.tensor([0, *[100] * (batch - 1)], device="cuda")
            visible = model.visibility(size, size, padding)
            region = torch.arange(size, device="cuda") * 6 // size
            region = region.expand(batch, -1).masked_fill(~visible.key_is_real, -1)
            window = (size - WINDOW - model.shift, size - model.shift)
            forward = Forward(
                visible, Labels(region.clamp(max=2), 3, region, 6), window, cached=False
            )
            with attention_hook.enable(model.net):
                plain = model.predict(ids, size - WINDOW, size, visible)
            everything = range(model.n_layers), range(model.n_heads)
            capture = Capture(model, set(STATISTICS), *everything)
            with capture, capture.forward(forward) as captured:
                traced = model.predict(ids, size - WINDOW, size, visible)
            of_rows = [bool(one.candidates is not None) for one in captured.layers.values()]
            row: Row = {"model": name, "batch": batch, "S": size}
            row |= {"padding": batch > 1}
            row |= {"same_logits": bool(torch.equal(plain, traced)), "fused": all(of_rows)}
            rows.append(row)
            print(json.dumps(row), flush=True)
        if not model.is_diffusion:
            rows.append(same_step(model))
            print(json.dumps(rows[-1]), flush=True)
        del model, plain, traced, captured, capture
        gc.collect()
        torch.cuda.empty_cache()
    return rows


@torch.inference_mode()
def same_step(model: Model) -> Row:
    """One token after 1,000 with a KV cache: logits plain, plain again, and traced."""
    ids = torch.randint(0, 120000, (4, 1001), device="cuda")
    nothing = torch.zeros(4, dtype=torch.long, device="cuda")
    last = torch.tensor([0], device="cuda")
    region = (torch.arange(1001, device="cuda") * 6 // 1001).expand(4, -1)
    visible = model.visibility(1, 1001, nothing)
    group = region[:, -1:].clamp(max=2)
    forward = Forward(visible, Labels(group, 3, region, 6), (0, 1), cached=True)
    cache = DynamicCache(config=model.net.config)
    with attention_hook.enable(model.net):
        model.forward(ids[:, :-1], last, model.visibility(1000, 1000, nothing), cache)
        plain, again = (
            model.forward(ids[:, -1:], last, visible, copy.deepcopy(cache)) for _ in range(2)
        )
    everything = range(model.n_layers), range(model.n_heads)
    capture = Capture(model, set(STATISTICS), *everything)
    before = torch.zeros(4, 1000, 6, device="cuda")
    capture.rollout.cached_states = {n: ([], before) for n in range(model.n_layers)}
    with capture, capture.forward(forward) as captured:
        traced = model.forward(ids[:, -1:], last, visible, copy.deepcopy(cache))
    errors = {"column_sum": 0.0, "entropy": 0.0, "region_sum": 0.0}

    def compare(call: attention_hook.Call, proceed: attention_hook.Proceed) -> torch.Tensor:
        """Both ways on the very same q and k: a second forward may differ in its last bits."""
        view = View(
            call.query, call.key, call.scale, call.mask, call.causal, visible, forward.labels
        )
        fast, slow = fused.sums(replace(view, lse=log_sum_exp(view))), reference.sums(view)
        for name in errors:
            one, other = fast[name].double(), slow[name]
            errors[name] = max(errors[name], float((one - other).abs().max() / other.abs().max()))
        return proceed(call)

    with attention_hook.attach(model.net, compare):
        model.forward(ids[:, -1:], last, visible, copy.deepcopy(cache))
    return {
        "model": model.name,
        "batch": 4,
        "S": 1001,
        "cached": True,
        "same_logits": bool(torch.equal(plain, traced)),
        "plain_repeats_itself": bool(torch.equal(plain, again)),
        "fused": all(one.candidates is not None for one in captured.layers.values()),
        "against_float64": errors,
    }


def same_attention() -> Row:
    """Attention's own output with and without listening, bit for bit, over many shapes."""
    tried, differ = 0, []
    kinds = (torch.bfloat16, torch.float16, torch.float32)
    for dtype in kinds:
        for n_query in (1, 2, 7, 33, 63, 64, 65, 100, 129, 300, 1024):
            for n_key in (n_query, n_query + 500):
                q = torch.randn(2, 8, n_query, 128, device="cuda", dtype=dtype)
                k, v = (torch.randn(2, 8, n_key, 128, device="cuda", dtype=dtype) for _ in range(2))
                mask = torch.rand(2, 1, n_query, n_key, device="cuda") < 0.7
                options: list[Row] = [{}, {"attn_mask": mask}]
                options += [{"is_causal": True}] if n_query == n_key else []
                for option in options:
                    with torch.inference_mode():
                        plain = torch.nn.functional.scaled_dot_product_attention(q, k, v, **option)
                        with LseCapture():
                            heard = torch.nn.functional.scaled_dot_product_attention(
                                q, k, v, **option
                            )
                    tried += 1
                    if not torch.equal(plain, heard):
                        differ.append([str(dtype)[6:], n_query, n_key, *option])
    return {"attention_calls": tried, "differ": differ}
