"""The attention pattern behind one step of a trace: computed again from the stored canvas, labelled.

It needs the model that was traced, as it was: another model's weights, or an intervention then or now,
would give another pattern than the one whose sums the trace holds, and are refused.
"""

import numpy as np
import torch
import xarray as xr

from ..attention.pattern import pattern as matrices
from ..errors import UsageError
from ..models import Model
from ..models.select import Choice, chosen
from ..trace import Trace, readable

_MOST = 8_000_000_000  # bytes


def canvas_of(model: Model, trace: Trace, step: int) -> np.ndarray:
    """The tokens that step's forward was given, once it is sure that this model gave it."""
    require_same(model, trace)
    step = chosen(step, trace.n_steps, "step")[0]
    canvas = trace.canvas.values[step]
    return np.asarray(canvas[canvas >= 0], np.int64)


def require_same(model: Model, trace: Trace) -> None:
    """The trace is of these weights, and no intervention was or is in force."""
    if trace.info.get("fingerprint") != model.fingerprint:
        raise UsageError(
            f"expected a trace of {model.name} ({model.fingerprint}), got one of "
            f"{trace.info['model']} ({trace.info.get('fingerprint')})",
            "Load the model that was traced, with the same dtype.",
        )
    if trace.interventions:
        raise UsageError(
            f"this trace was decoded under {' + '.join(trace.interventions)}",
            "What an intervention did at a step is not stored: trace without it.",
        )
    if model.edits:
        raise UsageError(
            "an intervention is in force on this model, and none was when it was traced",
            "Ask outside of its `with`.",
        )


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
        matrices(model, torch.from_numpy(ids), layers, heads),
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
