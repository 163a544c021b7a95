"""The attention pattern behind one step of a trace: computed again from the stored canvas, labelled."""

import numpy as np
import torch
import xarray as xr

from ..attention.pattern import pattern as matrices
from ..errors import UsageError
from ..models import Model
from ..models.select import Choice, chosen
from ..trace import Trace, readable
from .again import canvas_of, visibility_of

_MOST = 8_000_000_000  # bytes


def pattern(
    model: Model, trace: Trace, step: int, layer: Choice = None, head: Choice = None
) -> xr.DataArray:
    """`Model.pattern` says what it gives."""
    ids = canvas_of(model, trace, step)
    layers, heads = chosen(layer, model.n_layers, "layer"), chosen(head, model.n_heads, "head")
    size = len(ids)
    total = 4 * len(layers) * len(heads) * size**2
    if total > _MOST:
        raise UsageError(
            f"{len(layers)} × {len(heads)} patterns of {size} positions take {readable(total)}",
            "Choose fewer layers or heads at a time.",
        )
    start = int(trace.info["prompt_length"])
    mask = -2 if model.mask_id is None else model.mask_id
    words = np.array(model.token_texts(ids.tolist()), dtype=np.str_)
    at = chosen(step, trace.n_steps, "step")[0]
    values = xr.DataArray(
        matrices(model, torch.from_numpy(ids), layers, heads, visibility_of(model, trace, step)),
        dims=("layer", "head", "query", "key"),
        coords={
            "step": at,
            "layer": layers,
            "head": heads,
            "query": np.arange(size),
            "key": np.arange(size),
            "query_token": ("query", words),
            "token": ("key", words),
            "region": ("key", trace.data["region"].values[:size]),
            "masked": ("key", (ids == mask) & (np.arange(size) >= start)),
        },
        name="attention",
        attrs={"model": model.name, "gold": str(trace.info["gold"]), "shift": model.shift},
    )
    one = {dim: 0 for dim, wanted in (("layer", layer), ("head", head)) if isinstance(wanted, int)}
    return values.isel(one)
