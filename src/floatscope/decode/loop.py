"""The denoising loop: a batch of prompts, each with `length` masks behind it, filled step by step.

The prompts of a batch are independent: each has its own block, its own random stream and its own end,
so a batch gives the tokens that each prompt would get alone. A watcher sees every forward.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..errors import UsageError
from ..models import Model, seam
from ..models.placing import constant, sent
from ..sequences.decoding import Decoding, Progress, change_of
from ..sequences.prompt import Encoded
from .autoregressive import continue_text
from .coupling import listening
from .draw import sample, stream
from .replay import Forwards
from .samplers.autoregressive import Autoregressive
from .samplers.base import Guess, Sampler
from .state import State, Watcher, check_fits, lay_out, notify_edits, overruled

AnySampler = Sampler | Autoregressive


def decode(
    model: Model,
    prompts: Sequence[Encoded],
    sampler: AnySampler,
    watcher: Watcher | None = None,
    progress: Progress | None = None,
) -> list[Decoding]:
    """Decode a batch; one Decoding per prompt, in order."""
    sampler.check(model)
    for prompt in prompts:
        check_fits(model, len(prompt.ids), sampler.length)
    watcher, progress = watcher or Watcher(), progress or (lambda done, total: None)
    with seam.alone(model.net):
        if isinstance(sampler, Autoregressive):
            decodings = continue_text(model, prompts, sampler, watcher, progress)
        else:
            decodings = denoise(model, prompts, sampler, watcher, progress)
        return _reported(model, decodings)


def _reported(model: Model, decodings: list[Decoding]) -> list[Decoding]:
    """With what the interventions in force say of each; a name used twice is numbered."""
    for prompt, decoding in enumerate(decodings):
        for edit in model.edits:
            for name, value in edit.report(prompt, decoding.steps).items():
                again = sum(known.startswith(name) for known in decoding.info)
                decoding.info[f"{name}_{again + 1}" if again else name] = value
    return decodings


@dataclass
class _Entry:
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
    entries = [_Entry(p, prompt_end - len(p.ids), stream(sampler.seed, p.ids)) for p in prompts]
    canvas = lay_out(model, prompts, length, model.mask_id)
    sure = torch.zeros(
        (len(entries), length), device=canvas.device
    )  # p of each token when revealed
    active, visible, tick = list(range(len(entries))), None, 0
    forwards = Forwards(model, watcher)
    listens = sampler.listens_to(model.n_layers)
    looks = sampler.adaptive or (sampler.stop_at_eos and bool(model.end_ids))
    while active:
        here = constant(active, canvas.device)
        now = canvas[here]
        if visible is not None and len(visible.padding) != len(active):
            visible = None  # one of them has ended
        starts = [prompt_end + entries[b].block * width for b in active]
        lo, hi = min(starts), max(starts) + width
        state = State.of(
            *(model, prompts, now, (lo, hi)),
            prompt_end=prompt_end,
            step=tick,
            active=active,
            visible=visible,
        )
        visible = state.visible
        with (
            notify_edits(model, state),
            watcher.forward(state),
            listening(model, state, listens) as heard,
        ):
            logits = forwards.predict(state, sampler.n_steps - tick)
        if sampler.cfg:
            blank = now.clone()
            blank[:, :prompt_end] = model.mask_id
            logits = logits.float().clone()  # the second forward may overwrite it
            unseen = replace(state, canvas=blank, blind=True)
            with notify_edits(model, unseen):
                blind = forwards.predict(unseen, sampler.n_steps - tick).float()
            logits = blind + (sampler.cfg + 1) * (logits - blind)
        guess = _guess(model, sampler, state, logits, starts, width, [entries[b] for b in active])
        if heard is not None:
            keys = visible.key_is_real.sum(-1)[:, None, None]
            guess = replace(guess, coupling=heard.mean * keys)
        first = entries[active[0]]  # a fixed schedule is the same for all
        steps = guess.steps
        quota = sampler.quota(guess.masked.sum(-1), width, first.step, steps)
        reveal = sampler.select(guess, quota)
        if sampler.adaptive:
            # At least one per step: no block takes more steps than it has places, unless an intervention
            # put some back. Then the last step reveals all that is left.
            last = torch.tensor([entries[b].step + 1 == steps for b in active])
            reveal = reveal | (guess.masked & last[:, None].to(reveal.device))
        window = slice(lo - prompt_end, hi - prompt_end)
        take = sampler.revise(guess, sure[here, window], first.step, steps) & ~reveal
        was, token, confidence = now[:, lo:hi], guess.token, guess.confidence
        decided = now.clone()
        decided[:, lo:hi] = torch.where(reveal, token, torch.where(take, model.mask_id, was))
        final = overruled(model, state, decided)
        if final is not decided:
            _check_filled(model, final, prompt_end, width, sampler, [entries[b] for b in active])
            token = final[:, lo:hi]
            reveal = (was == model.mask_id) & (token != model.mask_id)
            other = guess.log_p.gather(-1, token[..., None]).squeeze(-1).exp()
            confidence = torch.where(token == guess.token, confidence, other)
            sure[here, window] = torch.where(token != was, confidence, sure[here, window])
        sure[here, window] = torch.where(reveal, confidence, sure[here, window])
        canvas[here] = final
        watcher.committed(state, reveal, token)
        offered = torch.where(guess.masked, guess.confidence, torch.nan)
        # The one wait for the device in a step, where it matters what was revealed: who has finished?
        answers = final[:, prompt_end:]
        answers = answers.cpu() if looks else answers
        left = answers == model.mask_id
        for place, b in enumerate(active):
            entry = entries[b]
            entry.canvases.append(now[place])
            entry.confidences.append(_widen(offered[place], lo, size))
            entry.blocks.append((starts[place], starts[place] + width))
            _advance(entry, sampler, width, left[place], answers[place], model.end_ids)
        active = [b for b in active if not entries[b].ended]
        tick += 1
        progress(tick, sampler.n_steps)
    forwards.close()
    return [_finish(model, entry, canvas[b]) for b, entry in enumerate(entries)]


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
    entries: list[_Entry],
) -> Guess:
    lo, hi = state.window
    logits = raw.float()
    logits[..., model.mask_id] = -torch.inf  # the mask is never a prediction
    if sampler.no_eos:
        logits[..., model.end_ids[0]] = -torch.inf
    offered = sampler.offered(logits)
    place = torch.arange(lo, hi, device=logits.device) - constant(starts, logits.device)[:, None]
    in_block = (place >= 0) & (place < width)
    masked = state.masked[:, lo:hi] & in_block
    token = offered.argmax(-1)
    noise = torch.empty(token.shape)
    for b, entry in enumerate(entries):
        if sampler.temperature:
            at = masked[b].nonzero().squeeze(-1)
            token[b, at] = sample(offered[b, at], sampler.temperature, entry.generator)
        own = torch.rand(sampler.length, generator=entry.generator)
        noise[b] = own[lo - state.prompt_end : hi - state.prompt_end]
    held = torch.zeros_like(masked)
    if sampler.end_last:  # after the proposals, which may be end tokens: p is over what is left
        ends = constant(model.end_ids, logits.device)
        held = torch.isin(token, ends)
        logits, offered = (x.index_fill(-1, ends, -torch.inf) for x in (logits, offered))
    chosen = logits.gather(-1, token[..., None]).squeeze(-1)
    return Guess(
        token=token,
        confidence=(chosen - logits.logsumexp(-1)).exp(),
        logits=offered,
        in_block=in_block,
        masked=masked,
        place=place,
        noise=sent(noise, logits.device),
        held=held,
        step=entries[0].step,
        steps=sampler.block_steps(entries[0].block),
    )


def _check_filled(
    model: Model,
    canvas: Int[Tensor, "b s"],
    prompt_end: int,
    width: int,
    sampler: Sampler,
    entries: list[_Entry],
) -> None:
    """A step's decision was overruled: no mask may stand where no step will come to fill it."""
    assert model.mask_id is not None
    masked = torch.eq(canvas[:, prompt_end:], model.mask_id).tolist()
    for entry, answer in zip(entries, masked, strict=True):
        last = entry.step + 1 == sampler.block_steps(entry.block)
        over = (entry.block + last) * width  # positions whose block has no step left
        if any(answer[:over]):
            raise UsageError(
                f"position {answer.index(True)} of the answer is to be masked again, and its block has no "
                "step left in which it could be revealed",
                "Choose an earlier step, or a sampler with longer blocks.",
            )


