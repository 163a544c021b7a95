"""From recorded tensors to one labelled dataset: names, coordinates, nulls; no measuring."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import version

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from . import null
from .attention import Rows, Scene, Seen
from .decode import Autoregressive, Decoding, Sampler
from .models import Model
from .outbox import Outbox
from .token_classes import classify

# name → dimensions of one step's array, before the step axis is put in front
_DIMS = {
    "column_sum": ("group", "layer", "head", "key"),
    "entropy": ("layer", "head", "query"),
    "flow": ("layer", "head", "source", "target"),
    "rollout": ("layer", "source", "target"),
    "score": ("layer", "head", "key"),
    "cosine": ("layer", "head", "key"),
    "key_norm": ("layer", "head", "key"),
    "query_norm": ("layer", "head", "key"),
    "value_norm": ("layer", "head", "key"),
    "residual_norm": ("layer", "key"),
    "rows_counted": ("group",),
}
_ROW_DIMS = {
    "row_key": ("event", "layer", "head", "rank"),
    "row_weight": ("event", "layer", "head", "rank"),
    "row_flow": ("event", "layer", "head", "target"),
}


@dataclass(eq=False)
class Recorded:
    """What was seen of one prompt: a list of arrays a statistic, one for each kept step."""

    steps: list[int] = field(default_factory=list)
    arrays: dict[str, list[np.ndarray]] = field(default_factory=dict)
    events: list[tuple[int, int, int]] = field(default_factory=list)  # step, position, token
    event_arrays: dict[str, list[np.ndarray]] = field(default_factory=dict)

    def add(
        self,
        step: int,
        seen: dict[int, Seen],
        b: int,
        padding: int,
        scene: Scene,
        dtype: np.dtype,
        outbox: Outbox,
    ) -> None:
        """Row `b` of the batch, at one step, without its padding; the arrays come by `outbox`."""
        self.steps.append(step)
        layers = list(seen.values())
        from_region = _counts(
            scene.labels.region[b], scene.labels.n_regions
        )  # positions so far in each region

        def take(name: str, parts: list[Tensor], kind: np.dtype = dtype) -> None:
            outbox.post(torch.stack(parts), kind, self.arrays.setdefault(name, []).append)

        if layers[0].column_sum is not None:
            stacked = [_some(s.column_sum)[b, ..., padding:] for s in layers]  # (g, h, k) a layer
            column = torch.stack(stacked, dim=1)  # (g, layer, h, k)
            outbox.post(column, dtype, self.arrays.setdefault("column_sum", []).append)
            rows = _rows_of_groups(from_region, scene.labels.n_groups)
            counted = self.arrays.setdefault("rows_counted", [])
            outbox.post(rows, np.dtype(np.int64), counted.append)
        if layers[0].entropy is not None:
            take("entropy", [_some(s.entropy)[b, :, padding:] for s in layers])
        empty = torch.where(from_region > 0, from_region.float(), torch.nan)[:, None]
        if layers[0].flow_sum is not None:
            take("flow", [_some(s.flow_sum)[b] / empty for s in layers])
        if layers[0].rollout_sum is not None:
            take("rollout", [_some(s.rollout_sum)[b] / empty for s in layers])
        if layers[0].columns is not None:
            columns = [s.columns for s in layers if s.columns is not None]
            for name in ("score", "cosine", "query_norm"):
                take(name, [(getattr(c, name)[b] / c.seen[b])[:, padding:] for c in columns])
            take("key_norm", [c.key_norm[b, :, padding:] for c in columns])
        if layers[0].value_norm is not None:
            take("value_norm", [_some(s.value_norm)[b, :, padding:] for s in layers])
        if layers[0].residual_norm is not None:
            take("residual_norm", [_some(s.residual_norm)[b, padding:] for s in layers])

    def reveal(
        self,
        step: int,
        at: list[tuple[int, int]],
        rows: Rows,
        padding: int,
        dtype: np.dtype,
        outbox: Outbox,
    ) -> None:
        """The rows that predicted the (position, token) pairs revealed at one step."""
        self.events += [(step, position, token) for position, token in at]
        key = torch.where(rows.key >= 0, rows.key - padding, rows.key)
        for name, tensor, kind in (
            ("row_key", key, np.dtype(np.int32)),
            ("row_weight", rows.weight, dtype),
            ("row_flow", rows.flow, dtype),
        ):
            # (layer, head, event, …) → (event, layer, head, …)
            outbox.post(tensor.movedim(2, 0), kind, self.event_arrays.setdefault(name, []).extend)


def _some(tensor: Tensor | None) -> Tensor:
    assert tensor is not None
    return tensor


def _counts(region: Tensor, n: int) -> Tensor:
    return (region[:, None] == torch.arange(n, device=region.device)).sum(0)


def _rows_of_groups(from_region: Tensor, n_groups: int) -> Tensor:
    """How many queries so far are in each group: regions, or masked, revealed, prompt, or all."""
    if n_groups == len(from_region):
        return from_region
    heads, rest = from_region[: n_groups - 1], from_region[n_groups - 1 :]
    return torch.cat([heads, rest.sum(0, keepdim=True)])


def assemble(
    model: Model,
    sampler: Sampler | Autoregressive,
    decoding: Decoding,
    recorded: Recorded,
    layers: Sequence[int],
    heads: Sequence[int],
    groups: Sequence[str],
    names: Sequence[str],
) -> xr.Dataset:
    """One prompt's dataset."""
    kept = [t for t in recorded.steps if t < decoding.steps]  # an ended row of a batch records on
    size, n_prompt = decoding.canvas.shape[1], len(decoding.prompt.ids)
    # The prompt's regions first, then the two states of the answer.
    order = [*range(2, len(names)), 0, 1]
    variables: dict[str, tuple[tuple[str, ...], np.ndarray]] = {}
    if not kept:
        warnings.warn(
            f"none of the chosen steps was reached: decoding ended after {decoding.steps}; "
            "this trace holds no statistics",
            stacklevel=2,
        )
    for name, steps in recorded.arrays.items() if kept else ():
        array = np.stack([_widen(a, size, _DIMS[name]) for a in steps[: len(kept)]])
        if "source" in _DIMS[name]:
            array = array[..., order, :][..., order]
        variables[name] = (("step", *_DIMS[name]), array)
    if "column_sum" in variables:
        # A batch has as many groups as its richest prompt; this one has its own.
        for name in ("column_sum", "rows_counted"):
            dims, array = variables[name]
            variables[name] = (dims, array[:, : len(groups)])
    for name, rows in recorded.event_arrays.items() if kept else ():
        events = [a for a, e in zip(rows, recorded.events, strict=True) if e[0] < decoding.steps]
        array = np.stack(events) if events else np.zeros((0, *rows[0].shape), rows[0].dtype)
        variables[name] = (_ROW_DIMS[name], array[..., order] if name == "row_flow" else array)
    variables |= _happenings(decoding)
    sizes = [int((decoding.canvas[t] >= 0).sum()) for t in kept]
    for name, of in (("null", null.uniform), ("visible", null.visible_queries)) if kept else ():
        rows_of = [of(model.direction, model.block, n) for n in sizes]
        array = np.stack([_widen(np.asarray(r, np.float32), size, ("key",)) for r in rows_of])
        variables[name] = (("step", "key"), array)
    coords = _coordinates(model, decoding, recorded, kept, layers, heads, groups, names, order)
    data = xr.Dataset(variables, coords)
    data.attrs = {
        "text": decoding.text,
        "ended": decoding.ended,
        "prompt_length": n_prompt,
        "gold": decoding.prompt.gold or "",
        "model": model.name,
        "family": model.family.name,
        "fingerprint": model.fingerprint,
        "direction": str(model.direction),
        "block_size": model.block or 0,
        "shift": model.shift,
        "mask_id": -1 if model.mask_id is None else model.mask_id,
        "dtype": str(model.dtype).removeprefix("torch."),
        "sampler": sampler.describe(),
        "floatscope": version("floatscope"),
        "torch": version("torch"),
        "transformers": version("transformers"),
    }
    return data


