"""The denoising loop: fill in the `length` masks that follow each prompt of a batch, step by step.

The prompts of a batch are independent: each prompt has its own current block, random stream and end, so
its tokens do not depend on the other prompts. A watcher observes every forward. A block model sees no
positions after the block being decided.
"""

from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..errors import UsageError
from ..models import Model, attention_hook
from ..models.placing import constant, sent
from ..sequences.decoding import ABSENT, Decoding, Progress, change_of
from ..sequences.prompt import Encoded
from .autoregressive import continue_text
from .block_cache import BlockCache
from .blocks import Span, divided, max_steps, spans
from .caches import EXACT, settled_cache
from .coupling import listening
from .draw import sample, stream
from .replay import Forwards
from .samplers.autoregressive import Autoregressive
from .samplers.base import Guess, Sampler
from .stale_cache import StaleCache
from .state import State, Watcher, check_fits, lay_out, notify_edits, overruled
from .width import columns

AnySampler = Sampler | Autoregressive


def decode(
    model: Model,
    prompts: Sequence[Encoded],
    sampler: AnySampler,
    watcher: Watcher | None = None,
    progress: Progress | None = None,
    cache: str | None = None,
) -> list[Decoding]:
    """Decode a batch of prompts and return one Decoding per prompt, in order."""
    sampler.check(model)
    kind = settled_cache(model, sampler, cache)
    for prompt in prompts:
        check_fits(model, len(prompt.ids), sampler.length)
    watcher, progress = watcher or Watcher(), progress or (lambda completed, total: None)
    with attention_hook.lock_network(model.net):
        if isinstance(sampler, Autoregressive):
            decodings = continue_text(model, prompts, sampler, watcher, progress)
        else:
            decodings = denoise(model, prompts, sampler, watcher, progress, kind)
        return _reported(model, decodings)


def _reported(model: Model, decodings: list[Decoding]) -> list[Decoding]:
    """Add the reports of the interventions in force to each decoding's `info`; number repeated names."""
    for prompt, decoding in enumerate(decodings):
        for edit in model.edits:
            for name, value in edit.report(prompt, decoding.steps).items():
                repeats = sum(earlier.startswith(name) for earlier in decoding.info)
                decoding.info[f"{name}_{repeats + 1}" if repeats else name] = value
    return decodings


@dataclass
class _Entry:
    """The progress of one prompt: its blocks (in columns), its current block and step, and its history."""

    prompt: Encoded
    padding: int
    generator: torch.Generator
    spans: list[Span]
    shares: list[int]  # number of steps of each block, if it is fixed
    block: int = 0
    step: int = 0  # current step within the block
    full: int = 0  # number of these steps that began without a mask in the block
    ended: str = ""
    canvases: list[Tensor] = field(default_factory=list)
    confidences: list[Tensor] = field(default_factory=list)
    blocks: list[tuple[int, int]] = field(default_factory=list)

    @classmethod
    def begin(cls, model: Model, prompt: Encoded, sampler: Sampler, prompt_end: int) -> "_Entry":
        padding = prompt_end - len(prompt.ids)
        blocks = [span.moved(padding) for span in spans(model, sampler, len(prompt.ids))]
        return cls(
            prompt, padding, stream(sampler.seed, prompt.ids), blocks, divided(sampler, blocks)
        )

    @property
    def span(self) -> Span:
        return self.spans[self.block]

    @property
    def steps(self) -> int:
        # some samplers continue when a block has no mask
        return max(self.shares[self.block], self.step + 1)


