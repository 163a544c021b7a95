"""The samplers of block models, each against a plain loop that states the published rule."""

import numpy as np
import pytest
import torch
from test_blocks import PROMPTS, allowed, blocks_of, in_blocks, path  # noqa: F401 (fixtures)

import floatscope as fs
from floatscope.decode.samplers.base import Guess
from floatscope.errors import FloatscopeError
from floatscope.models import tiny


@torch.no_grad()
def chances(model, ids, prompt, start):
    """Each row's distribution, the mask left out; every row is computed, with a mask of its own."""
    mask = torch.from_numpy(allowed(model, prompt, len(ids), start))[None, None]
    out = model.net(torch.tensor([ids]), attention_mask=mask, use_cache=False).logits[0]
    out[:, tiny.MASK] = -torch.inf
    return out.softmax(-1).numpy()


def schedule(step, steps, block=4):
    return block // steps + (step < block % steps)


def llada2(model, ids, n, span, *, threshold, steps, edit=None, more=0):
    """LLaDA 2.0; with `edit`, 2.1."""
    start, first, stop = span
    step = after = 0
    while True:
        masks = [i for i in range(first, stop) if ids[i] == tiny.MASK]
        if not masks and edit is None:
            return
        if not masks:
            after += 1
            if after > more:
                return
        p = chances(model, ids, n, start)
        token, sure = p.argmax(-1), p.max(-1)
        high = [i for i in masks if sure[i] > threshold]
        k = schedule(step, steps)
        if len(high) < k:
            high = sorted(masks, key=lambda i: -sure[i])[:k]
        changed = list(high)
        if edit is not None:
            changed += [
                i
                for i in range(first, stop)
                if i not in masks and sure[i] > edit and token[i] != ids[i]
            ]
        for i in changed:
            ids[i] = int(token[i])
        yield
        step += 1
        if not masks and not changed:
            return


def fast_dllm2(model, ids, n, span, *, threshold, sub):
    start, _, stop = span
    if ids[start] == tiny.MASK:
        ids[start] = int(chances(model, ids[:start], n, start)[-1].argmax())  # the context alone
        yield
    for at in range(start, stop, sub):
        while masks := [i for i in range(at, min(at + sub, stop)) if ids[i] == tiny.MASK]:
            p = chances(model, ids, n, start)
            token, sure = p.argmax(-1), p.max(-1)
            best = max(masks, key=lambda i: sure[i - 1])
            for i in masks:
                if i == best or sure[i - 1] > threshold:
                    ids[i] = int(token[i - 1])
            yield


def nemotron(model, ids, n, span, *, threshold):
    start, _, stop = span
    ids[start] = int(chances(model, ids[:start], n, 10**6)[-1].argmax())  # all of it causal
    yield
    while masks := [i for i in range(start, stop) if ids[i] == tiny.MASK]:
        p = chances(model, ids, n, start)
        best = max(masks, key=lambda i: p[i].max())
        for i in masks:
            if i == best or p[i].max() >= threshold:
                ids[i] = int(p[i].argmax())
        yield


CASES = {
    "llada2": (
        "start",
        fs.samplers.LLaDA2(threshold=0.06),
        llada2,
        {"threshold": 0.06, "steps": 4},
    ),
    "llada2, few steps": (
        *("start", fs.samplers.LLaDA2(threshold=0.9, block_steps=3)),
        *(llada2, {"threshold": 0.9, "steps": 3}),
    ),
    "edit": (
        *("start", fs.samplers.LLaDA2Edit(threshold=0.06, edit_threshold=0.06, more_steps=2)),
        *(llada2, {"threshold": 0.06, "steps": 4, "edit": 0.06, "more": 2}),
    ),
    "edit, at once": (
        *("padded", fs.samplers.LLaDA2Edit(threshold=0.05, edit_threshold=0.055, more_steps=0)),
        *(llada2, {"threshold": 0.05, "steps": 4, "edit": 0.055, "more": 0}),
    ),
    "sdar": (
        *("start", fs.samplers.SDAR(temperature=0.0, threshold=0.055)),
        *(llada2, {"threshold": 0.055, "steps": 4}),
    ),
    "fast-dllm2": (
        *("shifted", fs.samplers.FastDLLM2(threshold=0.055, sub_block=2)),
        *(fast_dllm2, {"threshold": 0.055, "sub": 2}),
    ),
    "nemotron": ("active", fs.samplers.Nemotron(threshold=0.04), nemotron, {"threshold": 0.04}),
}


