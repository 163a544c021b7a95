"""Samplers against the published rules, re-stated here as plain loops over one prompt's positions.

Each re-statement takes the uniform draws in the loop's order (a position's tokens, then one number per
position of the answer) and never lets the mask be proposed. Equal scores go to the first position, where
the published code leaves it to `topk`.
"""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_forward import plain
from tiny_models import EVERY

import floatscope as fs
from floatscope.decode import Change
from floatscope.decode.draw import stream
from floatscope.decode.presets import all_samplers, presets, sampler_of
from floatscope.decode.samplers.base import Guess
from floatscope.models import tiny

PROMPT = "Tell me about one thing."


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """One layer in float64: neither rounding nor a near-tie of scores changes a token."""
    return made(tmp_path_factory.mktemp("small"), layers=1)


def made(folder, layers):
    names, shape = ("LLaDA", "Dream"), tiny.Shape(layers=layers)
    paths = {name: tiny.write(name, folder / name, shape) for name in names}
    return {name: fs.load(path, dtype="float64", check=False) for name, path in paths.items()}


@pytest.fixture
def chatty(small):
    """A LLaDA for which every second token ends an answer; first of all, one that it likes to say."""
    model = small["LLaDA"]
    said = model.generate(PROMPT, fs.Confidence(length=16, steps=8, stop_at_eos=False)).answer_ids
    ends = (max(said, key=said.count), *(v for v in range(256) if v % 2 == 0))
    kept = model.end_ids
    object.__setattr__(model, "end_ids", tuple(dict.fromkeys(ends)))
    yield model
    object.__setattr__(model, "end_ids", kept)


class Case:
    """A canvas on its way, with the model's logits by position."""

    def __init__(self, model, length, seed=0):
        self.model, self.length = model, length
        prompt = tuple(model.tokenizer(PROMPT, add_special_tokens=False)["input_ids"])
        self.start = len(prompt)
        self.ids = [*prompt, *[model.mask_id] * length]
        self.generator = stream(seed, prompt)
        self.canvases = [list(self.ids)]

    def logits(self, guidance=0.0):
        def look(ids):
            rows = self.model.logits(torch.tensor([ids]))[0]
            return (
                torch.cat([rows[:1], rows[:-1]]) if self.model.shift else rows
            )  # Dream: row i − 1

        rows = look(self.ids)
        if guidance:
            blind = look([self.model.mask_id] * self.start + self.ids[self.start :])
            rows = blind + (guidance + 1) * (rows - blind)
        rows = rows.float()
        rows[:, self.model.mask_id] = -torch.inf
        return rows

    def masks(self, first=0, width=None):
        stop = self.length if width is None else first + width
        span = range(self.start + first, self.start + stop)
        return [i for i in span if self.ids[i] == self.model.mask_id]

    def uniform(self, *shape, dtype=torch.float64):
        return torch.rand(shape, generator=self.generator, dtype=dtype)

    def place_noise(self):
        own = self.uniform(self.length, dtype=torch.float32)
        return {self.start + i: float(u) for i, u in enumerate(own)}

    def write(self, tokens):
        for i, token in tokens.items():
            self.ids[i] = token
        self.canvases.append(list(self.ids))


def drawn(row, temperature, uniform):
    """The token whose stretch of the summed probabilities holds a uniform number, in NumPy's float64.

    The published loops draw by Gumbel noise: other random numbers, the same distribution
    (tests/test_decode.py).
    """
    p = (row.double() / temperature).softmax(-1).numpy()
    return int(np.searchsorted(p.cumsum() / p.sum(), float(uniform), side="right"))


def first_best(score, k):
    return sorted(score, key=lambda i: (-score[i], i))[:k]


