"""Recompute attention patterns of chosen heads from a step of a trace, and convert them for viewers."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float
from torch import Tensor

from ..errors import UsageError
from ..models import Model, attention_hook
from ..models.select import Choice, chosen
from ..trace import Trace, readable
from .finished import TraceStep

_LIMIT = 8_000_000_000  # bytes


def pattern(
    model: Model, trace: Trace, step: int, layer: Choice = None, head: Choice = None
) -> xr.DataArray:
    """Compute the attention of one step, as `Model.pattern` documents."""
    trace_step = TraceStep(model, trace, step)
    layers, heads = chosen(layer, model.n_layers, "layer"), chosen(head, model.n_heads, "head")
    size = len(trace_step.ids)
    total = 4 * len(layers) * len(heads) * size**2
    if total > _LIMIT:
        problem = (
            f"{len(layers)} × {len(heads)} patterns of {size} positions need {readable(total)}"
        )
        remedy = "Choose fewer layers or heads at a time."
        raise UsageError(f"{problem}; the limit is {readable(_LIMIT)}", remedy)
    words = np.array(model.token_texts(trace_step.ids.tolist()), dtype=np.str_)
    values = xr.DataArray(
        _matrices(trace_step, layers, heads),
        dims=("layer", "head", "query", "key"),
        coords={
            "step": trace_step.number,
            "layer": layers,
            "head": heads,
            "query": np.arange(size),
            "key": np.arange(size),
            "query_token": ("query", words),
            "token": ("key", words),
            "region": ("key", trace.data["region"].values[:size]),
            "masked": ("key", trace_step.masked),
        },
        name="attention",
        attrs={"model": model.name, "gold": str(trace.info["gold"]), "shift": model.shift},
    )
    single = [dim for dim, choice in (("layer", layer), ("head", head)) if isinstance(choice, int)]
    return values.isel(dict.fromkeys(single, 0))


def _matrices(step: TraceStep, layers: Sequence[int], heads: Sequence[int]) -> np.ndarray:
    """Run one forward and return all matrices (layer, head, query, key), one head at a time."""
    model, size = step.model, len(step.ids)
    matrices = np.empty((len(layers), len(heads), size, size), np.float32)
    place = {layer: i for i, layer in enumerate(layers)}

    def record(call: attention_hook.Call, proceed: attention_hook.Proceed) -> Tensor:
        if call.layer in place:
            for i, head in enumerate(heads):
                matrices[place[call.layer], i] = head_weights(call, head).float().cpu().numpy()
        return proceed(call)

    last = torch.tensor([size - 1], device=model.device)
    ids = torch.from_numpy(step.ids)[None].to(model.device)
    with (
        attention_hook.lock_network(model.net),
        attention_hook.attach(model.net, record, innermost=True),
    ):
        model.forward(ids, last, step.visibility())
    return matrices


def head_weights(call: attention_hook.Call, head: int) -> Float[Tensor, "q k"]:
    """Compute one head's attention matrix; with a cache, its rows are those of this forward."""
    wide = torch.promote_types(call.query.dtype, torch.float32)
    group = call.query.shape[1] // call.key.shape[1]
    score = call.query[0, head].to(wide) @ call.key[0, head // group].to(wide).mT * call.scale
    if call.bias is not None:
        score = score + call.bias[0, head].to(wide)
    allowed = attention_hook.explicit_mask(call)[0]
    mask = allowed[head] if len(allowed) > 1 else allowed[0]
    return score.masked_fill(~mask, -torch.inf).softmax(-1)


def to_circuitsvis(pattern: xr.DataArray) -> dict[str, Any]:
    """Convert one layer's attention into the arguments of CircuitsVis's `attention_patterns`.

    ```python
    circuitsvis.attention.attention_patterns(**fs.to_circuitsvis(pattern))
    ```

    Args:
        pattern: (head, query, key) or (query, key), as `model.pattern(trace, step=0, layer=3)` returns it.

    Returns:
        `tokens`, a list of S strings, and `attention`, a float32 array (heads, S, S).
    """
    if "layer" in pattern.dims:
        problem = f"CircuitsVis shows one layer, but this pattern has {pattern.sizes['layer']}"
        raise UsageError(problem, "Choose one: model.pattern(trace, step=0, layer=3).")
    arguments = to_bertviz(pattern)
    return {"tokens": arguments["tokens"], "attention": arguments["attention"][0][0].numpy()}


def to_bertviz(pattern: xr.DataArray) -> dict[str, Any]:
    """Convert attention into the arguments of BertViz's `head_view` and `model_view`.

    ```python
    bertviz.head_view(**fs.to_bertviz(pattern))
    ```

    Args:
        pattern: (layer, head, query, key) as `model.pattern` returns it; the layer and head dimensions may be
            missing.

    Returns:
        `attention`, a list of float32 tensors (1, heads, S, S), one per layer, and `tokens`, a list of S
        strings.
    """
    single = [dim for dim in ("layer", "head") if dim not in pattern.dims]
    layers = pattern.expand_dims(single).transpose("layer", "head", "query", "key").values
    tokens = [str(token) for token in pattern["token"].values]
    return {"attention": [torch.from_numpy(layer[None]) for layer in layers], "tokens": tokens}