def _happenings(decoding: Decoding) -> dict[str, tuple[tuple[str, ...], np.ndarray]]:
    return {
        "canvas": (("state", "key"), decoding.canvas.astype(np.int32)),
        "change": (("tick", "key"), decoding.change),
        "confidence": (("tick", "key"), decoding.confidence.astype(np.float32)),
        "block": (("tick", "edge"), decoding.block.astype(np.int32)),
    }


def _coordinates(
    model: Model,
    decoding: Decoding,
    recorded: Recorded,
    kept: list[int],
    layers: Sequence[int],
    heads: Sequence[int],
    groups: Sequence[str],
    names: Sequence[str],
    order: list[int],
) -> dict[str, object]:
    size, prompt = decoding.canvas.shape[1], decoding.prompt
    regions = [*prompt.regions, *["answer"] * (size - len(prompt.ids))]
    known: dict[int, str] = {}

    def texts(ids: np.ndarray) -> list[str]:
        new = [int(i) for i in np.unique(ids) if int(i) not in known]
        known.update(zip(new, model.token_texts(new), strict=True))
        return [known[int(i)] for i in ids]

    classes = [
        classify([int(i) for i in decoding.canvas[t]], texts(decoding.canvas[t]), regions, model)
        for t in kept
    ]
    hollow = (decoding.canvas[kept] == model.mask_id) if model.is_diffusion else None
    masked = np.zeros((len(kept), size), bool) if hollow is None else hollow
    masked[:, : len(prompt.ids)] = False
    events = [e for e in recorded.events if e[0] < decoding.steps]
    coords: dict[str, object] = {
        "step": kept,
        "layer": list(layers),
        "head": list(heads),
        "key": np.arange(size),
        "query": np.arange(size),
        "group": np.array(groups, dtype=np.str_),
        "source": np.array([names[i] for i in order], dtype=np.str_),
        "target": np.array([names[i] for i in order], dtype=np.str_),
        "token": ("key", np.array(texts(decoding.canvas[-1]), dtype=np.str_)),
        "region": ("key", np.array(regions, dtype=np.str_)),
        "token_class": (("step", "key"), np.array(classes, dtype=np.str_).reshape(len(kept), size)),
        "masked": (("step", "key"), masked),
    }
    if recorded.event_arrays and kept:
        for i, name in enumerate(("event_step", "event_position", "event_token")):
            coords[name] = ("event", np.array([e[i] for e in events], dtype=np.int64))
    seen = recorded.arrays.keys() if kept else set()
    used = {"source", "target"} if {"flow", "rollout"} & seen else set()
    used |= {"target"} if "row_flow" in recorded.event_arrays else set()
    if "entropy" not in recorded.arrays:
        coords.pop("query")
    for name in {"source", "target"} - used:
        coords.pop(name)
    return coords


def _widen(array: np.ndarray, size: int, dims: tuple[str, ...]) -> np.ndarray:
    """Positions an autoregressive model had not reached are NaN; a wider batch's regions go."""
    if dims[-1] not in ("key", "query"):
        return array
    missing = size - array.shape[-1]
    if missing <= 0:
        return array[..., :size]
    width = [(0, 0)] * (array.ndim - 1) + [(0, missing)]
    return np.pad(array, width, constant_values=np.nan)
