"""A recorder that sends each step when it is done: the part of a scene that the viewer draws of it.

Names, codes and shapes are those of `scenes.pack`, with one step. The values sent are those of the trace:
recording continues as usual, and the finished run is an ordinary Trace.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from torch import Tensor

from ..decode.blocks import most_steps
from ..decode.loop import AnySampler
from ..decode.state import State
from ..instrument import Model
from ..recording.options import TraceOptions
from ..recording.recorder import Recorder
from ..recording.step_record import StepRecord
from ..scenes.codec import pack_index, pack_linear
from ..scenes.pack import FORMAT, MODEL
from ..scenes.parts import name_of
from ..scenes.words import example_name, short_title
from ..sequences.decoding import ABSENT, change_of
from ..sequences.direction import current_block
from ..sequences.prompt import Encoded
from ..sequences.token_classes import classify
from ..stats import uniform
from ..stats.anchors import ZScore
from .limits import KEEP
from .one_step import attention_of

Tell = Callable[[dict[str, Any]], None]


class Telling(Recorder):
    """Records one prompt, and calls `tell` with each step. An exception in `tell` ends the decoding."""

    def __init__(self, model: Model, prompt: Encoded, sampler: AnySampler, tell: Tell) -> None:
        super().__init__(model, [prompt], sampler, TraceOptions(keep=KEEP))
        self.prompt, self.tell = prompt, tell
        self.total = most_steps(model, sampler)
        self.size = len(prompt.ids) + sampler.length
        self.all_regions = [*prompt.regions, *["answer"] * sampler.length]
        self.rule = ZScore()
        self.words: dict[int, int] = {}  # token → its place in the vocabulary
        self.texts: dict[int, str] = {}
        self.classes: list[str] = []
        self.began = time.monotonic()
        self.latest: dict[str, Tensor] = {}  # the arrays of the present step
        self.consumers[0].append(self)

    def header(self, under: Sequence[str]) -> dict[str, Any]:
        """Return the part of a scene that no step changes."""
        model, prompt = self.model, self.prompt
        regions = list(dict.fromkeys(self.all_regions))
        spelled = model.token_texts(prompt.ids)
        of_question = [t for t, r in zip(spelled, prompt.regions, strict=True) if r == "question"]
        return {
            "format": FORMAT,
            "example": example_name("".join(spelled)),
            "title": short_title("".join(of_question) or "".join(spelled)),
            "model": {
                **{n: f for n, f in model.facts.items() if n in MODEL},
                "sampler": self.sampler.describe(),
                "ended": "",
            },
            "under": list(under),
            "prompt_length": len(prompt.ids),
            "gold": prompt.gold or "",
            "ticks": self.total,
            "layers": list(range(model.n_layers)),
            "heads": list(range(model.n_heads)),
            "regions": regions,
            "region": pack_index([regions.index(one) for one in self.all_regions]),
            "rule": name_of(self.rule),
            "vocabulary": [],
            "classes": [],
            "final": spelled,
        }

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
        left = self._wide(after[:stop] if state.ends is not None else after)
        sure = np.full(self.size, np.nan)
        sure[slice(*state.window)] = confidence.float().cpu().numpy()
        mask = -2 if self.model.mask_id is None else self.model.mask_id
        known, known_classes = len(self.words), len(self.classes)
        changed = change_of(ids, left, mask)
        scene = {**self._words(ids, mask), **self._attention(state, ids)}
        changes = [
            [
                int(key),
                int(changed[key]),
                -1 if left[key] == mask else self._word(int(left[key])),
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
            "words": [self.texts[token] for token in list(self.words)[known:]],
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
        for one in classes:
            if one not in self.classes:
                self.classes.append(one)
        masked = ids == mask
        masked[: len(self.prompt.ids)] = False
        return {
            "canvas": pack_index([places]),
            "class": pack_index([[self.classes.index(one) for one in classes]], "uint8"),
            "masked": pack_index([masked.astype(int)], "uint8"),
        }

    def _attention(self, state: State, ids: Int[np.ndarray, " s"]) -> dict[str, Any]:
        there = int((ids >= 0).sum())
        chance, visible = self._uniform(state, there)
        return attention_of(
            self.latest["column_sum"].cpu().numpy(),
            self.latest["rows_counted"].cpu().numpy(),
            visible,
            chance,
            list(self.recorded[0].shape.group_names),
            self.rule,
        )

    def _uniform(self, state: State, there: int) -> tuple[np.ndarray, np.ndarray]:
        """Return what uniform attention gives each key, and how many rows see it; NaN for absent keys."""
        model, n_prompt = self.model, len(self.prompt.ids)
        offset, current = model.grid.offset(model.block, n_prompt), None
        if model.block is not None:
            current = current_block(*state.window, model.block, offset)
        rule: dict[str, Any] = {"offset": offset, "current": current}
        return tuple(  # type: ignore[return-value]
            np.pad(
                np.asarray(of(model.direction, model.block, there, **rule), np.float64),
                (0, self.size - there),
                constant_values=np.nan,
            )
            for of in (uniform.mass, uniform.visible_queries)
        )
