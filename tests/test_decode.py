"""Samplers against their rules, batches against one at a time, records against what happened."""

import dataclasses
import math
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import CAUSAL, DIFFUSION, EVERY, FAMILIES, sampler_for

import floatscope as fs
from floatscope.decode import Change
from floatscope.decode.samplers.base import Guess, best, ranked
from floatscope.decode.state import State
from floatscope.sequences.prompt import Encoded

PROMPTS = ["Tell me.", "A much longer prompt about one thing and another.", "x", "Numbers: 1 2 3"]


@pytest.mark.parametrize("family", DIFFUSION)
@pytest.mark.parametrize("name", EVERY)
def test_a_batch_gives_the_tokens_of_one_at_a_time(exact, family, name):
    model, sampler = exact[family], EVERY[name]
    together = model.generate(PROMPTS, sampler)
    for prompt, one in zip(PROMPTS, together, strict=True):
        alone = model.generate(prompt, sampler)
        np.testing.assert_array_equal(one.canvas, alone.canvas)
        np.testing.assert_allclose(one.confidence, alone.confidence, atol=1e-5)
        assert one.text == alone.text
        assert one.ended == alone.ended


@pytest.mark.parametrize("family", CAUSAL)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_an_autoregressive_batch_gives_the_tokens_of_one_at_a_time(exact, family, temperature):
    model = exact[family]
    sampler = fs.Autoregressive(length=12, temperature=temperature)
    for prompt, one in zip(PROMPTS, model.generate(PROMPTS, sampler), strict=True):
        np.testing.assert_array_equal(one.canvas, model.generate(prompt, sampler).canvas)


@pytest.mark.parametrize("family", CAUSAL)
def test_the_cache_changes_nothing(exact, family):
    """Greedy decoding with a cache against a whole forward for every token."""
    model = exact[family]
    one = model.generate("Once upon", fs.Autoregressive(length=10, stop_at_eos=False))
    ids = list(one.prompt.ids)
    for token in one.answer_ids:
        assert int(model.logits(torch.tensor([ids]))[0, -1].argmax()) == token
        ids.append(token)


@pytest.mark.parametrize("name", EVERY)
def test_records_agree_with_the_canvases(llada, name):
    one = llada.generate("Say something.", EVERY[name])
    mask, start = llada.mask_id, len(one.prompt.ids)
    assert (one.canvas[0, start:] == mask).all()
    assert (one.canvas[:, :start] == one.prompt.ids).all()
    for t in range(one.steps):
        before, after, change = one.canvas[t], one.canvas[t + 1], one.change[t]
        assert ((before != after) == (change != Change.NONE)).all()
        assert ((change == Change.REVEAL) == ((before == mask) & (after != mask))).all()
        assert ((change == Change.REMASK) == ((before != mask) & (after == mask))).all()
        first, stop = one.block[t]
        moved = np.flatnonzero(change)
        assert ((moved >= first) & (moved < stop)).all()
        offered = ~np.isnan(one.confidence[t])
        assert (offered[change == Change.REVEAL]).all()
        assert (
            offered
            == (
                (before == mask)
                & (np.arange(len(before)) >= first)
                & (np.arange(len(before)) < stop)
            )
        ).all()
        assert ((one.confidence[t][offered] >= 0) & (one.confidence[t][offered] <= 1 + 1e-6)).all()
    if one.ended == "complete":
        assert (one.canvas[-1] != mask).all()


@pytest.mark.parametrize("kind", [fs.samplers.Remask, partial(fs.samplers.ReMDM, eta=0.1)])
def test_remasking_returns_tokens_to_masks(llada, kind):
    one = llada.generate("Say something.", kind(length=16, steps=24, stop_at_eos=False))
    assert (one.change == Change.REMASK).sum() > 0
    assert (one.canvas[-1] != llada.mask_id).all()
    masked = (one.canvas == llada.mask_id).sum(1)
    assert (np.diff(masked) >= 0).any()  # not monotone, or level in the loop
    trace = llada.trace("Say something.", kind(length=16, steps=24, stop_at_eos=False))
    np.testing.assert_array_equal(trace.canvas, one.canvas)
    assert len(trace.rows["event"]) == (one.change == Change.REVEAL).sum() > 16


def test_the_mask_is_never_predicted(llada):
    """Even where the mask's own logit is the largest by far."""
    net = llada.net
    bias = net.lm_head.weight.detach().clone()
    with torch.no_grad():
        net.lm_head.weight[llada.mask_id] *= 1000
    try:
        for name in ("confidence", "warm", "guided"):
            one = llada.generate("Hm.", EVERY[name])
            assert (one.canvas[-1] != llada.mask_id).all()
    finally:
        with torch.no_grad():
            net.lm_head.weight.copy_(bias)