def llada_generate(
    model,
    length,
    steps,
    block,
    *,
    temperature=0.0,
    cfg=0.0,
    remasking="low_confidence",
    seed=0,
    logits_eos_inf=False,
    confidence_eos_eot_inf=False,
):
    """LLaDA's generate: a token drawn at the temperature, its p at temperature 1."""
    case = Case(model, length, seed)
    eos, *_ = ends = list(model.end_ids)
    blocks = length // block
    for number in range(blocks):
        per_step, rest = divmod(block, steps // blocks)
        for i in range(steps // blocks):
            logits = case.logits(cfg)
            if logits_eos_inf:
                logits[:, eos] = -torch.inf
            masks = case.masks(number * block, block)
            proposal, score = {}, {}
            noise = case.uniform(len(masks), 1) if temperature else None
            for n, at in enumerate(masks):
                row = logits[at].double()
                if noise is not None:
                    proposal[at] = drawn(row, temperature, noise[n])
                else:
                    proposal[at] = int(row.argmax())
                if confidence_eos_eot_inf:
                    row[ends] = -torch.inf
                score[at] = float(row.softmax(-1)[proposal[at]])
            places = case.place_noise()
            if remasking == "random":
                score = {at: places[at] for at in masks}
            chosen = first_best(score, per_step + (i < rest))
            case.write({at: proposal[at] for at in chosen})
    return case.canvases


LLADA = {
    "one block": (fs.Confidence, {"length": 16, "steps": 16}, {}),
    "uneven": (fs.Confidence, {"length": 11, "steps": 4}, {}),
    "blocks": (fs.Confidence, {"length": 18, "steps": 6, "block_length": 6}, {}),
    "uneven blocks": (fs.Confidence, {"length": 14, "steps": 6, "block_length": 7}, {}),
    "warm": (fs.Confidence, {"length": 12, "steps": 6, "temperature": 0.7, "seed": 3}, {}),
    "guided": (fs.Confidence, {"length": 12, "steps": 6, "cfg": 1.5}, {}),
    "all": (
        fs.Confidence,
        {"length": 12, "steps": 6, "block_length": 4, "temperature": 0.4, "cfg": 0.8, "seed": 9},
        {},
    ),
    "random": (fs.samplers.Random, {"length": 13, "steps": 5, "seed": 1}, {}),
    "random, warm blocks": (
        fs.samplers.Random,
        {"length": 12, "steps": 4, "block_length": 6, "temperature": 1.2},
        {},
    ),
    "no eos": (fs.Confidence, {"length": 16, "steps": 8}, {"no_eos": True}),
    "no eos, warm": (
        fs.Confidence,
        {"length": 16, "steps": 8, "temperature": 0.2},
        {"no_eos": True},
    ),
    "ends last": (fs.Confidence, {"length": 16, "steps": 8}, {"end_last": True}),
    "ends last, warm": (
        fs.Confidence,
        {"length": 12, "steps": 6, "block_length": 6, "temperature": 0.5},
        {"end_last": True},
    ),
    "both, guided": (
        fs.Confidence,
        {"length": 12, "steps": 6, "cfg": 0.5},
        {"no_eos": True, "end_last": True},
    ),
}


@pytest.mark.parametrize("name", LLADA)
def test_llada_decodes_as_published(chatty, name):
    kind, given, ends = LLADA[name]
    one = chatty.generate(PROMPT, kind(**given, **ends, stop_at_eos=False))
    published = llada_generate(
        *(chatty, given["length"], given["steps"], given.get("block_length", given["length"])),
        remasking="random" if kind is fs.samplers.Random else "low_confidence",
        logits_eos_inf=ends.get("no_eos", False),
        confidence_eos_eot_inf=ends.get("end_last", False),
        **{key: given[key] for key in ("temperature", "cfg", "seed") if key in given},
    )
    np.testing.assert_array_equal(one.canvas, published)
    if ends:  # the option did something
        plain = chatty.generate(PROMPT, kind(**given, stop_at_eos=False))
        assert plain.canvas.tolist() != published


@pytest.mark.parametrize("name", EVERY)
def test_end_tokens_come_last_with_every_sampler(chatty, name):
    """A proposal that is an end token has p = 0: when one is revealed, the masks that stay have too."""
    sampler = replace(EVERY[name], no_eos=False, end_last=True, stop_at_eos=False)
    one = chatty.generate(PROMPT, sampler)
    for t in range(one.steps):
        done = one.change[t] == Change.REVEAL
        ends = done & np.isin(one.canvas[t + 1], chatty.end_ids)
        stays = ~np.isnan(one.confidence[t]) & ~done
        assert (one.confidence[t][ends] == 0).all()
        if ends.any():
            assert (one.confidence[t][stays] == 0).all()
    assert (one.confidence == 0).any()  # some were held
    early = chatty.generate(PROMPT, replace(sampler, stop_at_eos=True))
    assert early.text == one.text
    assert early.steps <= one.steps


@pytest.mark.parametrize("name", ["warm", "threshold, low", "dream, blocks", "remdm, more steps"])
def test_the_end_of_sequence_is_never_proposed_but_other_ends_are(chatty, name):
    eos, *others = chatty.end_ids
    one = chatty.generate(PROMPT, replace(EVERY[name], no_eos=True, stop_at_eos=False))
    assert not (one.canvas == eos).any()
    assert np.isin(one.canvas, others).any()
    early = chatty.generate(PROMPT, replace(EVERY[name], no_eos=True))
    assert early.text == one.text
    assert early.ended == "eos" or early.steps == one.steps


def test_ends_cannot_be_suppressed_where_there_are_none(chatty):
    object.__setattr__(chatty, "end_ids", ())
    for ends in ({"no_eos": True}, {"end_last": True}):
        with pytest.raises(fs.UsageError, match="no end token"):
            chatty.generate(PROMPT, fs.Confidence(length=4, **ends))


def dream_tokens(row, temperature, top_p, top_k):
    """Dream's distribution of one position: tempered, then the nucleus, then the k best."""
    warm = row / temperature if temperature else row
    p = warm.softmax(-1)
    order = sorted(range(len(p)), key=lambda v: (-float(p[v]), v))
    allowed, total = set(), 0.0
    for v in order:  # the one that crosses top_p stays
        if total > top_p:
            break
        allowed.add(v)
        total += float(p[v])
    if top_k is not None:
        allowed &= set(order[:top_k])
    keep = torch.tensor([v in allowed for v in range(len(p))])
    return warm.masked_fill(~keep, -torch.inf)


def dream_generate(model, length, steps, *, temperature, top_p, top_k, alg, seed):
    """Dream's _sample: transfers between the neighbours of linspace(1, 1e-3), all at the last step."""
    case = Case(model, length, seed)
    times = torch.linspace(1, 1e-3, steps + 1)
    for i in range(steps):
        logits, masks = case.logits(), case.masks()
        chance = float(1 - times[i + 1] / times[i]) if i < steps - 1 else 1.0
        noise = case.uniform(len(masks), 1) if temperature else None
        places = case.place_noise()
        proposal, score = {}, {}
        for n, at in enumerate(masks):
            row = dream_tokens(logits[at], temperature, top_p, top_k)
            p = row.softmax(-1)
            token = proposal[at] = int(row.argmax()) if noise is None else drawn(row, 1, noise[n])
            score[at] = {
                "origin": lambda p=p: 0.0,
                "maskgit_plus": lambda p=p, token=token: float(p[token]),
                "topk_margin": lambda p=p: float(p.sort().values[-1] - p.sort().values[-2]),
                "entropy": lambda p=p: float((p * (p + 1e-10).log()).sum()),
            }[alg]()
        if alg == "origin":
            chosen = [at for at in masks if places[at] < chance]
        else:
            chosen = first_best(score, int(len(masks) * chance))
        case.write({at: proposal[at] for at in chosen})
    return case.canvases


@pytest.mark.parametrize("alg", ["origin", "maskgit_plus", "topk_margin", "entropy"])
@pytest.mark.parametrize(
    ("length", "steps", "temperature", "top_p", "top_k"),
    [(12, 12, 0.2, 0.95, None), (13, 5, 0.0, 0.95, None), (10, 4, 1.0, 0.7, 12)],
)
def test_dream_decodes_as_published(small, alg, length, steps, temperature, top_p, top_k):
    given = {"temperature": temperature, "top_p": top_p, "top_k": top_k, "alg": alg, "seed": 6}
    sampler = fs.samplers.Dream(length=length, steps=steps, stop_at_eos=False, **given)
    one = small["Dream"].generate(PROMPT, sampler)
    np.testing.assert_array_equal(
        one.canvas, dream_generate(small["Dream"], length, steps, **given)
    )


def test_dream_reveals_nothing_at_first_with_as_many_steps_as_tokens(small):
    """int(8 · (1 − s/t)) is int(0.999) at the first step; a trace has that step too."""
    sampler = fs.samplers.Dream(length=8, stop_at_eos=False)
    trace = small["Dream"].trace(PROMPT, sampler, keep=["mass", "rows"])
    counts = (trace.change.values == Change.REVEAL).sum(1)
    assert counts[0] == 0 and counts.sum() == 8 == len(trace.rows["event"])


def guess_of(logits, **given):
    """A Guess over one row of positions, all masked unless `given` says otherwise."""
    logits = torch.as_tensor(logits, dtype=torch.float32)[None]
    token = logits.argmax(-1)
    shape = token.shape
    base = {
        "token": token,
        "confidence": logits.softmax(-1).max(-1).values,
        "logits": logits,
        "in_block": torch.ones(shape, dtype=torch.bool),
        "masked": torch.ones(shape, dtype=torch.bool),
        "place": torch.arange(shape[1])[None],
        "noise": torch.rand(shape, generator=torch.Generator().manual_seed(0)),
        "postponed": torch.zeros(shape, dtype=torch.bool),
    }
    return Guess(**base | given)


def chosen(sampler, guess, quota=1):
    return sampler.select(guess, torch.tensor([quota]))[0].nonzero().squeeze(-1).tolist()


def test_dream_draws_positions_by_softmax_without_replacement():
    """alg_temp: P(first a, then b) = w_a · w_b / (1 − w_a), with w = softmax(order / alg_temp)."""
    rows = torch.tensor([[0.0, 1.0], [0.0, 2.0], [0.0, 0.2]])
    sampler = fs.samplers.Dream(temperature=0, top_p=1.0, alg="maskgit_plus", alg_temp=0.2)
    w = (rows.softmax(-1).max(-1).values / 0.2).softmax(-1).tolist()
    trials = 20000
    many = guess_of(rows)
    many = replace(
        many,
        **{
            name: getattr(many, name).expand(trials, *getattr(many, name).shape[1:])
            for name in (
                "token",
                "confidence",
                "logits",
                "masked",
                "in_block",
                "postponed",
                "place",
            )
        },
        noise=torch.rand((trials, 3), generator=torch.Generator().manual_seed(1)),
    )
    took = sampler.select(many, torch.full((trials,), 2))
    for left in range(3):
        a, b = (i for i in range(3) if i != left)
        expected = w[a] * w[b] / (1 - w[a]) + w[b] * w[a] / (1 - w[b])
        share = float((~took[:, left]).double().mean())
        assert share == pytest.approx(expected, abs=4 * math.sqrt(0.25 / trials))


def remdm_generate(model, length, steps, *, eta, alpha_on, t_on, t_off, top_p, seed):
    """ReMDM's loop by the masks' share at t and s; the end of time (1e-5) is the last step here."""
    case = Case(model, length, seed)
    times = np.linspace(1, 1e-5, steps + 1)
    for i, (t, s) in enumerate(pairwise(times)):
        logits, masks = case.logits(), case.masks()
        noise, places = case.uniform(len(masks), 1), case.place_noise()
        back = 0.0
        if t > t_on:
            masked_t, masked_s = (1 - (1 - x) * alpha_on / (1 - t_on) for x in (t, s))
            reveal = (masked_t - masked_s) / masked_t
        elif t <= t_off:
            masked_t, masked_s = (x * (1 - alpha_on) / t_off for x in (t, s))
            reveal = (masked_t - masked_s) / masked_t
        else:
            back = eta
            stays = (1 - alpha_on - alpha_on * eta) / (1 - alpha_on)
            reveal = 1 - stays
        if i == steps - 1:
            reveal, back = 1.0, 0.0
        edits = {}
        for at in range(case.start, len(case.ids)):
            if case.ids[at] != model.mask_id and places[at] < back:
                edits[at] = model.mask_id
        for n, at in enumerate(masks):
            p = logits[at].softmax(-1)
            kept, total = torch.full_like(p, -torch.inf), 0.0
            for rank, v in enumerate(p.argsort(descending=True).tolist()):
                total += float(p[v])
                if rank and total > top_p:  # the one that crosses top_p goes
                    break
                kept[v] = logits[at, v]
            if places[at] < reveal:
                edits[at] = drawn(kept, 1, noise[n])
        case.write(edits)
    return case.canvases


@pytest.mark.parametrize(
    ("family", "steps", "given"),
    [
        ("LLaDA", 32, {}),
        ("Dream", 21, {"eta": 0.1}),
        ("LLaDA", 24, {"eta": 0.3, "alpha_on": 0.6, "t_on": 0.7, "t_off": 0.2, "top_p": 0.5}),
    ],
)
def test_remdm_decodes_as_published(small, family, steps, given):
    sampler = fs.samplers.ReMDM(length=14, steps=steps, seed=2, stop_at_eos=False, **given)
    one = small[family].generate(PROMPT, sampler)
    named = {n: getattr(sampler, n) for n in ("eta", "alpha_on", "t_on", "t_off", "top_p", "seed")}
    np.testing.assert_array_equal(one.canvas, remdm_generate(small[family], 14, steps, **named))


def test_remdm_keeps_the_schedules_share_of_masks():
    """20,000 positions: 1 − α_t on the way up, 1 − α_on in the loop, and evenly to none at the end."""
    sampler, steps, size = fs.samplers.ReMDM(), 100, 20_000
    generator = torch.Generator().manual_seed(0)
    masked = torch.ones((1, size), dtype=torch.bool)
    shares, backs = [], []
    for step in range(steps):
        shares.append(float(masked.double().mean()))
        noise = torch.rand((1, size), generator=generator)
        guess = guess_of(torch.zeros(size, 1), masked=masked, noise=noise, step=step, steps=steps)
        taken = sampler.revise(guess, torch.zeros((1, size)), step, steps)
        backs.append(int(taken.sum()))
        masked = (masked & ~sampler.select(guess, torch.tensor([0]))) | taken
    assert not masked.any()
    t = 1 - np.arange(steps) / steps
    expected = np.where(t > 0.55, 1 - (1 - t) * 2, np.where(t > 0.05, 0.1, 2 * t))
    np.testing.assert_allclose(shares, expected, atol=0.025)
    loop = (t <= 0.55 - 1e-9) & (t > 0.05 + 1e-9)
    assert np.mean(np.array(backs)[loop]) == pytest.approx(0.02 * 0.9 * size, rel=0.03)
    assert not np.array(backs)[~loop & (np.abs(t - 0.55) > 0.01) & (np.abs(t - 0.05) > 0.01)].any()


def fast_threshold(p, masked, threshold):
    """Fast-dLLM: the surest, and every other mask that is not below the threshold."""
    order = first_best({i: p[i] for i in masked}, len(masked))
    return sorted({order[0], *(i for i in order[1:] if not p[i] < threshold)})


def fast_factor(p, masked, factor):
    """Fast-dLLM: up to the first of n = 1, 2, … with p_(n) < 1 − f/(n+1); but the last goes along."""
    order = first_best({i: p[i] for i in masked}, len(masked))
    bars = [-1.0, *(1 - factor / (n + 1) for n in range(2, len(order) + 1))]
    count = 0
    for count, (at, bar) in enumerate(zip(order, bars, strict=True)):  # noqa: B007
        if p[at] < bar:
            break
    if count in (0, len(order) - 1):
        count += 1
    return sorted(order[:count])


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 64), min_size=1, max_size=9),
    st.data(),
    st.sampled_from([0.25, 0.5, 1.0, 1.5]),
)
def test_fast_dllm_reveals_as_published(steps, data, factor):
    """On a grid, where ties and equality with a bar happen, and with a single mask left."""
    p = [x / 64 for x in steps]
    which = data.draw(st.lists(st.booleans(), min_size=len(p), max_size=len(p)))
    which[data.draw(st.integers(0, len(p) - 1))] = True
    guess = guess_of(
        torch.zeros((len(p), 2)), confidence=torch.tensor([p]), masked=torch.tensor([which])
    )
    masked = [i for i, m in enumerate(which) if m]
    assert chosen(fs.samplers.Threshold(factor=factor), guess) == fast_factor(p, masked, factor)
    bar = data.draw(st.sampled_from([*p, 0.9]))
    assert chosen(fs.samplers.Threshold(threshold=bar), guess) == fast_threshold(p, masked, bar)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 9), st.sampled_from([0.0, 0.01, 0.3, 2.0, 50.0]))
