"""Autoregressive: a causal model continues a text with a KV cache; a step is a generated token."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache

from ..errors import UsageError
from ..models import Direction, Model
from ..prompt import Encoded
from .draw import sample, stream
from .sampler import described
from .steps import ABSENT, Change, Decoding, State, Watcher, told


@dataclass(frozen=True)
class Autoregressive:
    """Greedy, or sampled at a temperature; ends at an end token or after `length` tokens."""

    length: int = 32
    temperature: float = 0.0
    seed: int = 0
    stop_at_eos: bool = True

    @property
    def n_steps(self) -> int:
        return self.length

    def describe(self) -> str:
        return described(self)

    def check(self, model: Model) -> None:
        if model.direction is not Direction.CAUSAL:
            raise UsageError(
                f"Autoregressive continues a text, and {model.name} fills masks",
                "Use Confidence(...) or another denoising sampler.",
            )
        if self.length < 1:
            raise UsageError(
                f"Autoregressive: length = {self.length}", "Generate at least one token."
            )
        if self.temperature < 0:
            raise UsageError(f"Autoregressive: temperature = {self.temperature}", "Use 0 or more.")


@torch.inference_mode()
def continue_text(
    model: Model,
    prompts: Sequence[Encoded],
    sampler: Autoregressive,
    watcher: Watcher,
    progress: Callable[[int, int], None],
) -> list[Decoding]:
    """Rows that have ended stay in the batch, inert, until the last one ends."""
    prompt_end = max(len(p.ids) for p in prompts)
    padding = torch.tensor([prompt_end - len(p.ids) for p in prompts], device=model.device)
    canvas = torch.zeros((len(prompts), prompt_end), dtype=torch.long)
    for b, p in enumerate(prompts):
        canvas[b, prompt_end - len(p.ids) :] = torch.tensor(p.ids)
    canvas = canvas.to(model.device)
    streams = [stream(sampler.seed, p.ids) for p in prompts]
    cache = DynamicCache(config=model.net.config)
    taken = [0] * len(prompts)  # tokens each row has generated
    ended = [""] * len(prompts)
    sure: list[Tensor] = []
    fresh = canvas
    for step in range(sampler.length):
        size, new = canvas.shape[1], fresh.shape[1]
        last = torch.tensor([new - 1], device=canvas.device)
        state = State(
            step=step,
            prompts=prompts,
            rows=range(len(prompts)),
            canvas=canvas,
            hollow=torch.zeros_like(canvas, dtype=torch.bool),
            visible=model.visibility(new, size, padding),
            prompt_end=prompt_end,
            window=(size, size + 1),
            predicting=(new - 1, new),
            cached=True,
        )
        with told(model, state), watcher.forward(state):
            logits = model.forward(fresh, last, state.visible, cache)[:, 0].float()
        token = torch.stack(
            [
                sample(row[None], sampler.temperature, generator)[0]
                for row, generator in zip(logits, streams, strict=True)
            ]
        )
        sure.append(logits.log_softmax(-1).gather(-1, token[:, None]).squeeze(-1).exp())
        alive = torch.tensor([not e for e in ended], device=canvas.device)
        watcher.committed(state, alive[:, None], token[:, None])
        canvas = torch.cat([canvas, token[:, None]], dim=1)
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
        _finish(model, prompt, whole[b, int(padding[b]) :], confidence[b], taken[b], ended[b])
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