@pytest.mark.parametrize(("length", "steps"), [(10, 4), (8, 8), (7, 2), (5, 1)])
def test_the_schedule_is_even_with_the_remainder_first(llada, length, steps):
    """LLaDA's get_num_transfer_tokens: base everywhere, one more in the first steps."""
    one = llada.generate("Go.", fs.Confidence(length=length, steps=steps, stop_at_eos=False))
    base, more = divmod(length, steps)
    assert (one.change == Change.REVEAL).sum(1).tolist() == [
        base + (i < more) for i in range(steps)
    ]


def test_blocks_are_filled_from_left_to_right(llada):
    one = llada.generate(
        "Go.", fs.Confidence(length=12, steps=6, block_length=4, stop_at_eos=False)
    )
    start = len(one.prompt.ids)
    assert one.block[:, 0].tolist() == [start, start, start + 4, start + 4, start + 8, start + 8]


def guess_of(p, masked=None):
    """A Guess whose positions have the given distributions."""
    p = torch.tensor(p, dtype=torch.float32)[None]
    masked = torch.ones(p.shape[:2], dtype=torch.bool) if masked is None else torch.tensor([masked])
    return Guess(
        token=p.argmax(-1),
        confidence=p.max(-1).values,
        logits=p.log(),
        in_block=torch.ones_like(masked),
        masked=masked,
        place=torch.arange(p.shape[1])[None],
        noise=torch.rand(p.shape[:2]),
        postponed=torch.zeros_like(masked),
    )


def chosen(sampler, guess, quota=1):
    return sampler.select(guess, torch.tensor([quota]))[0].nonzero().squeeze(-1).tolist()


SHARP = [[0.5, 0.5, 0.0], [0.6, 0.2, 0.2], [0.55, 0.44, 0.01]]


def test_score_rules_by_hand():
    """Three distributions that the three rules rank differently."""
    guess = guess_of(SHARP)
    assert chosen(fs.Confidence(), guess) == [1]  # 0.6 is the largest p
    assert chosen(fs.samplers.Margin(), guess) == [1]  # 0.4 is the largest lead
    assert chosen(fs.samplers.Entropy(), guess) == [0]  # ln 2 is the least entropy
    assert chosen(fs.Confidence(), guess, 2) == [1, 2]
    assert chosen(fs.Confidence(), guess_of(SHARP, [True, False, True])) == [2]


def test_threshold_by_hand():
    p = [[0.95, 0.05], [0.7, 0.3], [0.92, 0.08]]
    assert chosen(fs.samplers.Threshold(threshold=0.9), guess_of(p)) == [0, 2]
    assert chosen(fs.samplers.Threshold(threshold=0.99), guess_of(p)) == [0]  # at least one
    p += [[0.6, 0.4]]
    # factor: p_(1) = .95 ≥ 1 − .3/2, p_(2) = .92 ≥ 1 − .3/3, p_(3) = .7 < 1 − .3/4
    assert chosen(fs.samplers.Threshold(factor=0.3), guess_of(p)) == [0, 2]
    assert chosen(fs.samplers.Threshold(factor=0.05), guess_of(p)) == [0]
    # where the last of all fails alone it goes with the others
    assert chosen(fs.samplers.Threshold(factor=0.3), guess_of(p[:3])) == [0, 1, 2]


def test_entropy_bound_by_hand():
    p = [[0.5, 0.5], [0.999, 0.001], [0.99, 0.01], [0.9, 0.1]]
    h = [-sum(x * math.log(x) for x in row) for row in p]
    # sorted: 1 (.0079), 2 (.056), 3 (.325), 0 (.693); cumsum − max: 0, .0079, .064, .389
    assert h[1] < h[2] < h[3] < h[0]
    assert chosen(fs.samplers.EntropyBound(gamma=0.0), guess_of(p)) == [1]
    assert chosen(fs.samplers.EntropyBound(gamma=0.01), guess_of(p)) == [1, 2]
    assert chosen(fs.samplers.EntropyBound(gamma=0.1), guess_of(p)) == [1, 2, 3]
    assert chosen(fs.samplers.EntropyBound(gamma=1.0), guess_of(p)) == [0, 1, 2, 3]


