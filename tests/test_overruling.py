"""ForceToken and Remasked: a decoding goes on as if its step had decided otherwise, and is filled."""

import numpy as np
import pytest
import torch
from plain_forward import plain
from tiny_models import CAUSAL, DIFFUSION, EVERY, sampler_for

import floatscope as fs
from floatscope.errors import UsageError
from floatscope.interventions.parse import intervention_of
from floatscope.models import attention_hook
from floatscope.sequences.decoding import Change

PROMPT = "Go on, and say it."
PROMPTS = [PROMPT, "Other words."]


@torch.inference_mode()
def by_hand(model, length, steps, overrule):
    """Confidence decoding as a plain loop over plain forwards; `overrule(step, answer)` after each step."""
    ids = list(model.encode(PROMPT).ids)
    answer, canvases = [model.mask_id] * length, []
    for step in range(steps):
        canvases.append(list(answer))
        logits = plain(model, [*ids, *answer])[0]
        rows = [max(0, len(ids) + n - model.shift) for n in range(length)]
        p = logits[rows].float()
        p[:, model.mask_id] = -torch.inf
        sure, token = p.softmax(-1).max(-1)
        masked = [n for n in range(length) if answer[n] == model.mask_id]
        quota = -(-len(masked) // (steps - step))
        for n in sorted(masked, key=lambda n: (-float(sure[n]), n))[:quota]:
            answer[n] = int(token[n])
        overrule(step, answer)
    return [*canvases, answer]


def answers(decoding):
    return decoding.canvas[:, len(decoding.prompt.ids) :].tolist()


@pytest.mark.parametrize("family", DIFFUSION)
@pytest.mark.parametrize("step", [0, 2])
def test_the_decoding_goes_on_from_what_was_forced(exact, family, step):
    model, sampler = exact[family], fs.Confidence(length=6, steps=6, stop_at_eos=False)

    def overrule(now, answer):
        if now == step:
            answer[4] = 65

    with fs.interventions.ForceToken(4, 65, step)(model):
        done = model.generate(PROMPT, sampler)
        trace = model.trace(PROMPT, sampler)
    assert answers(done) == by_hand(model, 6, 6, overrule)
    assert model.mask_id not in answers(done)[-1] and done.steps == 6
    assert done.info["forced"] == 1
    start = len(done.prompt.ids)
    assert done.change[step, start + 4] in (Change.REVEAL, Change.EDIT)
    plainly = model.generate(PROMPT, sampler)
    np.testing.assert_array_equal(plainly.canvas[: step + 1], done.canvas[: step + 1])
    np.testing.assert_array_equal(trace.canvas, done.canvas)
    assert trace.interventions == (fs.interventions.ForceToken(4, 65, step).describe(),)
    rows = trace.data.where(trace.data["event_position"] == start + 4, drop=True)
    assert int(rows["event_token"][-1]) == 65 or done.change[step, start + 4] == Change.EDIT
    assert not model.edits and not attention_hook._handlers


@pytest.mark.parametrize("family", DIFFUSION)
def test_remasked_positions_are_revealed_later(exact, family):
    model, sampler = exact[family], fs.Confidence(length=6, steps=6, stop_at_eos=False)

    def overrule(now, answer):
        if now == 3:
            for n in (0, 1, 2, 5):
                answer[n] = model.mask_id

    with fs.interventions.Remasked([0, 1, 2, -1], step=3)(model):
        done = model.generate(PROMPT, sampler)
    plainly = model.generate(PROMPT, sampler)
    assert answers(done) == by_hand(model, 6, 6, overrule)
    assert model.mask_id not in answers(done)[-1] and done.steps == 6
    start = len(done.prompt.ids)
    before = np.array(answers(plainly)[4])[[0, 1, 2, 5]] != model.mask_id
    assert done.info["remasked"] == before.sum() > 0
    assert (done.change[3, start:] == Change.REMASK).sum() >= before.sum() - 1
    assert (done.canvas[4, start:][[0, 1, 2, 5]] == model.mask_id).all()


@pytest.mark.parametrize("family", CAUSAL)
def test_a_causal_model_goes_on_from_the_forced_token(exact, family):
    model, sampler = exact[family], sampler_for(exact[family], length=5)
    ids = list(model.encode(PROMPT).ids)
    with torch.inference_mode():
        for place in range(5):
            logits = plain(model, ids)[0][-1]
            ids.append(65 if place == 2 else int(logits.argmax()))
            if place == 2:
                p = float(logits.float().softmax(-1)[65])
    with fs.interventions.ForceToken(2, 65)(model):
        done = model.generate(PROMPT, sampler)
        trace = model.trace(PROMPT, sampler)
    assert done.canvas[-1].tolist() == ids and trace.canvas[-1].values.tolist() == ids
    assert done.info["forced"] == 1
    np.testing.assert_allclose(done.confidence[2, len(ids) - 3], p, rtol=1e-5)
    plainly = model.generate(PROMPT, sampler)
    assert plainly.canvas[-1].tolist()[:-3] == ids[:-3] and plainly.canvas[-1].tolist() != ids


@pytest.mark.parametrize("name", EVERY)
def test_every_sampler_fills_remasked_positions(llada, name):
    """All of the answer after the first step; of blocks, the first one's alone are there to be put back."""
    sampler = EVERY[name]
    with fs.interventions.Remasked(step=0)(llada):
        done = llada.generate(PROMPT, sampler)
    revealed = np.array(answers(llada.generate(PROMPT, sampler))[1]) != llada.mask_id
    assert (np.array(answers(done)[1]) == llada.mask_id).all()
    assert done.info["remasked"] == revealed.sum()
    assert done.ended == "eos" or llada.mask_id not in answers(done)[-1]
    assert done.steps <= sampler.max_steps(sampler.n_blocks)
    if not sampler.adaptive and done.ended != "eos":
        assert done.steps == sampler.n_steps


@pytest.mark.parametrize("name", ["confidence", "random, few steps", "dream, cold"])
def test_several_decisions_of_one_decoding_are_overruled(llada, name):
    sampler = EVERY[name]
    both = fs.interventions.Combined(
        (
            fs.interventions.ForceToken(0, 65),
            fs.interventions.Remasked(0, step=1),
            fs.interventions.ForceToken(7, 66),
        )
    )
    with both(llada):
        done = llada.generate(PROMPT, sampler)
    assert answers(done)[1][0] == 65 and answers(done)[2][0] == llada.mask_id
    assert answers(done)[1][7] == 66 == answers(done)[-1][7]
    assert done.info["forced"] == done.info["forced_2"] == done.info["remasked"] == 1


@pytest.mark.parametrize("family", ["Dream", "Llama"])
def test_a_batch_is_changed_as_each_prompt_alone(exact, family):
    model, sampler = exact[family], sampler_for(exact[family], length=5, steps=5)
    change = fs.interventions.ForceToken(1, 65)
    if model.is_diffusion:
        change = fs.interventions.Combined((change, fs.interventions.Remasked([0, 1, 2], step=2)))
    with change(model):
        together = model.generate(PROMPTS, sampler)
        alone = [model.generate(p, sampler) for p in PROMPTS]
    for one, other in zip(together, alone, strict=True):
        np.testing.assert_array_equal(one.canvas, other.canvas)
        assert one.info == other.info


def test_all_interventions_combined_act_and_are_removed(models):
    """What acts on heads, values, edges, residuals and decisions, in one `with`."""
    for model in (models["LLaDA"], models["Llama"]):
        sampler = sampler_for(model, length=4, steps=4)
        before = model.generate(PROMPTS, sampler)
        every = [
            fs.interventions.AblateHeads(((0, 1),)),
            fs.interventions.MaskValues(positions=0, layers=1),
            fs.interventions.CutEdges(queries="predicting", key_positions=slice(1, 3)),
            fs.interventions.Patch(
                "residual",
                fs.interventions.PatchSource.of(model, PROMPT, sampler),
                layers=2,
                positions=1,
                align="regions",
            ),
            fs.interventions.ForceToken(0, 65),
        ]
        every += [fs.interventions.Remasked(0, step=1)] if model.is_diffusion else []
        with fs.interventions.Combined(tuple(every))(model):
            during = model.trace(PROMPTS, sampler, keep="mass")
        for trace, prompt in zip(during, PROMPTS, strict=True):
            start = len(model.encode(prompt).ids)
            assert [line.partition("(")[0] for line in trace.interventions] == [
                type(one).__name__ for one in every
            ]
            assert trace.canvas.values[1, start] == 65
            assert not model.is_diffusion or trace.canvas.values[2, start] == model.mask_id
        after = model.generate(PROMPTS, sampler)
        for one, other in zip(before, after, strict=True):
            np.testing.assert_array_equal(one.confidence, other.confidence)
        assert not model.edits and not attention_hook._handlers
        assert not any(block._forward_pre_hooks for block in model.net.model.layers)


def test_an_overruling_that_changes_nothing_is_bit_identical(models):
    """Forced to what it would be, or put back before it was revealed: the same to the last bit."""
    for model in (models["LLaDA"], models["Llama"]):
        sampler = sampler_for(model, length=4, steps=4)
        plainly = model.generate(PROMPT, sampler)
        start = len(plainly.prompt.ids)
        place = int(plainly.change[0, start:].argmax())
        token = int(plainly.canvas[1, start + place])
        same = [fs.interventions.ForceToken(place, token)]
        if model.is_diffusion:
            late = int(plainly.change[-1, start:].argmax())
            same.append(fs.interventions.Remasked(late, step=1))
        for one in same:
            with one(model):
                done = model.generate(PROMPT, sampler)
            np.testing.assert_array_equal(done.canvas, plainly.canvas)
            np.testing.assert_array_equal(done.confidence, plainly.confidence)
            assert set(done.info.values()) == {0}


def test_typed_interventions_are_parsed():
    assert intervention_of("force-token,position=2,token=65,step=1") == fs.interventions.ForceToken(
        2, 65, 1
    )
    assert intervention_of("remasked,positions=0|3,step=4") == fs.interventions.Remasked([0, 3], 4)


def test_invalid_settings_are_refused_with_a_remedy(llada, llama):
    for model, wrong, says in (
        (llada, fs.interventions.ForceToken(), "not in the vocabulary"),
        (llada, fs.interventions.ForceToken(0, llada.mask_id), "Use Remasked"),
        (llada, fs.interventions.ForceToken(-1, 5), "from 0"),
        (llada, fs.interventions.ForceToken(0, 5, step=-1), "Count steps from 0"),
        (llada, fs.interventions.Remasked(0, step=-1), "Count steps from 0"),
        (llama, fs.interventions.ForceToken(2, 5, step=1), "Leave step out"),
        (llama, fs.interventions.Remasked(0), "Use ForceToken"),
    ):
        with pytest.raises(UsageError, match=says), wrong(model):
            raise AssertionError("in force")
    for wrong, sampler, says in (
        (fs.interventions.ForceToken(9, 5), fs.Confidence(length=4), "answer of 4 tokens"),
        (fs.interventions.Remasked(9), fs.Confidence(length=4), "no position 9"),
        (
            fs.interventions.Remasked(step=3),
            fs.Confidence(length=4, stop_at_eos=False),
            "no remaining step",
        ),
        (
            fs.interventions.Remasked(0, step=2),
            fs.Confidence(length=4, block_length=2, stop_at_eos=False),
            "longer blocks",
        ),
    ):
        with wrong(llada), pytest.raises(UsageError, match=says):
            llada.generate(PROMPT, sampler)
    assert not llada.edits
    with fs.interventions.ForceToken(3, 5)(llama):  # a decoding that ends before says so
        assert llama.generate(PROMPT, fs.Autoregressive(length=2)).info["forced"] == 0
