"""A causal model continues a text with a KV cache; a step is a generated token."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache

from ..models import Model
from ..sequences.decoding import ABSENT, Change, Decoding, Progress
from ..sequences.prompt import Encoded
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
    """Prompts that have ended stay in the batch, inert, until the last one ends."""
    canvas = lay_out(model, prompts)
    prompt_end = canvas.shape[1]
    streams = [stream(sampler.seed, p.ids) for p in prompts]
    cache = DynamicCache(config=model.net.config)
    taken = [0] * len(prompts)  # tokens generated for each prompt
    ended = [""] * len(prompts)
    sure: list[Tensor] = []
    fresh, padding = canvas, None
    for step in range(sampler.length):
        size, new = canvas.shape[1], fresh.shape[1]
        last = torch.tensor([new - 1], device=canvas.device)
        state = State.of(
            *(model, prompts, canvas, (size, size + 1)),
            prompt_end=prompt_end,
            step=step,
            new=new,
            visible=None if padding is None else model.visibility(new, size, padding),
        )
        padding = state.visible.padding
        with notify_edits(model, state), watcher.forward(state):
            logits = model.forward(fresh, last, state.visible, cache)[:, 0].float()
        token = torch.stack(
            [
                sample(one[None], sampler.temperature, generator)[0]
                for one, generator in zip(logits, streams, strict=True)
            ]
        )
        token = overruled(model, state, torch.cat([canvas, token[:, None]], dim=1))[:, -1]
        sure.append(logits.log_softmax(-1).gather(-1, token[:, None]).squeeze(-1).exp())
        alive = torch.tensor([not e for e in ended], device=canvas.device)
        watcher.committed(state, alive[:, None], token[:, None])
        canvas = torch.cat([canvas, token[:, None]], dim=1)
        watcher.stepped(state, canvas, sure[-1][:, None])
        fresh = token[:, None]
        for b, chosen in enumerate(token.tolist()):
            if not ended[b]:
                taken[b] += 1
                if sampler.stop_at_eos and chosen in model.end_ids:
                    ended[b] = "eos"
                elif taken[b] == sampler.length:
                    ended[b] = "complete"
        progress(step + 1, sampler.length)
        if all(ended):
            break
    confidence = torch.stack(sure, dim=1).cpu().numpy()  # (b, steps)
    whole = canvas.cpu().numpy()
    return [
        _finish(
            model,
            prompt,
            whole[b, prompt_end - len(prompt.ids) :],
            confidence[b],
            taken[b],
            ended[b],
        )
        for b, prompt in enumerate(prompts)
    ]


def _finish(
    model: Model, prompt: Encoded, tokens: np.ndarray, sure: np.ndarray, steps: int, ended: str
) -> Decoding:
    start = len(prompt.ids)
    size = start + steps
    canvas = np.full((steps + 1, size), ABSENT, dtype=np.int64)
    change = np.zeros((steps, size), dtype=np.int8)
    confidence = np.full((steps, size), np.nan, dtype=np.float32)
    for t in range(steps + 1):
        canvas[t, : start + t] = tokens[: start + t]
    at = np.arange(steps)
    change[at, start + at] = Change.REVEAL
    confidence[at, start + at] = sure[:steps]
    block = np.stack([start + at, start + at + 1], axis=1)
    text = model.text([int(i) for i in tokens[start:size]])
    return Decoding(prompt, canvas, change, confidence, block, ended, text)