@torch.inference_mode()
def denoise(
    model: Model,
    prompts: Sequence[Encoded],
    sampler: Sampler,
    watcher: Watcher,
    progress: Progress,
    cache: str | None = None,
) -> list[Decoding]:
    assert model.mask_id is not None
    stale = StaleCache(model, cache, len(prompts)) if cache not in (None, EXACT) else None
    length, total = sampler.length, max_steps(model, sampler)
    ahead = 1 - model.shift if sampler.causal_first else 0  # one more row: the row before a block
    # With a cache or blocks, successive forwards differ in shape.
    alike = cache is None and model.block is None and not ahead
    longest = max(len(p.ids) for p in prompts)
    prompt_end = columns(model, prompts, length) if alike else longest
    size = prompt_end + length
    entries = [_Entry.begin(model, p, sampler, prompt_end) for p in prompts]
    canvas = lay_out(model, prompts, length, model.mask_id, prompt_end)
    # probability of each token when it was revealed
    sure = torch.zeros((len(entries), length), device=canvas.device)
    active, visible, tick = list(range(len(entries))), None, 0
    state: State | None = None
    listens = sampler.listens_to(model.n_layers)
    reads_answers = sampler.adaptive or (sampler.stop_at_eos and bool(model.end_ids))
    visible_key: object = None  # determines `visible`
    with ExitStack() as stack:
        forwards, block_cache = stack.enter_context(closing(Forwards(model, watcher))), None
        if cache == EXACT:
            blocks = BlockCache(model, watcher, len(prompts), longest + length)
            block_cache = stack.enter_context(closing(blocks))
        while active:
            batch = [entries[b] for b in active]
            active_rows = constant(active, canvas.device)
            current_spans = [entry.span for entry in batch]
            lo, hi = (
                min(span.first for span in current_spans),
                max(span.stop for span in current_spans),
            )
            layout: dict[str, Any] = {}
            if model.block is not None:
                layout = {
                    "starts": [s.start for s in current_spans],
                    "ends": [s.stop for s in current_spans],
                }
            tokens = canvas[active_rows] if model.block is None else canvas[active_rows][:, :hi]
            if block_cache is not None:
                block_cache.only(active)
                # number of columns finished for all prompts
                final = max(0, min(layout["starts"]) - model.shift)
                layout |= {"new": hi - block_cache.length, "settled": final - block_cache.length}
                if listens is None:
                    layout["room"] = block_cache.forwards.room(hi, state)
            if stale is not None:
                masked = tokens == model.mask_id
                masked[:, :prompt_end] = False
                *rows, fresh = stale.step(
                    active, current_spans, [entry.step for entry in batch], masked
                )
                layout = {"rows": tuple(rows), "fresh": fresh, "approximate": True}
            key = [
                active,
                *(layout.get(name) for name in ("starts", "ends", "new", "rows", "room")),
            ]
            key.append(layout.get("fresh") is None)
            if visible_key != key:  # if prompts have ended or moved to another block
                visible, visible_key = None, key
            state = State.build(
                *(model, prompts, tokens, (lo, hi)),
                prompt_end=prompt_end,
                step=tick,
                active=active,
                visible=visible,
                **layout,
            )
            visible = state.visible
            with (
                notify_edits(model, state),
                watcher.forward(state),
                listening(model, state, listens) as heard,
            ):
                if alike:
                    logits = forwards.predict(state, total - tick)
                elif block_cache is not None:
                    coming = max(len(entry.spans) - entry.block for entry in batch)
                    # The first forward of a block includes the block before it.
                    to_come = coming if state.settled else total - tick
                    logits = block_cache.predict(state, lo - ahead, hi, final, to_come)
                else:
                    kv = None if stale is None else stale.kv
                    logits = model.predict(tokens, lo - ahead, hi, visible, kv)
            if sampler.cfg:
                blank = tokens.clone()
                blank[:, :prompt_end] = model.mask_id
                # a copy, because the second forward may overwrite the logits
                logits = logits.float().clone()
                unseen = replace(state, canvas=blank, blind=True)
                with notify_edits(model, unseen):
                    if alike:
                        blind = forwards.predict(unseen, total - tick).float()
                    else:
                        blind = model.predict(blank, lo - ahead, hi, visible).float()
                logits = blind + (sampler.cfg + 1) * (logits - blind)
            guess = _guess(model, sampler, state, logits, batch)
            if heard is not None:
                masks = (canvas[active][:, prompt_end:] == model.mask_id).sum(-1)
                guess = replace(guess, coupling=heard.mean, decided_share=1 - masks / length)
            window = slice(lo - prompt_end, hi - prompt_end)
            reveal, take, overwrite = _decided(
                model, sampler, guess, sure[active_rows, window], batch
            )
            was, token, confidence = tokens[:, lo:hi], guess.token, guess.confidence
            decided = canvas[active_rows]
            decided[:, lo:hi] = torch.where(
                reveal | overwrite, token, torch.where(take, model.mask_id, was)
            )
            changed = overruled(model, state, decided)
            if changed is not decided:
                _check_filled(model, changed, prompt_end, batch)
                _check_cached(changed, decided, block_cache)
                token = changed[:, lo:hi]
                reveal = (was == model.mask_id) & (token != model.mask_id)
                other = guess.log_p.gather(-1, token[..., None]).squeeze(-1).exp()
                confidence = torch.where(token == guess.token, confidence, other)
                overwrite = token != was
            sure[active_rows, window] = torch.where(
                reveal | overwrite, confidence, sure[active_rows, window]
            )
            canvas[active_rows] = changed
            watcher.receive_decision(state, reveal, token)
            offered = torch.where(guess.masked, guess.confidence, torch.nan)
            watcher.stepped(state, changed, offered)
            # The only wait for the device in a step: to find the prompts that have finished, if that
            # depends on tokens.
            answers, moved = changed[:, prompt_end:], (changed[:, lo:hi] != was).any(-1)
            if reads_answers:
                answers, moved = answers.cpu(), moved.cpu() if sampler.adaptive else moved
            still_masked = answers == model.mask_id
            for place, entry in enumerate(batch):
                row = tokens[place]
                entry.canvases.append(
                    row if model.block is None else _visible_canvas(row, entry.span.stop, size)
                )
                entry.confidences.append(_widen(offered[place], lo, size))
                entry.blocks.append((entry.span.first, entry.span.stop))
                _advance(
                    entry,
                    sampler,
                    prompt_end,
                    still_masked[place],
                    moved[place],
                    answers[place],
                    model,
                )
            active = [b for b in active if not entries[b].ended]
            tick += 1
            progress(tick, total)
    return [_finish(model, entry, canvas[b], cache) for b, entry in enumerate(entries)]


