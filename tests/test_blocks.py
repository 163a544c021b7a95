"""Models that decode in blocks: the grid they bring, and a decoding on it that a plain loop would give."""

import numpy as np
import pytest
import torch
from test_trace_exact import positions

import floatscope as fs
from floatscope.decode.blocks import divided, spans
from floatscope.errors import FloatscopeError
from floatscope.models import Direction, Grid, attention_hook, tiny

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


def test_blocks_and_grids_that_do_not_fit_the_model_are_refused(in_blocks, path):
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


def test_an_early_end_keeps_the_reached_blocks(in_blocks, monkeypatch):
    model = in_blocks["start"]
    whole = model.generate("Hello there", fs.Confidence(length=13))
    monkeypatch.setattr(model, "end_ids", (int(whole.canvas[-1, 13]),))
    done = model.generate("Hello there", fs.Confidence(length=13))
    assert done.ended == "eos" and done.canvas.shape[1] == 16
    trace = model.trace("Hello there", fs.Confidence(length=13), keep=["mass", "entropy"])
    assert trace.data.sizes["key"] == 16 and trace.raw_text


# The exact cache


def every(traces):
    return traces if isinstance(traces, list) else [traces]


def assert_same(one, other, tolerance):
    """Every variable of two traces."""
    np.testing.assert_array_equal(one.canvas, other.canvas)
    assert set(one.data.variables) == set(other.data.variables)
    for name, array in one.data.variables.items():
        if array.dtype.kind != "f":
            assert (array.values == other.data[name].values).all(), name
            continue
        scale = max(1.0, float(np.nanmax(np.abs(array.values), initial=0)))
        np.testing.assert_allclose(
            *(array.values, other.data[name].values),
            rtol=0,
            atol=tolerance * scale,
            err_msg=name,
            equal_nan=True,
        )


@pytest.mark.parametrize("rule", RULES)
def test_cached_decoding_equals_uncached(in_blocks, rule):
    """Tokens and every statistic, alone and in a padded batch whose prompts drift apart and end early."""
    model = in_blocks[rule]
    for prompts, sampler in (
        (PROMPTS[1], fs.Confidence(length=9, steps=5, stop_at_eos=False)),
        (PROMPTS, fs.samplers.Threshold(length=10, threshold=0.055, stop_at_eos=False)),
    ):
        plain, cached = (
            every(model.trace(prompts, sampler, cache=cache, keep=list(fs.statistics.STATISTICS)))
            for cache in (None, "exact")
        )
        for one, other in zip(plain, cached, strict=True):
            assert_same(one, other, 1e-6)  # statistics are kept in float32
        tokens = every(model.generate(prompts, sampler))  # cached by default
        assert [t.canvas.tolist() for t in tokens] == [t.canvas.values.tolist() for t in plain]
    assert len({one.n_steps for one in plain}) > 1  # they did drift apart


def test_cached_decoding_equals_uncached_in_float32(path):
    model = fs.load(
        path, check=False, direction="block-causal", block=4, mask_id=tiny.MASK, shift=0
    )
    sampler = fs.Confidence(length=9, steps=6)
    pairs = (model.trace(PROMPTS, sampler, cache=cache) for cache in (None, "exact"))
    for one, other in zip(*pairs, strict=True):
        assert_same(one, other, 1e-5)


def test_some_steps_of_a_cached_trace(in_blocks):
    """Sums accumulate over steps that are not kept, and drift is counted between those that are."""
    model, sampler = in_blocks["start"], fs.Confidence(length=9)
    kept = {"keep": ["mass", "rollout", "kv_drift"], "steps": [2, 6, 7]}
    one, other = (model.trace(PROMPTS[1], sampler, cache=c, **kept) for c in (None, "exact"))
    assert_same(one, other, 1e-6)


