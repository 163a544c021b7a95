"""The attention pattern behind one step of a trace: computed again from the stored canvas, labelled.

`to_circuitsvis` and `to_bertviz` turn it into plain arguments of other people's viewers, whose packages are
not imported.
"""

from typing import Any

import numpy as np
import torch
import xarray as xr

from ..attention.pattern import pattern as matrices
from ..errors import UsageError
from ..models import Model
from ..models.select import Choice, chosen
from ..trace import Trace, readable
from .again import TraceStep

_MOST = 8_000_000_000  # bytes


def pattern(
    model: Model, trace: Trace, step: int, layer: Choice = None, head: Choice = None
) -> xr.DataArray:
    """Compute what `Model.pattern` describes."""
    again = TraceStep(model, trace, step)
    layers, heads = chosen(layer, model.n_layers, "layer"), chosen(head, model.n_heads, "head")
    size = len(again.ids)
    total = 4 * len(layers) * len(heads) * size**2
    if total > _MOST:
        raise UsageError(
            f"{len(layers)} × {len(heads)} patterns of {size} positions take {readable(total)}",
            "Choose fewer layers or heads at a time.",
        )
    words = np.array(model.token_texts(again.ids.tolist()), dtype=np.str_)
    values = xr.DataArray(
        matrices(model, torch.from_numpy(again.ids), layers, heads, again.visibility()),
        dims=("layer", "head", "query", "key"),
        coords={
            "step": again.number,
            "layer": layers,
            "head": heads,
            "query": np.arange(size),
            "key": np.arange(size),
            "query_token": ("query", words),
            "token": ("key", words),
            "region": ("key", trace.data["region"].values[:size]),
            "masked": ("key", again.masked),
        },
        name="attention",
        attrs={"model": model.name, "gold": str(trace.info["gold"]), "shift": model.shift},
    )
    single = [dim for dim, choice in (("layer", layer), ("head", head)) if isinstance(choice, int)]
    return values.isel(dict.fromkeys(single, 0))


def to_circuitsvis(pattern: xr.DataArray) -> dict[str, Any]:
    """`circuitsvis.attention.attention_patterns(**to_circuitsvis(pattern))`: tokens, (head, query, key)."""
    if "layer" in pattern.dims:
        raise UsageError(
            f"circuitsvis shows one layer, and this pattern has {pattern.sizes['layer']}",
            "Choose one: model.pattern(trace, step=0, layer=3).",
        )
    arguments = to_bertviz(pattern)
    return {"tokens": arguments["tokens"], "attention": arguments["attention"][0][0].numpy()}


def to_bertviz(pattern: xr.DataArray) -> dict[str, Any]:
    """`bertviz.head_view(**to_bertviz(pattern))`, or `model_view`: a (1, head, query, key) per layer."""
    single = [dim for dim in ("layer", "head") if dim not in pattern.dims]
    layers = pattern.expand_dims(single).transpose("layer", "head", "query", "key").values
    tokens = [str(token) for token in pattern["token"].values]
    return {"attention": [torch.from_numpy(layer[None]) for layer in layers], "tokens": tokens}
