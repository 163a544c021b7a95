"""Statistics of the residual and of keys between steps, against float64 recomputation of every family."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_trace_exact import PROMPT, TOLERANCE, check, eager
from tiny_models import CAUSAL, FAMILIES, sampler_for

import floatscope as fs
from floatscope.attention import lens, reference
from floatscope.attention.weight_free import cosine_distance, massive

KEEP = ["massive", "lens", "kv_drift"]


def outputs(model, ids):
    """What every layer gives, before the final norm."""
    found = []
    hooks = [
        block.register_forward_hook(lambda *call: found.append(lens.output_of(call[-1])))
        for block in model.net.model.layers
    ]
    logits = model.logits(ids)
    for hook in hooks:
        hook.remove()
    return found, logits


def distributions(model, ids):
    """(layer, row, token), in float64: norm and head by their definitions; the mask has none."""
    found, logits = outputs(model, ids)
    norm, head = model.net.model.norm, model.net.get_output_embeddings().weight.detach().double()
    eps, scale = norm.variance_epsilon, norm.weight.detach().double()
    every = []
    for x in found:
        x = x[0].double()
        unit = x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * scale
        score = unit @ head.mT
        every.append(score)
    torch.testing.assert_close(every[-1], logits[0].double(), rtol=1e-4, atol=1e-4)
    score = torch.stack(every)
    if model.mask_id is not None:
        score[..., model.mask_id] = -torch.inf
    return score.softmax(-1).numpy()


@pytest.mark.parametrize("family", FAMILIES)
def test_every_one_equals_its_definition(models, family):
    model = models[family]
    trace = model.trace(PROMPT, sampler_for(model, length=6, steps=3), keep=KEEP)
    before = None
    for t in range(trace.n_steps):
        canvas = trace.canvas.values[t]
        ids = torch.from_numpy(canvas[canvas >= 0]).long()[None]
        n = ids.shape[1]
        _, qkv, hidden = eager(model, ids)
        p = distributions(model, ids)
        for layer in range(model.n_layers):
            at = {"step": t, "layer": layer}
            x = np.abs(hidden[layer][0].double().numpy())
            check(trace.massive.isel(at), x.max(-1) / np.median(x, -1), n)
            channel = trace.massive_channel.isel(at).values
            assert channel[:n].tolist() == x.argmax(-1).tolist()
            assert (channel[n:] == -1).all()
            drift = drift_of(before, qkv, layer) if model.is_diffusion else np.full((2, n), np.nan)
            for found, wanted in zip((trace.key_drift, trace.value_drift), drift, strict=True):
                check(found.isel(at), wanted, n)
            check_lens(model, trace, at, p[layer], canvas, n)
        before = qkv


def drift_of(before, now, layer):
    """(key or value, position): the mean over heads of 1 − cos."""
    if before is None:
        return np.full((2, now[layer][1].shape[2]), np.nan)
    pairs = [(a[0].double(), b[0].double()) for a, b in zip(before[layer], now[layer], strict=True)]
    return [1 - torch.cosine_similarity(a, b, dim=-1).mean(0).numpy() for a, b in pairs[1:]]


def check_lens(model, trace, at, p, canvas, n):
    """At masked positions, or at a causal model's next one; by the row that predicts it."""
    seen = trace.lens.isel(at)
    masked = np.flatnonzero(canvas == model.mask_id) if model.is_diffusion else [n]
    assert np.flatnonzero(seen["token"].values >= 0).tolist() == list(masked)
    assert np.flatnonzero(np.isfinite(seen["probability"].values)).tolist() == list(masked)
    for position in masked:
        row = p[position - model.shift]
        one = seen.isel(key=position)
        np.testing.assert_allclose(row[int(one["token"])], row.max(), rtol=1e-4)
        np.testing.assert_allclose(one["probability"], row.max(), rtol=1e-4)
        nats = -(row * np.log(np.where(row > 0, row, 1))).sum()
        np.testing.assert_allclose(one["entropy"], nats, rtol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_last_layer_predicts_what_is_decoded(models, family):
    """Greedy, without guidance: the lens of the last layer is the prediction, shift and all."""
    model = models[family]
    trace = model.trace(PROMPT, sampler_for(model, length=6, steps=3), keep="lens")
    top = trace.lens["token"].isel(layer=-1).values
    revealed = np.argwhere(trace.change.values == 1)
    assert len(revealed) == 6
    for step, position in revealed:
        assert top[step, position] == trace.canvas.values[-1, position]
        sure = trace.lens["probability"].isel(layer=-1, step=step, key=position)
        np.testing.assert_allclose(sure, trace.confidence[step, position], rtol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_batch_whose_prompts_end_apart_gives_what_each_gives_alone(exact, family):
    """Keys of the step before are those of the same prompt, whoever has left."""
    model = exact[family]
    prompts = ["Hello there, how are you?", "Hi", "And now something else"]
    sampler = (
        fs.samplers.Threshold(length=8, threshold=0.05)
        if model.is_diffusion
        else sampler_for(model)
    )
    together = model.trace(prompts, sampler, keep=KEEP)
    if model.is_diffusion:
        assert len({t.n_steps for t in together}) > 1
    for prompt, trace in zip(prompts, together, strict=True):
        alone = model.trace(prompt, sampler, keep=KEEP)
        names = ["massive", "massive_channel", "lens_token", "lens_probability", "key_drift"]
        for name in [*names, "lens_entropy", "value_drift"]:
            np.testing.assert_allclose(
                trace.data[name], alone.data[name], rtol=1e-4, atol=1e-6, err_msg=name
            )


def test_chosen_layers_and_steps(models):
    """Drift is since the kept step before; the rest does not depend on what else is kept."""
    model = models["LLaDA"]
    sampler = fs.Confidence(length=8, steps=4)
    whole = model.trace("Hello there", sampler, keep=KEEP)
    part = model.trace("Hello there", sampler, keep=KEEP, layers=[0, 2], steps=[1, 3])
    same = whole.data.sel(layer=[0, 2], step=[1, 3])
    for name in ("massive", "lens_token", "lens_entropy"):
        np.testing.assert_allclose(part.data[name], same[name], rtol=1e-5, err_msg=name)
    assert np.isnan(part.key_drift.isel(step=0)).all()
    qkv = [eager(model, torch.from_numpy(whole.canvas.values[t]).long()[None])[1] for t in (1, 3)]
    for place, layer in enumerate((0, 2)):
        key, value = drift_of(qkv[0], qkv[1], layer)
        np.testing.assert_allclose(part.key_drift.isel(step=1, layer=place), key, **TOLERANCE)
        np.testing.assert_allclose(part.value_drift.isel(step=1, layer=place), value, **TOLERANCE)


def test_they_are_kept_where_they_are_named(llada):
    trace = llada.trace("Hello", fs.Confidence(length=4, steps=2))
    for name, keep in (("massive", "massive"), ("lens", "lens"), ("key_drift", "kv_drift")):
        with pytest.raises(fs.TraceError, match=f"keep including '{keep}'"):
            getattr(trace, name)


def test_a_saved_trace_has_them(llada, tmp_path):
    trace = llada.trace("Hello", fs.Confidence(length=4, steps=2), keep=KEEP, dtype="float16")
    again = fs.Trace.load(trace.save(tmp_path / "t.zarr"))
    assert again.lens.identical(trace.lens)
    assert again.massive_channel.dtype == np.int32 and again.massive.dtype == np.float32


def test_a_read_sequence_has_no_step_before(models):
    for name in ("LLaDA", "Llama"):
        trace = models[name].read("Hello there", answer=" you", keep=KEEP)
        assert np.isnan(trace.key_drift).all() and (trace.lens["token"] == -1).all()


def test_a_head_that_does_more_is_refused(checkpoints):
    """A network that scales its logits after the head is no norm and head."""
    model = fs.load(checkpoints["Llama"])
    model.net.register_forward_hook(lambda m, a, out: setattr(out, "logits", out.logits * 2))
    with pytest.raises(fs.CaptureError, match="not its final norm and head alone"):
        model.trace("Hello", fs.Autoregressive(length=2), keep="lens")
    assert not any(block._forward_hooks for block in model.net.model.layers)
    assert len(model.net._forward_hooks) == 1  # the test's own


def test_they_see_a_model_as_an_intervention_has_it(checkpoints):
    """Also where the first forward of all is an edited one."""
    sampler = fs.Confidence(length=4, steps=2)
    for edit in (
        fs.interventions.MaskTokens(positions=0),
        fs.interventions.SinkToken(token=5),
        fs.interventions.BoostDynamics(),
    ):
        model = fs.load(checkpoints["LLaDA"])
        with edit(model):
            trace = model.trace("Hello there", sampler, keep=KEEP)
        usual = model.trace("Hello there", sampler, keep=KEEP)
        assert trace.lens["token"].isel(layer=-1, step=0).max() >= 0
        assert not np.allclose(
            trace.lens["entropy"].values[0, -1, -4:], usual.lens["entropy"].values[0, -1, -4:]
        )


@pytest.mark.parametrize("family", ["Dream", CAUSAL[0]])
def test_the_lens_is_the_same_in_small_pieces(models, family, monkeypatch):
    model = models[family]
    whole = model.trace("Hello", sampler_for(model), keep="lens")
    monkeypatch.setattr(lens, "_CELLS", 1)
    pieces = model.trace("Hello", sampler_for(model), keep="lens")
    np.testing.assert_array_equal(whole.lens["token"], pieces.lens["token"])
    np.testing.assert_allclose(whole.lens["entropy"], pieces.lens["entropy"], rtol=1e-5)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 3), st.integers(1, 9), st.integers(1, 33), st.integers(0, 2**31))
def test_fast_ones_equal_the_reference(batch, size, width, seed):
    generator = torch.Generator().manual_seed(seed)
    x, k, v = torch.randn(3, batch, size, width, generator=generator).exp()
    ratio, channel = massive(x)
    torch.testing.assert_close(ratio.double(), reference.massive(x), rtol=1e-5, atol=1e-5)
    assert torch.equal(channel, x.abs().argmax(-1))
    k, v = k[:, None].log(), v[:, None].log()
    torch.testing.assert_close(
        cosine_distance(k, v).double(), reference.cosine_distance(k, v), rtol=1e-5, atol=1e-5
    )


def test_what_does_not_turn_drifts_by_nothing():
    k = torch.randn(2, 3, 5, 8)
    assert cosine_distance(k, 3 * k).max() < 1e-12
    torch.testing.assert_close(cosine_distance(k, -k), torch.full((2, 5), 2.0))
    small = cosine_distance(k.double(), k.double() + 1e-7 * torch.randn(2, 3, 5, 8))
    assert small.min() > 0 and small.max() < 1e-12
