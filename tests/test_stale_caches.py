"""Approximate caches: what is old is what the published rule says, and it is used as if it were stored."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import floatscope as fs
from floatscope.errors import FloatscopeError
from floatscope.models import attention_hook, tiny

PROMPTS = ["Hi", "Hello there", "Good morning"]
KINDS = ("prefix", "dual", "dkv:3")
SAMPLER = fs.Confidence(length=8, steps=8, block_length=4, stop_at_eos=False)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    folder, shape = tmp_path_factory.mktemp("stale"), tiny.Shape(layers=2, context=64)
    return {
        name: fs.load(tiny.write(name, folder / name, shape), dtype="float64", check=False)
        for name in ("LLaDA", "Dream")
    }


def fresh_rows(kind, model, canvases, t, prompt, block=4):
    """The positions that step t computes, in words of the published rules."""
    size = canvases.shape[1]
    within, number = t % block, t // block
    start = prompt + number * block - model.shift
    every = np.ones(size, bool)
    if within == 0:
        return every
    if kind == "prefix":
        return np.arange(size) >= start
    if kind == "dual":
        return (np.arange(size) >= start) & (np.arange(size) < prompt + (number + 1) * block)
    if within < 2 or within % 3 == 0:
        return every
    waiting = canvases[t - 1] == tiny.MASK  # not yet revealed before the step before this one
    if model.shift:
        waiting = waiting | np.append(waiting[1:], False)
    return waiting


@torch.no_grad()
def plain(model, kind, prompt):
    """All rows at every step, and keys and values put back to what they were where they are old."""
    ids = list(model.encode(prompt).ids)
    n, stored, canvases, masses, freshes = len(ids), {}, [], [], []
    ids += [tiny.MASK] * 8
    for t in range(8):
        canvases.append(list(ids))
        fresh = fresh_rows(kind, model, np.array(canvases), t, n)
        new = torch.from_numpy(fresh)[None, None, :, None]
        mass = []

        def put_back(call, proceed, new=new, fresh=fresh, mass=mass):
            if call.layer in stored:
                key, value = stored[call.layer]
                call = replace(
                    call,
                    key=torch.where(new, call.key, key),
                    value=torch.where(new, call.value, value),
                )
            stored[call.layer] = (call.key, call.value)
            k = call.key.repeat_interleave(call.query.shape[1] // call.key.shape[1], 1)
            a = (call.query @ k.mT * call.scale).softmax(-1)[0]
            mass.append(a[:, torch.from_numpy(fresh)].mean(1).numpy())
            return proceed(call)

        with attention_hook.attach(model.net, put_back):
            out = model.logits(torch.tensor([ids]))[0].clone()
        out[:, tiny.MASK] = -torch.inf
        p = out.softmax(-1)
        at = n + t // 4 * 4
        open_ = [i for i in range(at, at + 4) if ids[i] == tiny.MASK]
        best = max(open_, key=lambda i: float(p[i - model.shift].max()))
        ids[best] = int(p[best - model.shift].argmax())
        masses.append(np.stack(mass))
        freshes.append(fresh)
    return canvases, ids, np.stack(masses), np.stack(freshes)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", ["LLaDA", "Dream"])
def test_a_cached_forward_equals_a_forward_with_old_keys_inserted(small, family, kind):
    """Tokens, which keys are old, and the attention of the rows computed: alone and in a padded batch."""
    model = small[family]
    traces = model.trace(PROMPTS, SAMPLER, cache=kind)
    for prompt, trace in zip(PROMPTS, traces, strict=True):
        canvases, last, masses, fresh = plain(model, kind, prompt)
        assert trace.canvas.values[:-1].tolist() == canvases
        assert trace.canvas.values[-1].tolist() == last
        np.testing.assert_array_equal(trace.data["stale"], ~fresh)
        np.testing.assert_allclose(trace.mass, masses, atol=1e-6)
        rows = fresh.sum(1)
        assert (trace.data["visible"].values == rows[:, None]).all()
        assert (trace.data["rows_counted"].sum("group") == rows).all()
        np.testing.assert_array_equal(trace.entropy.notnull().all(["layer", "head"]), fresh)
        np.testing.assert_array_equal(trace.residual_norm.notnull().all("layer"), fresh)
        np.testing.assert_allclose(
            trace.flow.sum("target").where(trace.flow.sum("target") > 0, 1), 1, atol=1e-5
        )
        np.testing.assert_allclose(
            trace.rollout.sum("target").where(trace.rollout.sum("target") > 0, 1), 1, atol=1e-5
        )
        assert trace.info["cache"] == kind


def test_prompts_of_a_batch_refresh_at_their_own_steps(small):
    """An adaptive sampler lets them drift apart: each decodes as it would alone."""
    model = small["LLaDA"]
    sampler = fs.samplers.Threshold(length=12, threshold=0.06, block_length=4, stop_at_eos=False)
    for kind in KINDS:
        together = model.trace(PROMPTS, sampler, cache=kind)
        assert len({one.n_steps for one in together}) > 1
        for prompt, one in zip(PROMPTS, together, strict=True):
            alone = model.trace(prompt, sampler, cache=kind)
            np.testing.assert_array_equal(alone.canvas, one.canvas)
            np.testing.assert_array_equal(alone.data["stale"], one.data["stale"])
            for name in ("mass", "rollout", "entropy", "score"):
                np.testing.assert_allclose(getattr(alone, name), getattr(one, name), atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_steps_that_are_not_kept_still_carry_the_rollout(small, kind):
    """A chosen step's rows build on what a step before it computed, kept or not."""
    model, keep = small["LLaDA"], ("mass", "rollout")
    whole = model.trace("Hello there", SAMPLER, keep=keep, cache=kind)
    some = model.trace("Hello there", SAMPLER, keep=keep, cache=kind, steps=[2, 5])
    for name in ("rollout", "column_sum"):
        np.testing.assert_array_equal(some.data[name], whole.data[name].isel(step=[2, 5]))


