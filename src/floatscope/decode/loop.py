"""The denoising loop: a batch of prompts, each with `length` masks behind it, filled step by step.

Rows of a batch are independent: each has its own block, its own random stream and its own end, so
a batch gives the tokens that each prompt would get alone. A watcher sees every forward.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..errors import UsageError
from ..models import Model
from ..prompt import Encoded
from .autoregressive import Autoregressive, continue_text
from .draw import sample, stream
from .sampler import Guess, Sampler
from .steps import Decoding, State, Watcher, change_of, told

Progress = Callable[[int, int], None]  # steps done, steps expected


def decode(
    model: Model,
    prompts: Sequence[Encoded],
    sampler: Sampler | Autoregressive,
    watcher: Watcher | None = None,
    progress: Progress | None = None,
) -> list[Decoding]:
    """Decode a batch; one Decoding a prompt, in order."""
    sampler.check(model)
    for prompt in prompts:
        check_fits(model, prompt, sampler.length)
    watcher, progress = watcher or Watcher(), progress or (lambda done, total: None)
    if isinstance(sampler, Autoregressive):
        return continue_text(model, prompts, sampler, watcher, progress)
    return denoise(model, prompts, sampler, watcher, progress)


def check_fits(model: Model, prompt: Encoded, length: int) -> None:
    """Refuses a prompt that leaves no room for `length` tokens."""
    total = len(prompt.ids) + length
    if total > model.context:
        raise UsageError(
            f"{len(prompt.ids)} prompt tokens and {length} to generate exceed the "
            f"context of {model.context} of {model.name}",
            f"Shorten the prompt by {total - model.context} tokens, or generate fewer.",
        )


@dataclass
class _Row:
    """One prompt on its way: where it stands and what has happened."""

    prompt: Encoded
    padding: int
    generator: torch.Generator
    block: int = 0
    step: int = 0  # within the block
    ended: str = ""
    canvases: list[Tensor] = field(default_factory=list)
    confidences: list[Tensor] = field(default_factory=list)
    blocks: list[tuple[int, int]] = field(default_factory=list)


@torch.inference_mode()
def denoise(
    model: Model,
    prompts: Sequence[Encoded],
    sampler: Sampler,
    watcher: Watcher,
    progress: Progress,
) -> list[Decoding]:
    assert model.mask_id is not None
    length, width = sampler.length, sampler.length // sampler.n_blocks
    prompt_end = max(len(p.ids) for p in prompts)
    size = prompt_end + length
    rows = [_Row(p, prompt_end - len(p.ids), stream(sampler.seed, p.ids)) for p in prompts]
    canvas = torch.full((len(rows), size), model.mask_id)
    for b, row in enumerate(rows):
        canvas[b, : row.padding] = 0  # never seen: any id will do
        canvas[b, row.padding : prompt_end] = torch.tensor(row.prompt.ids)
    canvas = canvas.to(model.device)
    sure = torch.zeros((len(rows), length), device=canvas.device)  # p of each token when revealed
    active, visible, tick = list(range(len(rows))), None, 0
    while active:
        now = canvas[active]
        if visible is None or len(visible.padding) != len(active):
            padding = torch.tensor([rows[b].padding for b in active], device=canvas.device)
            visible = model.visibility(size, size, padding)
        starts = [prompt_end + rows[b].block * width for b in active]
        lo, hi = min(starts), max(starts) + width
        state = State(
            step=tick,
            prompts=prompts,
            rows=active,
            canvas=now,
            hollow=_hollow(now, model.mask_id, prompt_end),
            visible=visible,
            prompt_end=prompt_end,
            window=(lo, hi),
            predicting=(lo - model.shift, hi - model.shift),
            cached=False,
        )
        with told(model, state), watcher.forward(state):
            logits = model.predict(now, lo, hi, visible)
        if sampler.cfg:
            blank = now.clone()
            blank[:, :prompt_end] = model.mask_id
            with told(model, replace(state, canvas=blank, blind=True)):
                blind = model.predict(blank, lo, hi, visible).float()
            logits = blind + (sampler.cfg + 1) * (logits.float() - blind)
        guess = _guess(model, sampler, state, logits, starts, width, [rows[b] for b in active])
        first = rows[active[0]]  # a fixed schedule is the same for all rows
        steps = sampler.block_steps(first.block)
        quota = sampler.quota(guess.hollow.sum(-1), width, first.step, steps)
        reveal = sampler.select(guess, quota)
        window = slice(lo - prompt_end, hi - prompt_end)
        take = sampler.revise(guess, sure[active, window], first.step, steps) & ~reveal
        was = now[:, lo:hi]
        after = torch.where(reveal, guess.token, torch.where(take, model.mask_id, was))
        sure[active, window] = torch.where(reveal, guess.confidence, sure[active, window])
        canvas[active, lo:hi] = after
        watcher.committed(state, reveal, guess.token)
        offered = torch.where(guess.hollow, guess.confidence, torch.nan)
        # The one wait for the device in a step, where it matters what was revealed: who has finished?
        answers = canvas[active, prompt_end:]
        answers = answers.cpu() if sampler.stop_at_eos or sampler.adaptive else answers
        left = answers == model.mask_id
        for place, b in enumerate(active):
            row = rows[b]
            row.canvases.append(now[place])
            row.confidences.append(_widen(offered[place], lo, size))
            row.blocks.append((starts[place], starts[place] + width))
            _advance(row, sampler, width, left[place], answers[place], model.end_ids)
        active = [b for b in active if not rows[b].ended]
        tick += 1
        progress(tick, sampler.n_steps)
    return [_finish(model, row, canvas[b]) for b, row in enumerate(rows)]


def _hollow(canvas: Int[Tensor, "b s"], mask_id: int, prompt_end: int) -> Bool[Tensor, "b s"]:
    """A mask token inside a prompt is text; only the answer's masks are there to be filled."""
    hollow = canvas == mask_id
    hollow[:, :prompt_end] = False
    return hollow


