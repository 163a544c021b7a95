"""Record a run, and send an event for each step as soon as the step is computed.

An event contains the scene of its step, packed by `scenes` in the same way as the scene of a trace. Sending
events does not change the recording, and the finished run is an ordinary Trace.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from torch import Tensor

from ..decode.blocks import max_steps
from ..decode.loop import AnySampler
from ..decode.state import State
from ..instrument import Model
from ..recording.options import TraceOptions
from ..recording.recorder import Recorder
from ..recording.step_record import StepRecord
from ..scenes.codec import pack_index, pack_linear
from ..scenes.pack import header
from ..scenes.parts import (
    Columns,
    Scene,
    attention,
    heads_that_fit,
    pack_attention,
    pack_groups,
    pack_heads,
)
from ..sequences.decoding import ABSENT, change_of
from ..sequences.direction import current_block
from ..sequences.prompt import Encoded
from ..sequences.token_classes import classify
from ..stats import uniform
from ..stats.anchors import ZScore
from .limits import KEEP

_HEADS = 500_000  # characters of all heads at one step: beyond, they are asked for
Tell = Callable[[dict[str, Any]], None]


class StreamingRecorder(Recorder):
    """A recorder of one prompt that calls `tell` with an event per step; if `tell` raises, decoding ends."""

    def __init__(self, model: Model, prompt: Encoded, sampler: AnySampler, tell: Tell) -> None:
        super().__init__(model, [prompt], sampler, TraceOptions(keep=KEEP))
        self.prompt, self.tell = prompt, tell
        self.total = max_steps(model, sampler)
        self.size = len(prompt.ids) + sampler.length
        self.all_regions = [*prompt.regions, *["answer"] * sampler.length]
        self.rule = ZScore()
        self.words: dict[int, int] = {}  # token → its place in the vocabulary
        self.texts: dict[int, str] = {}
        self.classes: list[str] = []
        self.began = time.monotonic()
        self.latest: dict[str, Tensor] = {}  # the arrays of the present step
        self.consumers[0].append(self)

    def header(self, under: Sequence[str]) -> Scene:
        """Return the part of the scene that is constant over steps; `under` describes the interventions."""
        model, prompt = self.model, self.prompt
        info = {**model.facts, "sampler": self.sampler.describe(), "gold": prompt.gold or ""}
        constant = header(
            model.token_texts(prompt.ids),
            self.all_regions,
            info | {"interventions": under},
            self.rule,
            ticks=self.total,
            layers=range(model.n_layers),
            heads=range(model.n_heads),
        )
        return {**constant, "vocabulary": [], "classes": []}

    # Steps

    def step(self, record: StepRecord) -> None:
        self.latest = record.values

    def finish(self) -> None:
        self.latest = {}

    def stepped(
        self, state: State, canvas: Int[Tensor, "b _"], confidence: Float[Tensor, "b w"]
    ) -> None:
        super().stepped(state, canvas, confidence)
        self.tell(self._event(state, canvas[0], confidence[0]))

    def _event(
        self, state: State, after: Int[Tensor, " _"], confidence: Float[Tensor, " w"]
    ) -> dict[str, Any]:
        stop = state.canvas.shape[1] if state.ends is None else int(state.ends[0])
        ids = self._wide(state.canvas[0, :stop])
        ids_after = self._wide(after[:stop] if state.ends is not None else after)
        sure = np.full(self.size, np.nan)
        sure[slice(*state.window)] = confidence.float().cpu().numpy()
        mask = -2 if self.model.mask_id is None else self.model.mask_id
        known_words, known_classes = len(self.words), len(self.classes)
        changed = change_of(ids, ids_after, mask)
        scene = {**self._words(ids, mask), **self._attention(state, ids)}
        changes = [
            [
                int(key),
                int(changed[key]),
                -1 if ids_after[key] == mask else self._word(int(ids_after[key])),
                None if np.isnan(sure[key]) else float(sure[key]),
            ]
            for key in np.flatnonzero(changed)
        ]
        offered = np.where(ids == mask, sure, np.nan) if self.model.is_diffusion else sure
        scene["confidence"] = pack_linear(offered[None], "uint8")
        return {
            "event": "step",
            "step": state.step,
            "total": self.total,
            "seconds": round(time.monotonic() - self.began, 4),
            "words": [self.texts[token] for token in list(self.words)[known_words:]],
            "new_classes": self.classes[known_classes:],
            "scene": scene,
            "changes": changes,
        }

    def _wide(self, ids: Int[Tensor, " n"]) -> Int[np.ndarray, " s"]:
        wide = np.full(self.size, ABSENT)
        wide[: len(ids)] = ids.cpu().numpy()
        return wide

    def _word(self, token: int) -> int:
        if token < 0:
            return -1
        if token not in self.words:
            self.words[token] = len(self.words)
            (text,) = self.model.token_texts([token])
            self.texts[token] = "" if token == self.model.mask_id else text
        return self.words[token]

    def _words(self, ids: Int[np.ndarray, " s"], mask: int) -> dict[str, Any]:
        places = [self._word(token) for token in ids.tolist()]
        texts = [self.texts.get(token, "") for token in ids.tolist()]
        classes = classify(ids.tolist(), texts, self.all_regions, self.model)
        for token_class in classes:
            if token_class not in self.classes:
                self.classes.append(token_class)
        masked = ids == mask
        masked[: len(self.prompt.ids)] = False
        return {
            "canvas": pack_index([places]),
            "class": pack_index(
                [[self.classes.index(token_class) for token_class in classes]], "uint8"
            ),
            "masked": pack_index([masked.astype(int)], "uint8"),
        }

    def _attention(self, state: State, ids: Int[np.ndarray, " s"]) -> Scene:
        columns = Columns(
            self.latest["column_sum"].cpu().numpy()[None],
            self.latest["rows_counted"].cpu().numpy()[None],
            self._uniform(uniform.visible_queries, state, ids),
        )
        arrays = attention([columns], self.rule)
        scene = pack_attention(arrays, self._uniform(uniform.mass, state, ids))
        if groups := pack_groups(arrays, self.recorded[0].shape.group_names):
            scene["from"] = groups
        dtype, kept_steps = heads_that_fit(columns.mass.shape, _HEADS)
        parts = [columns] if len(kept_steps) else []
        scene["single_heads"] = pack_heads(parts, self.rule, dtype, kept_steps)
        return scene

    def _uniform(
        self, scale: Callable[..., np.ndarray], state: State, ids: Int[np.ndarray, " s"]
    ) -> Float[np.ndarray, "1 s"]:
        """Evaluate a function such as `uniform.mass` for each key; NaN for keys that do not exist yet."""
        model, current = self.model, None
        offset = model.grid.offset(model.block, len(self.prompt.ids))
        if model.block is not None:
            current = current_block(*state.window, model.block, offset)
        present = int((ids >= 0).sum())
        values = np.full((1, self.size), np.nan, np.float32)
        values[0, :present] = scale(
            model.direction, model.block, present, offset=offset, current=current
        )
        return values