def _advance(
    entry: _Entry,
    sampler: Sampler,
    width: int,
    left: Bool[Tensor, " n"],
    answer: Int[Tensor, " n"],
    end_ids: tuple[int, ...],
) -> None:
    """One step on: the next step, the next block, or the end."""
    entry.step += 1
    block = left[entry.block * width : (entry.block + 1) * width]
    over = not block.any() if sampler.adaptive else entry.step == sampler.block_steps(entry.block)
    if over:
        entry.block, entry.step = entry.block + 1, 0
    if entry.block == sampler.n_blocks:
        entry.ended = "complete"
    elif sampler.stop_at_eos and end_ids and (over or not sampler.takes_back):
        ends = torch.isin(answer, torch.tensor(end_ids, dtype=answer.dtype)).nonzero()
        if len(ends) and not left[: int(ends[0])].any():
            entry.ended = "eos"


def _finish(model: Model, entry: _Entry, last: Int[Tensor, " s"]) -> Decoding:
    assert model.mask_id is not None
    canvas = torch.stack([*entry.canvases, last])[:, entry.padding :].cpu().numpy()
    answer = [int(i) for i in canvas[-1, len(entry.prompt.ids) :]]
    return Decoding(
        prompt=entry.prompt,
        canvas=canvas,
        # Masks inside the prompt never change, so they need no telling apart here.
        change=change_of(canvas[:-1], canvas[1:], model.mask_id),
        confidence=torch.stack(entry.confidences)[:, entry.padding :].cpu().numpy(),
        block=np.array(entry.blocks, dtype=np.int64) - entry.padding,
        ended=entry.ended,
        text=model.text([i for i in answer if i != model.mask_id]),
    )