def test_attention_guided_by_hand():
    """Hubs first, weighed by p; whoever depends on none taken before, by more than τ of its strongest."""
    p = [[0.95, 0.05], [0.9, 0.1], [0.8, 0.2], [0.55, 0.45]]
    coupling = [[9, 4, 1, 0], [4, 9, 2, 0], [1, 2, 9, 0.1], [0, 0, 0.1, 9]]

    def taken(done=0.0, masked=None, p=p, coupling=coupling, **fields):
        heard = {"coupling": torch.tensor([coupling]) / 100, "decided_share": torch.tensor([done])}
        guess = dataclasses.replace(guess_of(p, masked), **heard)
        return chosen(fs.samplers.AttentionGuided(**fields), guess)

    # Σ s: 5, 6, 3.1, .1; times p: 4.75, 5.4, 2.5, .06. So 1, 0, 2, 3. Both 0 and 2 have their strongest
    # with 1; 3 has nothing with it.
    assert taken() == [1, 3]
    # Without 1: 0, 2, 3 by Σ s times p; 2 has its strongest with 0 now.
    assert taken(masked=[True, False, True, True]) == [0, 3]
    # τ runs from .01 to tau_max as the answer fills; nothing is more than its strongest.
    three = {"masked": [True, True, True, False], "tau_max": 1.0, "variant": "direct"}
    assert taken(done=1.0, **three) == [0, 1, 2] and taken(done=0.9, **three) == [1]
    # Half of it stands: all that are sure of themselves, too.
    assert taken(done=0.5) == [0, 1, 3] and taken(done=0.49) == [1, 3]
    assert taken(done=0.5, variant="direct") == [1, 3]
    sure = [[1.0, 0.0], *p[1:]]
    assert taken(p=sure, variant="direct") == [0, 1, 3] and taken(p=sure) == [1, 3]
    # Each by its own strongest: 1 has a quarter of its with 0, 0 a third of its with 1. By Σ s times p:
    # 0, 1, 3, 2, of which 3 and 2 have their strongest with 0 and with 1.
    one_way = [[0, 1, 0, 3], [1, 0, 4, 0], [0, 4, 0, 0], [3, 0, 0, 0]]
    p = [[1.0, 0.0], [0.55, 0.45], [0.5, 0.5], [0.9, 0.1]]
    assert taken(p=p, coupling=one_way, tau_min=0.3, tau_max=0.3) == [0, 1]
    assert taken(p=p, coupling=one_way, tau_min=0.2, tau_max=0.2) == [0, 2]


@pytest.mark.parametrize("family", ["LLaDA", "Dream"])
def test_attention_guided_hears_the_attention_between_masks(exact, family):
    """The whole matrices, made plainly, from the rows that predict the window; the output is untouched."""
    from floatscope.attention import Labels, View, reference
    from floatscope.decode.coupling import listening
    from floatscope.models import attention_hook

    model, (lo, hi) = exact[family], (7, 12)
    canvas = torch.randint(5, model.vocab_size, (2, hi), generator=torch.manual_seed(1))
    canvas[:, lo:] = model.mask_id
    prompts = [
        Encoded(tuple(row[pad:lo].tolist()), ("prompt",) * (lo - pad))
        for row, pad in zip(canvas, (0, 2), strict=True)
    ]
    state = State.build(model, prompts, canvas, (lo, hi), prompt_end=lo)
    whole = []

    def look(call, proceed):
        none = torch.zeros(2, hi, dtype=torch.long)
        whole.append(
            reference.attention(View.from_call(call, state.visible, Labels(none, 1, none, 1)))
        )
        return proceed(call)

    with attention_hook.attach(model.net, look), listening(model, state, frozenset({1})) as heard:
        logits = model.predict(canvas, lo, hi, state.visible)
    assert torch.equal(logits, model.predict(canvas, lo, hi, state.visible))
    rows = torch.arange(lo, hi) - model.shift
    between = whole[1].mean(1)[:, rows, lo:hi]
    expected = (between + between.mT) / 2
    np.testing.assert_allclose(heard.mean.numpy(), expected.numpy(), atol=1e-6)


