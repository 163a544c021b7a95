"""Models that decode in blocks: the grid they bring, and a decoding on it that a plain loop would give."""

import numpy as np
import pytest
import torch

import floatscope as fs
from floatscope.decode.blocks import divided, spans
from floatscope.errors import FloatscopeError
from floatscope.models import Direction, Grid, tiny

PROMPTS = ["Hi", "Hello there", "Good morning, all of you"]  # 2, 11 and 24 tokens
RULES = {
    "start": {"grid": "start"},
    "padded": {"grid": "padded"},
    "shifted": {"grid": "start", "shift": 1},
    "active": {"grid": "padded", "direction": "active-block"},
}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    shape = tiny.Shape(layers=2, context=128)
    return tiny.write("Qwen3", tmp_path_factory.mktemp("blocks") / "model", shape)


@pytest.fixture(scope="module")
def in_blocks(path):
    base = {"direction": "block-causal", "block": 4, "mask_id": tiny.MASK, "shift": 0}
    return {
        name: fs.load(path, dtype="float64", check=False, **base | rule)
        for name, rule in RULES.items()
    }


def allowed(model, prompt, size, start):
    """Who sees whom, in words of positions: an independent statement of the rules."""
    padding = -prompt % 4 if model.grid == "padded" else 0
    rows, keys = np.meshgrid(np.arange(size), np.arange(size), indexing="ij")
    own = (rows + padding) // 4 >= (keys + padding) // 4
    if model.direction == "active-block":
        return np.where(rows >= start, own, keys <= rows)
    return own


def blocks_of(model, prompt, length):
    """[first, stop) of every block of the answer, and where it begins."""
    edges = range(0, prompt + length, 4) if model.grid == "start" else range(prompt, 999, 4)
    whole = [(at, max(at, prompt), min(at + 4, prompt + length)) for at in edges]
    return [one for one in whole if one[1] < one[2]]


@torch.no_grad()
def plain(model, prompt, length):
    """One token a step, the surest first; every forward over all that is there, with a mask of its own."""
    ids, canvases = list(model.encode(prompt).ids), []
    n = len(ids)
    for start, first, stop in blocks_of(model, n, length):
        ids += [tiny.MASK] * (stop - max(len(ids), first))
        for _ in range(first, stop):
            canvases.append(list(ids))
            mask = torch.from_numpy(allowed(model, n, stop, start))[None, None]
            out = model.net(torch.tensor([ids]), attention_mask=mask, use_cache=False).logits[0]
            out[:, tiny.MASK] = -torch.inf
            p = out.softmax(-1)
            open_ = [i for i in range(first, stop) if ids[i] == tiny.MASK]
            best = max(open_, key=lambda i: float(p[i - model.shift].max()))
            ids[best] = int(p[best - model.shift].argmax())
    return canvases, ids


@pytest.mark.parametrize("rule", RULES)
def test_a_decoding_follows_the_models_grid(in_blocks, rule):
    """Prompts whose tail shares the first block, alone and in a left-padded batch."""
    model, sampler = in_blocks[rule], fs.Confidence(length=9, stop_at_eos=False)
    together = model.generate(PROMPTS, sampler)
    for prompt, one in zip(PROMPTS, together, strict=True):
        canvases, last = plain(model, prompt, 9)
        assert [row[row >= 0].tolist() for row in one.canvas[:-1]] == canvases
        assert one.canvas[-1].tolist() == last
        alone = model.generate(prompt, sampler)
        np.testing.assert_array_equal(alone.canvas, one.canvas)
        np.testing.assert_array_equal(alone.block, one.block)
        edges = [
            (f, e) for _, f, e in blocks_of(model, len(canvases[0]) and n_of(model, prompt), 9)
        ]
        assert list(dict.fromkeys(map(tuple, one.block.tolist()))) == edges
        assert (one.change == 1).sum() == 9 and (one.change <= 1).all()


def n_of(model, prompt):
    return len(model.encode(prompt).ids)