@pytest.mark.parametrize("case", CASES)
def test_a_sampler_decodes_as_published(in_blocks, case):  # noqa: F811
    """Canvas by canvas, in a padded batch with the exact cache, against a loop that has neither."""
    rule, sampler, loop, settings = CASES[case]
    model = in_blocks[rule]
    sampler = type(sampler)(**{**vars(sampler), "length": 10, "stop_at_eos": False})
    edited = together = 0
    for prompt, done in zip(PROMPTS, model.generate(PROMPTS, sampler, cache="exact"), strict=True):
        ids = list(model.encode(prompt).ids)
        n, canvases = len(ids), []
        for span in blocks_of(model, n, 10):
            ids += [tiny.MASK] * (span[2] - len(ids))
            before = list(ids)
            for _ in loop(model, ids, n, span, **settings):
                canvases.append(before)
                before = list(ids)
        assert [row[row >= 0].tolist() for row in done.canvas[:-1]] == canvases
        assert done.canvas[-1].tolist() == ids
        edited += int((done.change == 3).sum())
        together += int(((done.change == 1).sum(1) > 1).sum())
    assert bool(edited) == case.startswith("edit")  # the case tests what it is called
    assert together


def test_sdar_asks_for_the_p_of_the_token_drawn():
    """At its temperature, not at 1."""
    logits = torch.log(torch.tensor([[[0.6, 0.4], [0.9, 0.1], [0.5, 0.5]]]))
    yes = torch.ones(1, 3, dtype=torch.bool)
    place, zero = torch.arange(3)[None], torch.zeros(1, 3)
    drawn = torch.tensor([[0, 1, 0]])
    guess = Guess(drawn, logits.exp()[..., 0], logits, yes, yes, place, zero, ~yes, 0, 3, 3)
    warm = torch.softmax(logits / 0.5, -1).gather(-1, drawn[..., None])[0, :, 0]
    np.testing.assert_allclose(warm, [0.6923, 0.0122, 0.5], atol=1e-4)
    sampler = fs.samplers.SDAR(temperature=0.5, threshold=0.45)
    assert sampler.select(guess, torch.tensor([1])).tolist() == [[True, False, True]]
    few = fs.samplers.SDAR(
        temperature=0.5, threshold=0.7, block_steps=2
    )  # none above it: two, then one
    assert few.select(guess, torch.tensor([1])).tolist() == [[True, False, True]]


def test_block_samplers_refuse_invalid_models_and_settings(in_blocks, models):  # noqa: F811
    for sampler in (fs.samplers.FastDLLM2(length=8), fs.samplers.Nemotron(length=8)):
        with pytest.raises(FloatscopeError, match="is for block models.*direction='block-causal'"):
            models["LLaDA"].generate("Hi", sampler)
    model = in_blocks["start"]
    for sampler in (
        fs.samplers.LLaDA2(length=8, steps=4),
        fs.samplers.SDAR(length=8, threshold=1.5),
        fs.samplers.LLaDA2(length=8, block_steps=0),
        fs.samplers.LLaDA2Edit(length=8, more_steps=-1),
        fs.samplers.LLaDA2Edit(length=8, edit_threshold=2),
        fs.samplers.FastDLLM2(length=8, sub_block=0),
    ):
        with pytest.raises(FloatscopeError, match=type(sampler).__name__):
            model.generate("Hi", sampler)