def test_rows_that_are_not_computed_cost_nothing(small):
    model, rows = small["LLaDA"], []

    def look(call, proceed):
        if call.layer == 0:
            rows.append(call.query.shape[2])
        return proceed(call)

    with attention_hook.attach(model.net, look):
        model.generate("Hello there", SAMPLER, cache="dual")
        model.generate("Hello there", SAMPLER, cache="prefix")
    assert rows == [19, 4, 4, 4, 19, 4, 4, 4, 19, 8, 8, 8, 19, 4, 4, 4]


def test_what_an_approximate_cache_refuses(small, tmp_path):
    model = small["LLaDA"]
    for cache in ("dkv:0", "dkv:x", "dual:3"):
        with pytest.raises(FloatscopeError, match="'dkv:8' refreshes every 8 steps"):
            model.generate("Hi", SAMPLER, cache=cache)
    with (
        fs.interventions.AblateHeads(heads=((0, 1),))(model),
        pytest.raises(FloatscopeError, match="cache=None"),
    ):
        model.generate("Hi", SAMPLER, cache="dual")
    trace = model.trace("Hi", SAMPLER, cache="dual", keep="mass")
    trace = fs.Trace.load(trace.save(tmp_path / "t.zarr"))
    assert bool(trace.data["stale"].any())
    with pytest.raises(FloatscopeError, match="approximate cache 'dual'.*cache=None"):
        model.pattern(trace, step=1)


@pytest.mark.parametrize("family", ["LLaDA", "Dream"])
def test_staleness_is_the_difference_to_the_same_step_without(small, family):
    """Attention, keys and the answer, against whole matrices of both kinds of forward."""
    model, prompt = small[family], PROMPTS[1]
    found = fs.measures.staleness(model, prompt, SAMPLER, cache="dual").data
    canvases, last, masses, fresh = plain(model, "dual", prompt)
    moved, flips = [], []
    for t, ids in enumerate(canvases):
        if fresh[t].all():
            continue
        anew, own = [], torch.from_numpy(fresh[t])

        def look(call, proceed, anew=anew, rows=own):
            k = call.key.repeat_interleave(call.query.shape[1] // call.key.shape[1], 1)
            a = (call.query @ k.mT * call.scale).softmax(-1)[0]
            anew.append(a[:, rows].mean(1).numpy())
            return proceed(call)

        with attention_hook.attach(model.net, look):
            out = model.logits(torch.tensor([ids]))[0].clone()
        out[:, tiny.MASK] = -torch.inf
        moved.append(np.abs(masses[t] - np.stack(anew)).sum(-1).mean(-1) / 2)
        after = canvases[t + 1] if t < 7 else last
        at = next(i for i in range(len(ids)) if ids[i] != after[i])
        flips.append(int(out[at - model.shift].argmax()) != after[at])
    np.testing.assert_allclose(found["attention"], np.mean(moved, axis=0), atol=1e-6)
    assert float(found["attention"].max()) > 1e-3  # there is something to find
    assert float(found["flipped"]) == np.mean(flips)
    usual = model.generate(prompt, SAMPLER).canvas[-1, 11:]
    assert float(found["answer"]) == np.mean(np.array(last[11:]) == usual)
    assert float(found["old"]) == pytest.approx((~fresh).mean())
    # Layer 0 sees no context: a key is old only where its token is another one now, and none is.
    assert abs(float(found["key"][0])) < 1e-12 < float(found["key"][1])
    with pytest.raises(FloatscopeError, match="is exact"):
        fs.measures.staleness(model, prompt, SAMPLER, cache="exact")


def test_staleness_is_zero_without_old_keys(small):
    found = fs.measures.staleness(
        small["LLaDA"], PROMPTS, replace(SAMPLER, steps=2), cache="prefix"
    ).data
    assert float(found["answer"]) == 1 and float(found["old"]) == 0 and float(found["rows"]) == 1
    assert bool(found["attention"].isnull().all())
