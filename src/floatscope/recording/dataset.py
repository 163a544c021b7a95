"""Label recorded arrays as one dataset, with names, coordinates and nulls."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version

import numpy as np
import xarray as xr
from jaxtyping import Float, Int

from ..decode.loop import AnySampler
from ..models import Model
from ..sequences.decoding import Decoding
from ..sequences.direction import current_block
from ..sequences.prompt import Encoded
from ..sequences.token_classes import classify
from ..statistics import STATISTICS
from ..stats import uniform
from ..trace.store import text_variable
from .kept import KeptSteps, PromptRecord
from .step_record import Shape

_ROW_DIMS = {"row_key": "rank", "row_weight": "rank", "row_flow": "target"}  # the last dimension
_FACTS = "model family fingerprint direction block_size shift mask_id end_ids width dtype".split()
Named = dict[str, object]


@dataclass(frozen=True, eq=False)
class DatasetBuilder:
    """Builder of labelled datasets from the records of one model and sampler."""

    model: Model
    sampler: AnySampler
    layers: Sequence[int]
    heads: Sequence[int]

    def assemble(self, decoding: Decoding, recorded: PromptRecord) -> xr.Dataset:
        """Assemble the labelled dataset of one prompt."""
        model, size = self.model, decoding.canvas.shape[1]
        # Steps after a prompt's end are recorded too.
        steps = [t for t in recorded.step_store.steps if t < decoding.steps]
        coords = self._coordinates(decoding, recorded, steps)
        attributes: Named = {
            "text": decoding.text,
            "raw_text": model.raw_text(decoding.answer_ids),
            "ended": decoding.ended,
            **self._facts(decoding.prompt),
        }
        if "expert" in recorded.step_store.names:
            attributes["experts"] = model.n_experts
        if decoding.cache is not None:
            attributes["cache"] = decoding.cache
        if model.block is not None:
            attributes |= {"grid": str(model.grid), "grid_offset": self._offset(decoding)}
        variables: dict[str, tuple[tuple[str, ...], np.ndarray]] = {
            "canvas": (("state", "key"), decoding.canvas.astype(np.int32)),
            "change": (("tick", "key"), decoding.change),
            "confidence": (("tick", "key"), decoding.confidence.astype(np.float32)),
            "block": (("tick", "edge"), decoding.block.astype(np.int32)),
        }
        if not steps:
            problem = f"none of the chosen steps was reached: decoding ended after {decoding.steps}"
            warnings.warn(f"{problem}; this trace contains no statistics", stacklevel=2)
            return xr.Dataset(variables, coords, attributes)
        arrays = recorded.step_store.arrays if isinstance(recorded.step_store, KeptSteps) else {}
        for name, about in STATISTICS.arrays().items():
            if name in arrays:
                # Remove one array at a time, so that no large array is in memory twice.
                array = _filled(arrays.pop(name), len(steps), size if about.by_position else None)
                variables[name] = (("step", *about.dims), array)
        reached = [step < decoding.steps for step, _, _ in recorded.events]
        for name, rows in recorded.event_arrays.items():
            dims = ("event", "layer", "head", _ROW_DIMS[name])
            variables[name] = (dims, np.concatenate(rows)[reached])
        for name, scale in (("null", uniform.mass), ("visible", uniform.visible_queries)):
            variables[name] = self._uniform(scale, decoding, steps)
        if decoding.cache not in (None, "exact"):
            stale = np.zeros((len(steps), size), bool)
            for row, stale_keys in zip(stale, recorded.stale, strict=False):  # may end early
                row[: len(stale_keys)] = stale_keys[:size]
            viewers = (~stale).sum(1, keepdims=True).astype(np.float32)  # rows that were computed
            variables["stale"] = (("step", "key"), stale)
            variables["visible"] = (("step", "key"), np.broadcast_to(viewers, stale.shape))
        return xr.Dataset(variables, coords, attributes)

    def begin(self, prompt: Encoded, shape: Shape) -> Named:
        """Return the facts of a trace that are known before its first step, as JSON values."""
        nothing = {"text": "", "raw_text": "", "ended": "unfinished"}
        return {
            "attributes": {**nothing, **self._facts(prompt)},
            "layer": list(self.layers),
            "head": list(self.heads),
            "group": list(shape.group_names),
            "source": list(shape.region_names),
            "target": list(shape.region_names),
            "region": [*prompt.regions, *["answer"] * (shape.size - len(prompt.ids))],
            "steps": [],
        }

    def _facts(self, prompt: Encoded) -> Named:
        model = self.model
        facts: Named = {
            "prompt_length": len(prompt.ids),
            "gold": prompt.gold or "",
            **{name: model.facts[name] for name in _FACTS},
            "sampler": self.sampler.describe(),
            "interventions": [edit.described or type(edit).__name__ for edit in model.edits],
        }
        if any(reach is not None for reach in model.reaches):
            facts["reaches"] = [-1 if reach is None else reach for reach in model.reaches]
        return facts | _versions()

    def _offset(self, decoding: Decoding) -> int:
        return self.model.grid.offset(self.model.block, len(decoding.prompt.ids))

    def _uniform(
        self, scale: Callable[..., np.ndarray], decoding: Decoding, steps: Sequence[int]
    ) -> tuple[tuple[str, ...], Float[np.ndarray, "..."]]:
        """Return dimensions and values of `scale`, a quantity under uniform attention, for each kept step.

        The values have a dimension `layer` if some layers are local. They are NaN at positions that do not
        exist yet.
        """
        model, size, offset = self.model, decoding.canvas.shape[1], self._offset(decoding)
        of_layers = [model.reaches[layer] for layer in self.layers]
        # A window that includes every key is no window.
        reaches = [None if r is None or r >= size - 1 else r for r in of_layers]
        by_reach = {reach: np.full((len(steps), size), np.nan, np.float32) for reach in reaches}
        for row, step in enumerate(steps):
            n, current = int((decoding.canvas[step] >= 0).sum()), None
            if model.block is not None:
                first, stop = (int(edge) for edge in decoding.block[step])
                current = current_block(first, stop, model.block, offset)
            rule = {"offset": offset, "current": current}
            for reach, values in by_reach.items():
                values[row, :n] = scale(model.direction, model.block, n, reach=reach, **rule)
        if by_reach.keys() == {None}:
            return ("step", "key"), by_reach[None]
        return ("step", "layer", "key"), np.stack([by_reach[reach] for reach in reaches], axis=1)

    def _coordinates(self, decoding: Decoding, recorded: PromptRecord, steps: list[int]) -> Named:
        model, size, prompt = self.model, decoding.canvas.shape[1], decoding.prompt
        regions = [*prompt.regions, *["answer"] * (size - len(prompt.ids))]
        # Look up the text and class of each distinct token once; most tokens stay between steps.
        ids, token = np.unique(decoding.canvas, return_inverse=True)
        texts = model.token_texts([int(i) for i in ids])
        token = token.reshape(decoding.canvas.shape)
        names, region = np.unique(regions, return_inverse=True)  # (key,): number of the region
        kinds, kind = np.unique(token[steps] * len(names) + region, return_inverse=True)
        of_token, of_region = kinds // len(names), kinds % len(names)
        words, places = [texts[i] for i in of_token], [str(names[i]) for i in of_region]
        classes = classify(ids[of_token].tolist(), words, places, model)
        canvas = decoding.canvas[steps]  # (step, key)
        # −2 matches no token: without a mask id, no position is masked.
        masked = canvas == (-2 if model.mask_id is None else model.mask_id)
        masked[:, : len(prompt.ids)] = False
        coords: Named = {
            "step": steps,
            "layer": list(self.layers),
            "head": list(self.heads),
            "key": np.arange(size),
            "group": np.array(recorded.shape.group_names, dtype=np.str_),
            "token": _texts(texts, token[steps]),
            "final_token": ("key", np.array([texts[i] for i in token[-1]], dtype=np.str_)),
            "region": ("key", np.array(regions, dtype=np.str_)),
            "token_class": _texts(classes, kind.reshape(canvas.shape)),
            "masked": (("step", "key"), masked),
        }
        if recorded.event_arrays and steps:
            events = [event for event in recorded.events if event[0] < decoding.steps]
            for i, name in enumerate(("event_step", "event_position", "event_token")):
                coords[name] = ("event", np.array([event[i] for event in events], dtype=np.int64))
        arrays = STATISTICS.arrays()
        used = {dim for name in recorded.step_store.names for dim in arrays[name].dims}
        used = used if steps else used & {"query"}
        if "query" in used:
            coords["query"] = np.arange(size)
        if "row_flow" in recorded.event_arrays:
            used.add("target")
        for dim in [dim for dim in ("source", "target") if dim in used]:
            coords[dim] = np.array(recorded.shape.region_names, dtype=np.str_)
        return coords


@cache
def _versions() -> dict[str, str]:
    """Return package versions; cached, because each lookup parses the package's metadata."""
    return {name: version(name) for name in ("floatscope", "torch", "transformers")}


def _texts(texts: Sequence[str], numbers: Int[np.ndarray, "t k"]) -> xr.Variable:
    """Return a variable (step, key) with the text of each position; `numbers` are indices of `texts`."""
    values = text_variable(texts, ("text",), (len(texts),)).values
    return xr.Variable(("step", "key"), values[numbers], fastpath=True)


def _filled(array: np.ndarray, steps: int, size: int | None) -> np.ndarray:
    """Return the first `steps` steps and `size` positions of an array; a part is copied to free the rest."""
    part = array[:steps] if size is None else array[:steps, ..., :size]
    return array if part.shape == array.shape else part.copy()