@pytest.mark.parametrize("rule", RULES)
def test_nulls_of_a_trace_follow_the_rule(in_blocks, rule, tmp_path):
    """`null`, `visible` and the rollout's null, from a stored trace, against the matrix of each step."""
    from floatscope.measures import nulls

    model = in_blocks[rule]
    trace = model.trace(
        PROMPTS[1], fs.Confidence(length=6, steps=4), keep=["mass", "rollout", "flow"]
    )
    trace = fs.Trace.load(trace.save(tmp_path / "t.zarr"))
    n = n_of(model, PROMPTS[1])
    starts = {(f, e): s for s, f, e in blocks_of(model, n, 6)}
    rolled = nulls.rollout_null(trace)
    for t in range(trace.n_steps):
        first, stop = map(int, trace.data["block"].values[t])
        sees = allowed(model, n, stop, starts[first, stop])
        even = sees / sees.sum(1, keepdims=True)
        np.testing.assert_allclose(trace.null.values[t, :stop], even.mean(0), rtol=1e-6)
        assert trace.data["visible"].values[t, :stop].tolist() == sees.sum(0).tolist()
        assert np.isnan(trace.null.values[t, stop:]).all()
        state = inside = nulls.members(trace, t).astype(float)
        for layer in range(model.n_layers):
            state = (even @ state + state) / 2
            for r, name in enumerate(nulls.names(trace)):
                if inside[:, r].any():
                    want = state[inside[:, r] > 0].mean(0)
                    got = rolled.isel(step=t, layer=layer).sel(source=name)
                    np.testing.assert_allclose(got, want, atol=1e-12)


def test_steps_are_divided_by_places(in_blocks):
    model = in_blocks["start"]
    blocks = spans(model, fs.Confidence(length=8), 11)
    assert blocks == [(8, 11, 12), (12, 12, 16), (16, 16, 19)]
    assert divided(fs.Confidence(length=8), blocks) == [1, 4, 3]
    assert divided(fs.Confidence(length=8, steps=3), blocks) == [1, 1, 1]
    assert divided(fs.Confidence(length=8, steps=5), blocks) == [1, 3, 1]
    with pytest.raises(FloatscopeError, match="2 steps for 3 blocks"):
        divided(fs.Confidence(length=8, steps=2), blocks)
    padded = spans(in_blocks["padded"], fs.Confidence(length=6), 11)
    assert padded == [(11, 11, 15), (15, 15, 17)]


def test_what_does_not_fit_the_blocks_is_refused(in_blocks, path):
    model = in_blocks["start"]
    with pytest.raises(FloatscopeError, match="decodes in blocks of 4.*Leave block_length out"):
        model.generate("Hi", fs.Confidence(length=8, block_length=2))
    model.generate("Hi", fs.Confidence(length=8, block_length=4))
    with pytest.raises(FloatscopeError, match="no grid 'middle'|one of start, padded"):
        fs.load(path, direction="block-causal", block=4, mask_id=259, grid="middle")
    with pytest.raises(FloatscopeError, match="grid start of a model that is causal"):
        fs.load(path, grid="start")
    with pytest.raises(FloatscopeError, match="needs block=N"):
        fs.load(path, direction="active-block", mask_id=259)
    assert (model.grid, model.direction) == (Grid.START, Direction.BLOCK_CAUSAL)


def test_an_early_end_keeps_what_was_reached(in_blocks, monkeypatch):
    model = in_blocks["start"]
    whole = model.generate("Hello there", fs.Confidence(length=13))
    monkeypatch.setattr(model, "end_ids", (int(whole.canvas[-1, 13]),))
    done = model.generate("Hello there", fs.Confidence(length=13))
    assert done.ended == "eos" and done.canvas.shape[1] == 16
    trace = model.trace("Hello there", fs.Confidence(length=13), keep=["mass", "entropy"])
    assert trace.data.sizes["key"] == 16 and trace.raw_text
