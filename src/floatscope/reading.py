"""One forward over a finished sequence, recorded as a trace of one step in which nothing changes."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .decode import Decoding, Sampler, State
from .decode.steps import told
from .errors import UsageError
from .models import Model
from .prompt import Encoded
from .recording import Recorder
from .trace import Trace


@dataclass(frozen=True)
class Read(Sampler):
    """Not a sampler: it stands where a sampler's description would."""

    def describe(self) -> str:
        return f"read({self.length} answer tokens)"


def _hollow(canvas: Tensor, start: int, mask_id: int | None) -> Tensor:
    hollow = canvas == (-1 if mask_id is None else mask_id)
    hollow[:, :start] = False
    return hollow


def reading(model: Model, prompt: Encoded, answer: list[int], **options: Any) -> Trace:
    """The trace of prompt and answer together; masks that an early end left over count as masked."""
    size = len(prompt.ids) + len(answer)
    if size > model.context:
        raise UsageError(
            f"{size} tokens exceed the context of {model.context} of {model.name}",
            "Shorten the sequence.",
        )
    sampler = Read(length=len(answer), steps=1)
    recorder = Recorder(model, [prompt], sampler, **options)
    canvas = torch.tensor([[*prompt.ids, *answer]], device=model.device)
    state = State(
        step=0,
        prompts=[prompt],
        rows=[0],
        canvas=canvas,
        hollow=_hollow(canvas, len(prompt.ids), model.mask_id),
        visible=model.visibility(size, size, torch.zeros(1, dtype=torch.long, device=model.device)),
        prompt_end=len(prompt.ids),
        window=(size, size),
        predicting=(size - 1, size),
        cached=False,
    )
    last = torch.tensor([size - 1], device=model.device)
    with recorder, told(model, state), recorder.forward(state):
        model.forward(canvas, last, state.visible)
    ids = canvas.cpu().numpy()
    nothing = np.zeros((1, size), dtype=np.int8)
    decoding = Decoding(
        prompt=prompt,
        canvas=np.concatenate([ids, ids]),
        change=nothing,
        confidence=np.full((1, size), np.nan, dtype=np.float32),
        block=np.array([[size, size]]),
        ended="read",
        text=model.text([i for i in answer if i != model.mask_id]),
    )
    return recorder.traces([decoding])[0]