def _visible_canvas(canvas: Int[Tensor, " n"], stop: int, size: int) -> Int[Tensor, " s"]:
    """Return a canvas of `size` positions as a block model sees it: ABSENT from position `stop` on."""
    view = canvas.new_full((size,), ABSENT)
    view[:stop] = canvas[:stop]
    return view


def _widen(values: Float[Tensor, " w"], start: int, size: int) -> Float[Tensor, " s"]:
    wide = values.new_full((size,), torch.nan)
    wide[start : start + len(values)] = values
    return wide


def _guess(
    model: Model,
    sampler: Sampler,
    state: State,
    raw: Float[Tensor, "b _ v"],
    entries: list[_Entry],
) -> Guess:
    lo, hi = state.window
    all_logits = raw.float()
    logits = all_logits[:, all_logits.shape[1] - (hi - lo) :]
    for b, entry in enumerate(entries):
        if all_logits.shape[1] > hi - lo and _begins(sampler, entry):
            logits[b, entry.span.first - lo] = all_logits[b, entry.span.first - lo].clone()
    logits[..., model.mask_id] = -torch.inf  # the mask is never predicted
    if sampler.no_eos:
        logits[..., model.end_ids[0]] = -torch.inf
    offered = sampler.offered(logits)
    start, first, stop = (
        constant(edge, logits.device).unsqueeze(1)
        for edge in zip(*(entry.span for entry in entries), strict=True)
    )
    column = torch.arange(lo, hi, device=logits.device)
    in_block = (column >= first) & (column < stop)
    masked = state.masked[:, lo:hi] & in_block
    token = offered.argmax(-1)
    noise = torch.empty(token.shape)
    for b, entry in enumerate(entries):
        if sampler.temperature:
            places = masked[b].nonzero().squeeze(-1)
            token[b, places] = sample(offered[b, places], sampler.temperature, entry.generator)
        draws = torch.rand(sampler.length, generator=entry.generator)
        noise[b] = draws[lo - state.prompt_end : hi - state.prompt_end]
    postponed = torch.zeros_like(masked)
    # applied after the proposals, which may be end tokens; p is over the remaining tokens
    if sampler.end_last:
        ends = constant(model.end_ids, logits.device)
        postponed = torch.isin(token, ends)
        logits, offered = (x.index_fill(-1, ends, -torch.inf) for x in (logits, offered))
    chosen = logits.gather(-1, token[..., None]).squeeze(-1)
    return Guess(
        token=token,
        confidence=(chosen - logits.logsumexp(-1)).exp(),
        logits=offered,
        in_block=in_block,
        masked=masked,
        place=column - start,
        noise=sent(noise, logits.device),
        postponed=postponed,
        step=entries[0].step,
        steps=entries[0].steps,
        block=model.block or entries[0].span.width,
    )


def _begins(sampler: Sampler, entry: _Entry) -> bool:
    """Tell whether a prompt's step decides only its block's first position, from the row before it."""
    start, first, _ = entry.span
    return sampler.causal_first and entry.step == 0 and start == first > entry.padding