def _widen(values: Float[Tensor, " w"], start: int, size: int) -> Float[Tensor, " s"]:
    wide = values.new_full((size,), torch.nan)
    wide[start : start + len(values)] = values
    return wide


def _guess(
    model: Model,
    sampler: Sampler,
    state: State,
    raw: Float[Tensor, "b w v"],
    starts: list[int],
    width: int,
    rows: list[_Row],
) -> Guess:
    lo, hi = state.window
    logits = raw.float()
    logits[..., model.mask_id] = -torch.inf  # the mask is never a prediction
    place = torch.arange(lo, hi, device=logits.device) - torch.tensor(
        starts, device=logits.device
    ).unsqueeze(1)
    in_block = (place >= 0) & (place < width)
    hollow = state.hollow[:, lo:hi] & in_block
    token = logits.argmax(-1)
    noise = torch.empty(token.shape)
    for b, row in enumerate(rows):
        if sampler.temperature:
            at = hollow[b].nonzero().squeeze(-1)
            token[b, at] = sample(logits[b, at], sampler.temperature, row.generator)
        own = torch.rand(sampler.length, generator=row.generator)
        noise[b] = own[lo - state.prompt_end : hi - state.prompt_end]
    chosen = logits.gather(-1, token[..., None]).squeeze(-1)
    return Guess(
        token=token,
        confidence=(chosen - logits.logsumexp(-1)).exp(),
        logits=logits,
        in_block=in_block,
        hollow=hollow,
        place=place,
        noise=noise.to(logits.device),
    )


def _advance(
    row: _Row,
    sampler: Sampler,
    width: int,
    left: Bool[Tensor, " n"],
    answer: Int[Tensor, " n"],
    end_ids: tuple[int, ...],
) -> None:
    """One step on: the next step, the next block, or the end."""
    row.step += 1
    block = left[row.block * width : (row.block + 1) * width]
    over = not block.any() if sampler.adaptive else row.step == sampler.block_steps(row.block)
    if over:
        row.block, row.step = row.block + 1, 0
    if row.block == sampler.n_blocks:
        row.ended = "complete"
    elif sampler.stop_at_eos and (over or not sampler.takes_back):
        ends = torch.isin(answer, torch.tensor(end_ids, dtype=answer.dtype)).nonzero()
        if len(ends) and not left[: int(ends[0])].any():
            row.ended = "eos"


def _finish(model: Model, row: _Row, last: Int[Tensor, " s"]) -> Decoding:
    assert model.mask_id is not None
    canvas = torch.stack([*row.canvases, last])[:, row.padding :].cpu().numpy()
    answer = [int(i) for i in canvas[-1, len(row.prompt.ids) :]]
    return Decoding(
        prompt=row.prompt,
        canvas=canvas,
        # Masks inside the prompt never change, so they need no telling apart here.
        change=change_of(canvas[:-1], canvas[1:], model.mask_id),
        confidence=torch.stack(row.confidences)[:, row.padding :].cpu().numpy(),
        block=np.array(row.blocks, dtype=np.int64) - row.padding,
        ended=row.ended,
        text=model.text([i for i in answer if i != model.mask_id]),
    )
