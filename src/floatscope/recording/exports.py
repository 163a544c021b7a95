"""Patterns as other people's viewers take them: plain arguments, and none of their packages imported."""

from typing import Any

import torch
import xarray as xr

from ..errors import UsageError


def to_circuitsvis(pattern: xr.DataArray) -> dict[str, Any]:
    """`circuitsvis.attention.attention_patterns(**to_circuitsvis(pattern))`: tokens, (head, query, key)."""
    if "layer" in pattern.dims:
        raise UsageError(
            f"circuitsvis shows one layer, and this pattern has {pattern.sizes['layer']}",
            "Choose one: model.pattern(trace, step=0, layer=3).",
        )
    whole = _with_head(pattern)
    return {"tokens": _tokens(whole), "attention": whole.transpose("head", "query", "key").values}


def to_bertviz(pattern: xr.DataArray) -> dict[str, Any]:
    """`bertviz.head_view(**to_bertviz(pattern))`, or `model_view`: a (1, head, query, key) per layer."""
    whole = _with_head(pattern)
    if "layer" not in whole.dims:
        whole = whole.expand_dims("layer")
    layers = whole.transpose("layer", "head", "query", "key").values
    return {"attention": [torch.from_numpy(one[None]) for one in layers], "tokens": _tokens(whole)}


def _with_head(pattern: xr.DataArray) -> xr.DataArray:
    return pattern if "head" in pattern.dims else pattern.expand_dims("head")


def _tokens(pattern: xr.DataArray) -> list[str]:
    return [str(token) for token in pattern["token"].values]
