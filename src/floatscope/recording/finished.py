"""One forward over a finished sequence, recorded as a trace of one step in which nothing changes."""

from dataclasses import dataclass

import numpy as np
import torch

from ..decode.samplers.base import Sampler
from ..decode.state import State, check_fits, notify_edits
from ..models import Model
from ..sequences.decoding import Decoding
from ..sequences.prompt import Encoded
from ..trace import Trace
from .options import TraceOptions
from .recorder import Recorder


@dataclass(frozen=True)
class Read(Sampler):
    """Not a sampler: it stands where a sampler's description would."""

    def describe(self) -> str:
        return f"read({self.length} answer tokens)"


def reading(
    model: Model, prompt: Encoded, answer: list[int], options: TraceOptions | None = None
) -> Trace:
    """The trace of prompt and answer together; masks that an early end left over count as masked."""
    size, start = len(prompt.ids) + len(answer), len(prompt.ids)
    check_fits(model, start, len(answer), remedy="Shorten the sequence.")
    sampler = Read(length=len(answer), steps=1)
    recorder = Recorder(model, [prompt], sampler, options)
    canvas = torch.tensor([[*prompt.ids, *answer]], device=model.device)
    state = State.of(
        *(model, [prompt], canvas, (size, size)), prompt_end=start, predicting=(size - 1, size)
    )
    last = torch.tensor([size - 1], device=model.device)
    with recorder, notify_edits(model, state), recorder.forward(state):
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
