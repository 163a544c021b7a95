"""From recorded arrays to one labelled dataset: names, coordinates, nulls; no measuring."""

import warnings
from collections.abc import Callable, Sequence
from functools import cache
from importlib.metadata import version

import numpy as np
import xarray as xr
from jaxtyping import Float

from ..decode.loop import AnySampler
from ..models import Model
from ..sequences.decoding import Decoding
from ..sequences.direction import current_block
from ..sequences.prompt import Encoded
from ..sequences.token_classes import classify
from ..statistics import STATISTICS
from ..stats import uniform
from ..trace.tokens import spelled
from .kept import KeptSteps, PromptRecord
from .step_record import Shape

_ROW_DIMS = {
    "row_key": ("event", "layer", "head", "rank"),
    "row_weight": ("event", "layer", "head", "rank"),
    "row_flow": ("event", "layer", "head", "target"),
}


def assemble(
    model: Model,
    sampler: AnySampler,
    decoding: Decoding,
    recorded: PromptRecord,
    layers: Sequence[int],
    heads: Sequence[int],
) -> xr.Dataset:
    """One prompt's dataset."""
    kept = [
        t for t in recorded.kept.steps if t < decoding.steps
    ]  # a prompt that has ended records on
    size, n_prompt = decoding.canvas.shape[1], len(decoding.prompt.ids)
    variables: dict[str, tuple[tuple[str, ...], np.ndarray]] = {}
    if not kept:
        warnings.warn(
            f"none of the chosen steps was reached: decoding ended after {decoding.steps}; "
            "this trace holds no statistics",
            stacklevel=2,
        )
    coords = _coordinates(model, decoding, recorded, kept, layers, heads)
    with_experts = "expert" in recorded.kept.names
    arrays = recorded.kept.arrays if isinstance(recorded.kept, KeptSteps) else {}
    for name, about in STATISTICS.arrays().items():
        if kept and name in arrays:
            # Taken out, one statistic at a time: nothing large is in memory twice.
            array = _filled(arrays.pop(name), len(kept), size if about.by_position else None)
            variables[name] = (("step", *about.dims), array)
    there = [e[0] < decoding.steps for e in recorded.events]
    for name, rows in recorded.event_arrays.items() if kept else ():
        variables[name] = (_ROW_DIMS[name], np.concatenate(rows)[there])
    variables |= _happenings(decoding)
    sizes = [int((decoding.canvas[t] >= 0).sum()) for t in kept]
    offset = model.grid.offset(model.block, n_prompt)
    far = [model.reaches[layer] for layer in layers]
    reaches = [None if r is None or r >= size - 1 else r for r in far]  # no less than everything
    for name, of in (("null", uniform.mass), ("visible", uniform.visible_queries)) if kept else ():
        by_reach = {  # of rows that see everything, and of those of local layers
            reach: _by_step(of, model, decoding, kept, sizes, offset, reach)
            for reach in {None, *reaches}
        }
        if set(reaches) <= {None}:
            variables[name] = (("step", "key"), by_reach[None])
        else:
            parts = np.stack([by_reach[reach] for reach in reaches], axis=1)
            variables[name] = (("step", "layer", "key"), parts)
    if decoding.cache in (None, "exact"):
        recorded.stale.clear()
    elif kept:
        stale = np.stack(recorded.stale[: len(kept)])
        variables["stale"] = (("step", "key"), stale)
        rows = (~stale).sum(
            1, keepdims=True
        )  # a key is seen by all that were computed, and no others
        variables["visible"] = (
            ("step", "key"),
            np.broadcast_to(rows, stale.shape).astype(np.float32),
        )
    data = xr.Dataset(variables, coords)
    data.attrs = {
        "text": decoding.text,
        "raw_text": model.raw_text(decoding.answer_ids),
        "ended": decoding.ended,
        **_facts(model, sampler, decoding.prompt),
        **({"experts": model.n_experts} if with_experts else {}),
        **_versions(),
    }
    if decoding.cache is not None:
        data.attrs["cache"] = decoding.cache
    if model.block is not None:
        data.attrs |= {"grid": str(model.grid), "grid_offset": offset}
    return data


def before(
    model: Model,
    sampler: AnySampler,
    prompt: Encoded,
    shape: Shape,
    layers: Sequence[int],
    heads: Sequence[int],
) -> dict[str, object]:
    """What is known of a trace before its first step, as JSON has it."""
    own = list(shape.region_names)
    nothing = {"text": "", "raw_text": "", "ended": "unfinished"}
    return {
        "attributes": {**nothing, **_facts(model, sampler, prompt), **_versions()},
        "layer": list(layers),
        "head": list(heads),
        "group": list(shape.group_names),
        "source": own,
        "target": own,
        "region": [*prompt.regions, *["answer"] * (shape.size - len(prompt.ids))],
        "steps": [],
    }