def _decided(
    model: Model,
    sampler: Sampler,
    guess: Guess,
    sure: Float[Tensor, "b w"],
    entries: list[_Entry],
) -> tuple[Bool[Tensor, "b w"], Bool[Tensor, "b w"], Bool[Tensor, "b w"]]:
    """Return three masks: the positions that a step reveals, remasks and overwrites."""
    # With a fixed schedule all prompts are at the same step, unless their blocks differ.
    alike: dict[tuple[int, int, int], list[int]] = {}
    for b, entry in enumerate(entries):
        alike.setdefault((entry.step, entry.steps, entry.span.width), []).append(b)
    reveal, take, overwrite = (torch.zeros_like(guess.masked) for _ in range(3))
    for (step, steps, width), members in alike.items():
        single_group = len(alike) == 1
        part = guess if single_group else guess.select(members, step, steps)
        # a slice, because indexing with a list would wait for the device
        rows = slice(None) if single_group else members
        quota = sampler.quota(part.masked.sum(-1), width, step, steps)
        shown = sampler.select(part, quota)
        if sampler.adaptive and step + 1 == steps:
            # Adaptive samplers reveal at least one position per step, so a block takes at most as many
            # steps as it has positions, unless an intervention remasks some. Then the last step reveals
            # all remaining masks.
            shown = shown | part.masked
        reveal[rows] = shown
        take[rows] = sampler.revise(part, sure[rows], step, steps) & ~shown
        overwrite[rows] = sampler.overwrite(part)
    for b, entry in enumerate(entries):
        if _begins(sampler, entry):
            only = (guess.place[b] == 0) & guess.masked[b]
            reveal[b], take[b], overwrite[b] = only, False, False
    return reveal, take, overwrite


def _check_filled(
    model: Model, canvas: Int[Tensor, "b s"], prompt_end: int, entries: list[_Entry]
) -> None:
    """Refuse an overruled decision that leaves a mask in a block without remaining steps."""
    assert model.mask_id is not None
    masked = torch.eq(canvas[:, prompt_end:], model.mask_id).tolist()
    for entry, answer in zip(entries, masked, strict=True):
        last = entry.step + 1 == entry.steps
        # positions whose block has no remaining step
        over = entry.span.stop if last else entry.span.first
        if any(answer[: over - prompt_end]):
            raise UsageError(
                f"position {answer.index(True)} of the answer cannot be remasked, because its "
                "block has no remaining step to reveal it",
                "Choose an earlier step, or a sampler with longer blocks.",
            )


def _check_cached(
    canvas: Int[Tensor, "b s"], decided: Int[Tensor, "b s"], block_cache: BlockCache | None
) -> None:
    """Refuse an overruled decision that changes a token whose keys are in the cache."""
    if block_cache is not None and not torch.equal(
        canvas[:, : block_cache.length], decided[:, : block_cache.length]
    ):
        raise UsageError(
            "the intervention changes a token of a finished block, whose keys are cached",
            "Decode with cache=None.",
        )


def _advance(
    entry: _Entry,
    sampler: Sampler,
    prompt_end: int,
    still_masked: Bool[Tensor, " n"],
    moved: Bool[Tensor, ""],
    answer: Int[Tensor, " n"],
    model: Model,
) -> None:
    """Move a prompt to its next step or block, or mark it as ended."""
    entry.step += 1
    if sampler.adaptive:
        first, stop = entry.span.first - prompt_end, entry.span.stop - prompt_end
        unfinished = bool(still_masked[first:stop].any())
        over = sampler.over(unfinished, entry.full, bool(moved))
        entry.full += not unfinished
    else:
        over = entry.step == entry.shares[entry.block]
    if over:
        entry.block, entry.step, entry.full = entry.block + 1, 0, 0
    if entry.block == len(entry.spans):
        entry.ended = "complete"
    elif sampler.stop_at_eos and model.end_ids and (over or not sampler.takes_back):
        ends = torch.isin(answer, torch.tensor(model.end_ids, dtype=answer.dtype)).nonzero()
        if len(ends) and not still_masked[: int(ends[0])].any():
            entry.ended = "eos"


def _finish(model: Model, entry: _Entry, last: Int[Tensor, " s"], cache: str | None) -> Decoding:
    assert model.mask_id is not None
    reached = len(last) if model.block is None else entry.blocks[-1][1]
    unpadded = slice(entry.padding, reached)
    canvas = torch.stack([*entry.canvases, last])[:, unpadded].cpu().numpy()
    answer = [int(i) for i in canvas[-1, len(entry.prompt.ids) :]]
    return Decoding(
        prompt=entry.prompt,
        canvas=canvas,
        # Masks inside the prompt never change, so no distinction is needed here.
        change=change_of(canvas[:-1], canvas[1:], model.mask_id),
        confidence=torch.stack(entry.confidences)[:, unpadded].cpu().numpy(),
        block=np.array(entry.blocks, dtype=np.int64) - entry.padding,
        ended=entry.ended,
        text=model.text([i for i in answer if i != model.mask_id]),
        cache=cache,
    )