def test_entropy_bound_reveals_as_published(seed, size, gamma):
    """EB-Sampler: in the order of entropy, while what all but the largest sum to is ≤ gamma."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, rng.uniform(0.5, 8), (size, 5)).astype(np.float32)
    which = rng.random(size) < 0.7
    which[rng.integers(size)] = True
    p = np.exp(logits.astype(float))
    p /= p.sum(1, keepdims=True)
    entropy = {i: float(-(p[i] * np.log(p[i])).sum()) for i in np.flatnonzero(which)}
    order = sorted(entropy, key=lambda i: entropy[i])
    k = 1
    while k < len(order) and sum(entropy[i] for i in order[:k]) <= gamma:  # the next is the largest
        k += 1
    took = chosen(
        fs.samplers.EntropyBound(gamma=gamma),
        guess_of(logits, masked=torch.from_numpy(which)[None]),
    )
    assert took == sorted(int(i) for i in order[:k])


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 40), st.sampled_from([0.0, 0.25, 1.0]))
def test_position_calibrated_reveals_as_published(tmp_path_factory, seed, size, decay):
    """PC-Sampler: exp(−λ i) · min(−p ln(f + 1e-9), α), the product itself in float64."""
    rng = np.random.default_rng(seed)
    table = rng.dirichlet(np.full(6, 0.3))
    path = tmp_path_factory.mktemp("f") / f"{seed}.npy"
    np.save(path, table)
    logits = rng.normal(0, 2, (size, 6)).astype(np.float32)
    p = np.exp(logits.astype(float))
    p /= p.sum(1, keepdims=True)
    best = logits.argmax(1)
    worth = {
        i: math.exp(-decay * i) * min(-p[i, v] * math.log(table[v] + 1e-9), 1.5)
        for i, v in enumerate(best)
    }
    k = int(rng.integers(1, size + 1))
    sampler = fs.samplers.PositionCalibrated(decay=decay, clip=1.5, frequencies=path)
    assert chosen(sampler, guess_of(logits), k) == sorted(first_best(worth, k))


def test_presets_with_a_published_name_have_the_published_settings():
    every = all_samplers(64)
    assert set(every) == set(presets(64, None))
    dream, remdm = every["dream"], every["remdm"]
    assert (dream.temperature, dream.top_p, dream.alg, dream.alg_temp) == (0.2, 0.95, "entropy", 0)
    assert (dream.eps, dream.top_k, dream.n_steps) == (1e-3, None, 64)
    assert (remdm.eta, remdm.alpha_on, remdm.t_on, remdm.t_off) == (0.02, 0.9, 0.55, 0.05)
    assert (remdm.top_p, remdm.temperature) == (0.9, 1.0)
    assert remdm.n_steps >= 20 <= all_samplers(8, 2)["remdm"].n_steps
    assert (every["threshold"].threshold, every["threshold"].block_length) == (0.9, 32)
    assert (every["factor"].factor, every["factor"].block_length) == (1.0, 32)
    calibrated = every["position-calibrated"]
    assert (calibrated.decay, calibrated.clip) == (0.25, 10)
    assert presets(64, None)["remask"].source == "ours"


def test_a_name_brings_fields():
    """As `--sampler` and a study's file have it; options that come beside it count too."""
    made = sampler_of("confidence, temperature=0.7,block_length=8", {"length": 16}, ["seed=3"])
    assert made == fs.Confidence(length=16, temperature=0.7, block_length=8, seed=3)
    with pytest.raises(fs.UsageError, match="colour=3: confidence has no such field"):
        sampler_of("confidence,colour=3", {})