@pytest.mark.parametrize("rule", ["start", "shifted"])
def test_a_step_costs_the_rows_of_its_block(in_blocks, rule):
    model, rows = in_blocks[rule], []

    def look(call, proceed):
        if call.layer == 0:
            rows.append((call.query.shape[2], call.key.shape[2]))
        return proceed(call)

    with attention_hook.attach(model.net, look):
        model.generate(PROMPTS[1], fs.Confidence(length=9))  # of 11 tokens: one in the first block
    more = model.shift  # the row before a block predicts its first position
    first = (4 + 4 + more, 16)  # with the block before it, once more and clean
    assert rows == [(12, 12), first, *[(4 + more, 16)] * 3, (8 + more, 20), *[(4 + more, 20)] * 3]


@pytest.mark.parametrize("rule", RULES)
def test_statistics_equal_materialised_attention(in_blocks, rule):
    """Cached, against the whole matrices of every step in float64, computed without any cache."""
    model = in_blocks[rule]
    prompt = fs.Prompt.rag("Who?", ["Ada did."], gold=0, instruction="Say.")
    trace = model.trace(prompt, fs.Confidence(length=6, steps=4), groups="regions", cache="exact")
    data, n = trace.data, n_of(model, prompt)
    starts = {(f, e): s for s, f, e in blocks_of(model, n, 6)}
    for t in range(trace.n_steps):
        first, stop = map(int, data["block"].values[t])
        sees = allowed(model, n, stop, starts[first, stop])
        calls = []

        def look(call, proceed, calls=calls):
            calls.append((call.query[0].double(), call.key[0].double(), call.value[0].double()))
            return proceed(call)

        ids = torch.from_numpy(data["canvas"].values[t, :stop]).long()[None]
        mask = torch.from_numpy(sees)[None, None]
        with torch.no_grad(), attention_hook.attach(model.net, look):
            model.net(ids, attention_mask=mask, use_cache=False)
        labels = positions(trace, t, stop)
        rolled = np.stack([(labels == name) * 1.0 for name in data["target"].values], axis=1)
        for layer, (q, k, v) in enumerate(calls):
            k, v = (x.repeat_interleave(len(q) // len(k), 0) for x in (k, v))
            score = q @ k.mT
            a = (score * q.shape[-1] ** -0.5).masked_fill(~mask[0], -torch.inf).softmax(-1).numpy()
            at = {"step": t, "layer": layer, "key": slice(stop)}
            near(trace.mass.isel(at), a.mean(1))
            near(trace.received.isel(at), a.sum(1) / sees.sum(0))
            with np.errstate(invalid="ignore", divide="ignore"):
                nats = -np.where(a > 0, a * np.log(a), 0).sum(-1)
                rows = {"step": t, "layer": layer, "query": slice(stop)}
                near(trace.entropy.isel(rows), nats / np.log(sees.sum(1)))
            rolled = (a.mean(0) @ rolled + rolled) / 2
            for name in data["source"].values:
                own = labels == name
                if own.any():
                    near(trace.mass_from(str(name)).isel(at), a[:, own].mean(1))
                    here = {"step": t, "layer": layer}
                    flow = trace.flow.isel(here).sel(source=name)
                    by = [
                        a[:, own][:, :, labels == to].sum(-1).mean(-1)
                        for to in flow["target"].values
                    ]
                    near(flow, np.stack(by, axis=1))
                    near(trace.rollout.isel(here).sel(source=name), rolled[own].mean(0))
            weight = sees / sees.sum(0)
            norms = q.norm(dim=-1)[..., None] * k.norm(dim=-1)[:, None]
            near(trace.score.isel(at), (score.numpy() * weight).sum(1), float(norms.max()))
            near(trace.cosine.isel(at), ((score / norms).numpy() * weight).sum(1))
            near(trace.key_norm.isel(at), k.norm(dim=-1).numpy(), 10)
            out = model.net.model.layers[layer].self_attn.o_proj.weight.detach().double()
            written = torch.einsum("mhd,hnd->hnm", out.unflatten(1, (len(q), -1)), v).norm(dim=-1)
            near(trace.value_norm.isel(at), written.numpy(), 10)
            rows = trace.rows.isel(event=np.flatnonzero(data["event_step"].values == t))
            for event in range(rows.sizes["event"]):
                row = int(rows["event_position"].values[event]) - model.shift
                key = rows["row_key"].values[event, layer].astype(int)
                weights = rows["row_weight"].values[event, layer]
                best = np.sort(a[:, row], 1)[:, ::-1][:, : key.shape[1]]
                near(weights, best)
                there = np.take_along_axis(a[:, row], key.clip(0), 1)
                near(weights, np.where(key >= 0, there, 0))


def near(found, wanted, unit=1.0):
    np.testing.assert_allclose(np.asarray(found), wanted, rtol=1e-6, atol=1e-6 * unit)


def test_caches_that_do_not_fit_are_refused(in_blocks, models):
    model, sampler = in_blocks["start"], fs.Confidence(length=8)
    for cache, match in (("dual", "use cache='exact'"), ("all", "Use None, 'auto', 'exact'")):
        with pytest.raises(FloatscopeError, match=match):
            model.generate("Hi", sampler, cache=cache)
    with pytest.raises(FloatscopeError, match="Use cache=None, or no guidance"):
        model.generate("Hi", fs.Confidence(length=8, cfg=1.0), cache="exact")
    with pytest.raises(FloatscopeError, match="Use cache=None, or an approximate cache"):
        models["LLaDA"].generate("Hi", sampler, cache="exact")
    with pytest.raises(FloatscopeError, match="use cache='exact'"):
        models["Llama"].generate("Hi", fs.Autoregressive(length=2), cache="prefix")


def test_interventions_and_the_cache(in_blocks):
    """Constant ones work with it; what needs all rows is refused, and decodes without a cache by default."""
    model, sampler = in_blocks["start"], fs.Confidence(length=9)
    with fs.interventions.AblateHeads(heads=((0, 1), (1, 2)))(model):
        one, other = (model.generate(PROMPTS, sampler, cache=c) for c in ("exact", "auto"))
        assert [x.canvas.tolist() for x in one] == [x.canvas.tolist() for x in other]
    with fs.interventions.MaskColumns(k=1)(model):
        model.generate(PROMPTS, sampler)
        with pytest.raises(FloatscopeError, match="MaskColumns.*Use cache=None"):
            model.generate("Hi", sampler, cache="exact")
    with fs.interventions.ForceToken(position=0, token=65, step=3)(model):
        assert model.generate(PROMPTS[1], sampler).canvas[-1, 11] == 65
        with pytest.raises(FloatscopeError, match="finished block.*cache=None"):
            model.generate(PROMPTS[1], sampler, cache="exact")
    with fs.interventions.ForceToken(position=7, token=65, step=0)(
        model
    ):  # of a block that is not there yet
        assert model.generate(PROMPTS[1], sampler, cache="exact").canvas[-1, 18] == 65


def test_steps_as_blocks(in_blocks):
    """(block, step within the block): every kept step at its place, NaN where a block took fewer."""
    trace = in_blocks["start"].trace(PROMPTS[1], fs.Confidence(length=8), keep="mass")
    found = trace.by_block(trace.mass)
    assert found.dims == ("block", "block_step", "layer", "head", "key")
    assert found["first"].values.tolist() == [11, 12, 16] and found["stop"][-1] == 19
    places = [(0, 0), *((1, i) for i in range(4)), *((2, i) for i in range(3))]
    for step, (block, within) in enumerate(places):
        one = found.sel(block=block, block_step=within)
        np.testing.assert_array_equal(one, trace.mass.isel(step=step))
    assert int(found.isel(layer=0, head=0, key=0).notnull().sum()) == trace.n_steps
    some = in_blocks["start"].trace(PROMPTS[1], fs.Confidence(length=8), keep="mass", steps=[2, 6])
    part = some.by_block(some.mass)
    assert part["block"].values.tolist() == [1, 2]
    np.testing.assert_allclose(part.sel(block=2, block_step=1), trace.mass.isel(step=6), atol=1e-6)