def test_position_calibrated_by_hand(tmp_path):
    """ln C_i − decay·i with C_i = min(−p ln(f + 1e-9), clip), also where the product underflows."""
    f = np.array([0.5, 0.001])
    np.save(tmp_path / "f.npy", f)
    sampler = fs.samplers.PositionCalibrated(decay=0.25, clip=10.0, frequencies=tmp_path / "f.npy")
    p = [[0.9, 0.1], [0.2, 0.8], [0.9, 0.1]]
    expected = [
        math.log(min(-q * math.log(f[token] + 1e-9), 10)) - 0.25 * i
        for i, (q, token) in enumerate([(0.9, 0), (0.8, 1), (0.9, 0)])
    ]
    score = sampler.score(guess_of(p))[0]
    np.testing.assert_allclose(score, expected, rtol=1e-5)
    far = sampler.score(guess_of([[0.9, 0.1]] * 600))[0]
    assert torch.isfinite(far).all()
    assert (far.diff() < 0).all()  # float32 exp(−0.25 i) is 0 from i = 413 on: all equal


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.floats(-5, 5, width=32) | st.just(-math.inf), min_size=1, max_size=12),
    st.data(),
)
def test_best_takes_the_best_of_the_allowed(score, data):
    among = data.draw(st.lists(st.booleans(), min_size=len(score), max_size=len(score)))
    count = data.draw(st.integers(0, len(score)))
    values, allowed = torch.tensor([score]), torch.tensor([among])
    took = best(values, allowed, torch.tensor([count]))[0]
    assert not (took & ~allowed[0]).any()
    assert int(took.sum()) == min(count, sum(among))
    if took.any() and (allowed[0] & ~took).any():
        assert values[0][took].min() >= values[0][allowed[0] & ~took].max()
    assert sorted(ranked(values, allowed)[0].tolist()) == list(range(len(score)))


def test_draws_follow_the_softmax():
    from floatscope.decode.draw import sample, stream

    logits = torch.tensor([0.0, -torch.inf, 1.0, 2.0, -torch.inf]).expand(20000, 5)
    for temperature in (1e-9, 0.5, 1.0, 2.0):
        drawn = sample(logits, temperature, stream(0, (1, 2)))
        share = torch.bincount(drawn, minlength=5) / len(drawn)
        torch.testing.assert_close(share, (logits[0] / temperature).softmax(-1), atol=0.015, rtol=0)
        assert share[1] == share[4] == 0


@pytest.mark.parametrize("uniform", [0.0, 1 - 2**-53])
def test_a_draw_at_the_ends_takes_a_token_that_has_weight(uniform, monkeypatch):
    from floatscope.decode import draw

    monkeypatch.setattr(draw.torch, "rand", lambda shape, **_: torch.full(shape, uniform).double())
    logits = torch.tensor([[-torch.inf, 3.0, 3.0, -torch.inf]])
    wanted = 1 if uniform == 0 else 2
    assert draw.sample(logits, 0.7, torch.Generator()).tolist() == [wanted]


def test_seeds_matter_and_repeat(llada):
    draw = [
        llada.generate("Go.", fs.Confidence(length=16, steps=4, temperature=1.0, seed=s)).answer_ids
        for s in (0, 0, 1)
    ]
    assert draw[0] == draw[1] != draw[2]


def test_guidance_follows_its_formula(exact):
    """u + (s + 1)(c − u), with the prompt masked for u; checked on the first step's choice."""
    llada = exact["LLaDA"]
    sampler = fs.Confidence(length=4, steps=1, cfg=1.5)
    one = llada.generate("Hello there", sampler)
    canvas = torch.from_numpy(one.canvas[:1])
    start = len(one.prompt.ids)
    blank = canvas.clone()
    blank[:, :start] = llada.mask_id
    c, u = llada.logits(canvas)[0, start:], llada.logits(blank)[0, start:]
    guided = u + 2.5 * (c - u)
    guided[:, llada.mask_id] = -torch.inf
    assert guided.argmax(-1).tolist() == one.answer_ids


def test_dream_predicts_a_position_from_the_row_before_it(exact):
    """Dream: position i is predicted by row i − 1."""
    model = exact["Dream"]
    one = model.generate("Hello there", fs.Confidence(length=4, steps=1))
    logits = model.logits(torch.from_numpy(one.canvas[:1]))[0].clone()
    logits[:, model.mask_id] = -torch.inf
    start = len(one.prompt.ids)
    assert logits[start - 1 : -1].argmax(-1).tolist() == one.answer_ids


@pytest.mark.parametrize("family", FAMILIES)
def test_early_stop_at_the_end_token(models, family):
    """Make the end token the likeliest everywhere: decoding ends at once, with an empty answer."""
    model = models[family]
    head = model.net.lm_head.weight
    kept = head.detach().clone()
    with torch.no_grad():
        # The last hidden state is normalised, so its mean direction is a constant bias.
        head.zero_()
        norm = model.net.model.norm.weight.detach().clone()
        model.net.model.norm.weight.zero_()
    try:
        with torch.no_grad():
            logits_all_zero = model.logits(torch.tensor([[1, 2, 3]]))
        assert float(logits_all_zero.abs().max()) == 0
        ended = model.end_ids
        object.__setattr__(model, "end_ids", (0,))  # arg-max of equals is id 0
        one = model.generate("Hi", sampler_for(model, 8, 8).__class__(length=8))
        assert one.ended == "eos"
        assert one.steps == 1
        assert one.text == ""
        long = model.generate("Hi", sampler_for(model).__class__(length=8, stop_at_eos=False))
        assert long.steps == 8
    finally:
        object.__setattr__(model, "end_ids", ended)
        with torch.no_grad():
            head.copy_(kept)
            model.net.model.norm.weight.copy_(norm)