_OF_MODEL = (
    *("model", "family", "fingerprint", "direction", "block_size", "shift", "mask_id", "end_ids"),
    *("width", "dtype"),
)


def _facts(model: Model, sampler: AnySampler, prompt: Encoded) -> dict[str, object]:
    far = [-1 if reach is None else reach for reach in model.reaches]
    return {
        "prompt_length": len(prompt.ids),
        "gold": prompt.gold or "",
        **{name: model.facts[name] for name in _OF_MODEL},
        "sampler": sampler.describe(),
        "interventions": [edit.described or type(edit).__name__ for edit in model.edits],
        **({"reaches": far} if any(reach >= 0 for reach in far) else {}),
    }


def _by_step(
    of: Callable[..., np.ndarray],
    model: Model,
    decoding: Decoding,
    kept: list[int],
    sizes: list[int],
    offset: int,
    reach: int | None,
) -> Float[np.ndarray, "t k"]:
    """One of the scales of uniform attention at every kept step; NaN where a key is not there yet."""
    rule = {"offset": offset, "reach": reach}
    rows = [
        of(model.direction, model.block, n, current=current(decoding, t, model), **rule)
        for n, t in zip(sizes, kept, strict=True)
    ]
    return np.stack([_widen(np.asarray(r, np.float32), decoding.canvas.shape[1]) for r in rows])


def current(decoding: Decoding, step: int, model: Model) -> int | None:
    """Where the block that a step decided begins: perhaps in the prompt."""
    if model.block is None:
        return None
    offset = model.grid.offset(model.block, len(decoding.prompt.ids))
    first, stop = (int(edge) for edge in decoding.block[step])
    return current_block(first, stop, model.block, offset)


@cache
def _versions() -> dict[str, str]:
    """Asked once: a package's version stands in a text that is parsed whole."""
    return {name: version(name) for name in ("floatscope", "torch", "transformers")}


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
    recorded: PromptRecord,
    kept: list[int],
    layers: Sequence[int],
    heads: Sequence[int],
) -> dict[str, object]:
    size, prompt = decoding.canvas.shape[1], decoding.prompt
    regions = [*prompt.regions, *["answer"] * (size - len(prompt.ids))]
    seen = decoding.canvas[kept]  # (step, key)
    # Every kind of token is asked once: of many steps most tokens stay from one to the next.
    ids, token = np.unique(decoding.canvas, return_inverse=True)
    texts = model.token_texts([int(i) for i in ids])
    token = token.reshape(decoding.canvas.shape)
    places, place = np.unique(regions, return_inverse=True)  # (key,): by number
    kinds, kind = np.unique(token[kept] * len(places) + place, return_inverse=True)
    of_token, of_place = kinds // len(places), kinds % len(places)
    classes = classify(
        ids[of_token].tolist(),
        [texts[i] for i in of_token],
        [str(places[i]) for i in of_place],
        model,
    )
    # −2 is no token: without a mask nothing is masked.
    masked = seen == (-2 if model.mask_id is None else model.mask_id)
    masked[:, : len(prompt.ids)] = False
    events = [e for e in recorded.events if e[0] < decoding.steps]
    coords: dict[str, object] = {
        "step": kept,
        "layer": list(layers),
        "head": list(heads),
        "key": np.arange(size),
        "query": np.arange(size),
        "group": np.array(recorded.shape.group_names, dtype=np.str_),
        "source": np.array(recorded.shape.region_names, dtype=np.str_),
        "target": np.array(recorded.shape.region_names, dtype=np.str_),
        "token": spelled(texts, token[kept], ("step", "key")),
        "final_token": ("key", np.array([texts[i] for i in token[-1]], dtype=np.str_)),
        "region": ("key", np.array(regions, dtype=np.str_)),
        "token_class": spelled(classes, kind.reshape(seen.shape), ("step", "key")),
        "masked": (("step", "key"), masked),
    }
    if recorded.event_arrays and kept:
        for i, name in enumerate(("event_step", "event_position", "event_token")):
            coords[name] = ("event", np.array([e[i] for e in events], dtype=np.int64))
    arrays = STATISTICS.arrays()
    used = {dim for name in recorded.kept.names for dim in arrays[name].dims}
    used = used if kept else used & {"query"}
    used |= {"target"} if "row_flow" in recorded.event_arrays else set()
    for name in {"query", "source", "target"} - used:
        coords.pop(name)
    return coords


def _filled(whole: np.ndarray, steps: int, size: int | None) -> np.ndarray:
    """The part that a decoding filled; a copy where an early end left room, which then goes."""
    part = whole[:steps] if size is None else whole[:steps, ..., :size]
    return whole if part.shape == whole.shape else part.copy()


def _widen(array: np.ndarray, size: int) -> np.ndarray:
    """Positions an autoregressive model had not reached are NaN."""
    return np.pad(array, (0, size - len(array)), constant_values=np.nan)
