"""The decoding loop of causal models: continue each text with a KV cache, one token per step."""

from collections.abc import Sequence
from contextlib import closing

import numpy as np
import torch
from torch import Tensor

from ..models import Model, Visibility
from ..models.placing import PendingCopy, constant
from ..sequences.decoding import ABSENT, Change, Decoding, Progress
from ..sequences.prompt import Encoded
from .cached_forwards import CachedForwards
from .draw import sample, stream
from .samplers.autoregressive import Autoregressive
from .state import State, Watcher, lay_out, notify_edits, overruled


@torch.inference_mode()
def continue_text(
    model: Model,
    prompts: Sequence[Encoded],
    sampler: Autoregressive,
    watcher: Watcher,
    progress: Progress,
) -> list[Decoding]:
    """Continue each prompt of a batch until all have ended; return one Decoding per prompt, in order.

    Prompts that have ended stay in the batch; their further tokens are ignored.
    """
    n_columns = max(len(p.ids) for p in prompts) + sampler.length
    canvas = lay_out(model, prompts)
    prompt_end = canvas.shape[1]
    streams = [stream(sampler.seed, p.ids) for p in prompts]
    generated = [0] * len(prompts)  # tokens generated for each prompt
    ended = [""] * len(prompts)
    sure: list[Tensor] = []
    fresh, state = canvas, None
    latest: PendingCopy | None = None  # the previous token, if end tokens are checked
    check_ends = sampler.stop_at_eos and bool(model.end_ids)

    def note(token: PendingCopy | None) -> bool:
        """Record which prompts end with their latest token, and return whether all have ended.

        If a token is given, this waits for the device. If it is None, only the length ends a prompt.
        """
        for b, chosen in enumerate([-1] * len(ended) if token is None else token.wait().tolist()):
            if not ended[b]:
                generated[b] += 1
                if check_ends and chosen in model.end_ids:
                    ended[b] = "eos"
                elif generated[b] == sampler.length:
                    ended[b] = "complete"
        return all(ended)

    with closing(CachedForwards(model, watcher, n_columns)) as forwards:
        for step in range(sampler.length):
            size, new = canvas.shape[1], fresh.shape[1]
            last = constant([new - 1], canvas.device)
            state = State.build(
                *(model, prompts, canvas, (size, size + 1)),
                prompt_end=prompt_end,
                step=step,
                new=new,
                visible=_next(model, state, forwards.room(size, state), size),
            )
            # If forwards follow one another without Python between them, checking for end tokens here
            # would delay the next forward. Then the check comes after that launch, at the cost of one
            # extra forward at the end.
            late = state.visible.row_columns is not None and not model.edits and watcher.trims()
            if not late and step and note(latest):
                break
            with notify_edits(model, state), watcher.forward(state):
                logits = forwards.forward(fresh, last, state, sampler.length - step)[:, 0].float()
            if late and step and note(latest):
                break
            forwards.keep(size)
            if sampler.temperature == 0:
                token = logits.argmax(-1)
            else:
                draws = zip(logits, streams, strict=True)
                token = torch.cat([sample(row[None], sampler.temperature, s) for row, s in draws])
            if model.edits:
                token = overruled(model, state, torch.cat([canvas, token[:, None]], dim=1))[:, -1]
            sure.append(logits.log_softmax(-1).gather(-1, token[:, None]).squeeze(-1).exp())
            alive = constant([not e for e in ended], canvas.device).bool()
            watcher.receive_decision(state, alive[:, None], token[:, None])
            canvas = torch.cat([canvas, token[:, None]], dim=1)
            watcher.stepped(state, canvas, sure[-1][:, None])
            fresh = token[:, None]
            latest = PendingCopy(token) if check_ends else None
            progress(step + 1, sampler.length)
        else:
            note(latest)
    confidence = torch.stack(sure, dim=1).cpu().numpy()  # (b, steps)
    final = canvas.cpu().numpy()
    return [
        _finish(
            model,
            prompt,
            final[b, prompt_end - len(prompt.ids) :],
            confidence[b],
            generated[b],
            ended[b],
        )
        for b, prompt in enumerate(prompts)
    ]


def _next(model: Model, before: State | None, room: int | None, size: int) -> Visibility | None:
    """Return the visibility of the next forward, which has one new row; None before the first forward."""
    if before is None:
        return None
    visible = model.visibility(1, size, before.visible.padding, room=room)
    # known from before; computing it would wait for the device
    visible.__dict__["padded"] = before.visible.padded
    return visible


def _finish(
    model: Model, prompt: Encoded, tokens: np.ndarray, sure: np.ndarray, steps: int, ended: str
) -> Decoding:
    """Build the Decoding of one prompt from its tokens and their probabilities."""
    start = len(prompt.ids)
    size = start + steps
    canvas = np.full((steps + 1, size), ABSENT, dtype=np.int64)
    change = np.zeros((steps, size), dtype=np.int8)
    confidence = np.full((steps, size), np.nan, dtype=np.float32)
    for t in range(steps + 1):
        canvas[t, : start + t] = tokens[: start + t]
    index = np.arange(steps)
    change[index, start + index] = Change.REVEAL
    confidence[index, start + index] = sure[:steps]
    block = np.stack([start + index, start + index + 1], axis=1)
    text = model.text([int(i) for i in tokens[start:size]])
    return Decoding(prompt, canvas, change, confidence, block, ended, text)