# DAPD (2603.12996): its rule as its authors' code decodes LLaDA, one prompt at a time.


@pytest.fixture(scope="module")
def four_layers(tmp_path_factory):
    """The last two are listened to. Sharp, so that some positions are sure of themselves."""
    models = made(tmp_path_factory.mktemp("four"), layers=4)
    for model in models.values():
        model.net.lm_head.weight.data *= 4
    return models


def dapd_generate(model, length, block, tau_min, tau_max, variant):
    case = Case(model, length)
    for number in range(length // block):
        while masks := case.masks(number * block, block):
            left = len(case.masks())
            tau = tau_min + (tau_max - tau_min) * (1 - left / length)
            layers = range(int(model.n_layers * (1 - 0.3)), model.n_layers)
            attention = plain(model, case.ids)[2]
            mean = sum(attention[layer][1].mean(0) for layer in layers) / len(layers)
            row = {
                i: mean[i - model.shift] for i in masks
            }  # Dream: that of the row that predicts it
            s = {
                (i, j): float(row[i][j] + row[j][i]) / 2 if i != j else 0.0
                for i in masks
                for j in masks
            }
            p = case.logits().softmax(-1)
            sure = {i: float(p[i].max()) for i in masks}
            key = {i: sum(s[i, j] for j in masks) * sure[i] for i in masks}
            taken = []
            for i in first_best(key, len(masks)):
                most = max(max(s[i, j] for j in masks), 1e-8)
                if all(s[i, j] / most <= tau for j in taken):
                    taken.append(i)
            if variant == "staged" and 1 - left / length >= 0.5:
                taken += [i for i in masks if sure[i] >= 0.9]
            case.write({i: int(p[i].argmax()) for i in taken})
    return case.canvases


@pytest.mark.parametrize("family", ["LLaDA", "Dream"])
@pytest.mark.parametrize(
    "given",
    [
        {"length": 14},
        {"length": 12, "block_length": 6, "tau_min": 0.7, "tau_max": 0.95},
        {"length": 12, "tau_min": 0.8, "tau_max": 0.9, "variant": "direct"},
    ],
    ids=str,
)
@torch.inference_mode()
def test_attention_guided_decodes_as_published(four_layers, family, given):
    model, length = four_layers[family], given["length"]
    one = model.generate(PROMPT, fs.samplers.AttentionGuided(**given, stop_at_eos=False))
    published = dapd_generate(
        *(model, length, given.get("block_length", length)),
        *(given.get("tau_min", 0.01), given.get("tau_max", 0.15)),
        given.get("variant", "staged"),
    )
    np.testing.assert_array_equal(one.canvas, published)
    assert one.steps < length or "tau_min" not in given  # the attention of random weights is even