BAD = {
    "no steps": (fs.Confidence(length=8, steps=0), "steps = 0"),
    "no tokens": (fs.Confidence(length=0), "length = 0"),
    "too many steps": (fs.Confidence(length=8, steps=9), "9 steps for 8 tokens"),
    "block": (fs.Confidence(length=8, block_length=3), "does not divide"),
    "too few steps": (fs.Confidence(length=8, steps=1, block_length=4), "1 steps for 2 blocks"),
    "cold": (fs.Confidence(temperature=-1), "temperature"),
    "nan": (fs.Confidence(temperature=math.nan), "temperature"),
    "cfg": (fs.Confidence(cfg=-1), "cfg"),
    "threshold": (fs.samplers.Threshold(threshold=2), "threshold"),
    "steps of threshold": (fs.samplers.Threshold(steps=4), "as many steps as it needs"),
    "gamma": (fs.samplers.EntropyBound(gamma=-1), "gamma"),
    "tau": (fs.samplers.AttentionGuided(tau_min=0.2), "tau_max = 0.15"),
    "variant": (fs.samplers.AttentionGuided(variant="fast"), "staged or direct"),
    "guided steps": (fs.samplers.AttentionGuided(steps=4), "as many steps as it needs"),
    "decay": (fs.samplers.PositionCalibrated(decay=-1), "decay"),
    "frequencies": (fs.samplers.PositionCalibrated(frequencies="nowhere.npy"), "nowhere.npy"),
    "hold": (fs.samplers.Remask(hold=1.5), "hold"),
    "by": (fs.samplers.Remask(by="mood"), "mood"),
    "alg": (fs.samplers.Dream(alg="mood"), "mood"),
    "alg_temp": (fs.samplers.Dream(alg_temp=-1), "alg_temp = -1"),
    "top_p": (fs.samplers.Dream(top_p=0), "top_p = 0"),
    "top_k": (fs.samplers.Dream(top_k=0), "top_k = 0"),
    "eps": (fs.samplers.Dream(eps=0), "eps = 0"),
    "alpha_on": (fs.samplers.ReMDM(alpha_on=1), "alpha_on = 1"),
    "eta": (fs.samplers.ReMDM(eta=0.2), "eta = 0.2 with alpha_on = 0.9"),
    "t_on": (fs.samplers.ReMDM(t_on=0.1, t_off=0.2), "t_on = 0.1, t_off = 0.2"),
    "top_p of remdm": (fs.samplers.ReMDM(top_p=2), "top_p = 2"),
    "causal": (fs.Autoregressive(), "fills masks"),
}


@pytest.mark.parametrize("name", BAD)
def test_invalid_samplers_are_refused_with_a_remedy(llada, name):
    sampler, words = BAD[name]
    with pytest.raises(fs.UsageError, match=words.replace("(", r"\(")) as caught:
        llada.generate("Hi", sampler)
    assert caught.value.remedy


def test_a_denoising_sampler_on_a_causal_model(llama):
    with pytest.raises(fs.UsageError, match="is autoregressive"):
        llama.generate("Hi", fs.Confidence())


def test_frequencies_of_another_tokenizer(llada, tmp_path):
    np.save(tmp_path / "f.npy", np.ones(7) / 7)
    with pytest.raises(fs.UsageError, match="7 frequencies for 264 tokens"):
        llada.generate("Hi", fs.samplers.PositionCalibrated(frequencies=tmp_path / "f.npy"))


def test_prompts_that_cannot_be_decoded_are_refused(llada):
    for prompt, words in {"": "empty", "   \n": "empty"}.items():
        with pytest.raises(fs.UsageError, match=words):
            llada.generate(prompt)
    with pytest.raises(fs.UsageError, match="exceed the context of 512"):
        llada.generate("x" * 500)
    with pytest.raises(fs.UsageError, match="no prompts"):
        llada.generate([])
    with pytest.raises(fs.UsageError, match="outside the vocabulary"):
        llada.generate([[1, 9999]])
