"""The model is untouched: bit-identical with tracing on and off, and as it was afterwards."""

import threading

import numpy as np
import pytest
import torch
from tiny_models import FAMILIES, sampler_for

import floatscope as fs
from floatscope.attention import Capture, Forward, Labels
from floatscope.models import attention_hook

PROMPTS = ["Hello", "Something rather longer than the first", "abc"]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("prompts", [PROMPTS[:1], PROMPTS])
def test_tokens_are_bit_identical_traced_or_not(models, family, prompts):
    model = models[family]
    sampler = sampler_for(model)
    plain = model.generate(prompts, sampler)
    traced = model.trace(prompts, sampler)
    for one, other in zip(plain, traced, strict=True):
        np.testing.assert_array_equal(one.canvas, other.canvas.values)
        # Confidence is a function of the logits: equal to the last bit.
        np.testing.assert_array_equal(one.confidence, other.confidence.values)
        assert one.text == other.text


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("padding", [[0], [0, 3, 7]])
def test_logits_are_bit_identical_traced_or_not(models, family, padding):
    """Compare with the attention hook without a capture, and with transformers without the hook."""
    model = models[family]
    size, pads = 20, torch.tensor(padding)
    ids = torch.randint(0, 256, (len(padding), size), generator=torch.Generator().manual_seed(1))
    visible = model.visibility(size, size, pads)
    rows = torch.arange(size)
    plain = model.forward(ids, rows, visible)
    region = torch.zeros_like(ids).masked_fill(~visible.key_is_real, -1)
    forward = Forward(visible, Labels(region, 1, region, 1), (0, 1), cached=False)
    keep = set(fs.statistics.STATISTICS)
    with Capture(model, keep, range(model.n_layers), range(model.n_heads)) as capture:
        with capture.forward(forward):
            traced = model.forward(ids, rows, visible)
    assert torch.equal(plain, traced)
    if padding == [0]:
        with torch.inference_mode():
            stock = model.net(ids, is_causal=visible.is_causal, use_cache=False).logits
        assert torch.equal(stock, traced)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_batched_trace_equals_one_at_a_time(exact, family):
    model = exact[family]
    sampler = sampler_for(model)
    for prompt, one in zip(PROMPTS, model.trace(PROMPTS, sampler), strict=True):
        alone = model.trace(prompt, sampler)
        assert set(one.data.variables) == set(alone.data.variables)
        for name, array in alone.data.variables.items():
            if array.dtype.kind == "f":
                np.testing.assert_allclose(
                    one.data[name], array, atol=2e-4, rtol=2e-4, err_msg=name
                )
            elif name != "row_key":  # ties between equal weights may fall either way
                np.testing.assert_array_equal(one.data[name], array, err_msg=name)


def test_tracing_leaves_the_model_unchanged(models):
    net = models["Llama"].net
    before = net.config._attn_implementation
    hooks = [len(m._forward_pre_hooks) for m in net.modules()]
    models["Llama"].trace("Hi", fs.Autoregressive(length=2))
    assert net.config._attn_implementation == before
    assert [len(m._forward_pre_hooks) for m in net.modules()] == hooks
    assert not any(
        module in attention_hook._handlers for module in attention_hook.attention_modules(net)
    )


def test_model_is_unchanged_after_an_error(models):
    model = models["LLaDA"]
    capture = Capture(model, {"mass", "residual_norm"}, range(3), range(4))
    with pytest.raises(RuntimeError, match="boom"), capture:
        raise RuntimeError("boom")
    assert not any(
        module in attention_hook._handlers for module in attention_hook.attention_modules(model.net)
    )
    assert not any(m._forward_pre_hooks for m in model.net.modules())


def forward_of(model, size):
    one = torch.zeros(1, size, dtype=torch.long)
    visible = model.visibility(size, size, torch.zeros(1, dtype=torch.long))
    return Forward(visible, Labels(one, 1, one, 1), (0, 1), cached=False)


def test_a_missed_layer_raises(models):
    """A network whose attention bypasses the attention hook raises an error and is not measured as zero."""
    model = models["Llama"]
    ids = torch.arange(6)[None]
    with Capture(model, {"mass"}, range(3), range(4)) as capture:
        model.net.set_attn_implementation("sdpa")
        try:
            with (
                pytest.raises(fs.CaptureError, match="0 attention calls seen in a forward of 3"),
                capture.forward(forward_of(model, 6)),
                torch.inference_mode(),
            ):
                model.net(ids, use_cache=False)
        finally:
            model.net.set_attn_implementation(attention_hook.NAME)


def test_two_forwards_in_one_scene_raise(models):
    model = models["Llama"]
    ids = torch.arange(6)[None]
    with Capture(model, {"mass"}, range(3), range(4)) as capture:
        with (
            pytest.raises(fs.CaptureError, match="6 attention calls"),
            capture.forward(forward_of(model, 6)),
        ):
            model.logits(ids)
            model.logits(ids)


def test_guidance_is_not_traced(models):
    """The second, unconditional forward of CFG is no step."""
    model = models["LLaDA"]
    trace = model.trace("Hello", fs.Confidence(length=4, steps=2, cfg=1.0))
    plain = model.trace("Hello", fs.Confidence(length=4, steps=2))
    assert trace.n_steps == 2
    np.testing.assert_allclose(trace.mass.values[0], plain.mass.values[0], atol=1e-7)


def test_tracing_sees_attention_as_edited(models):
    """An edit attached outside is what the capture measures."""
    model = models["LLaDA"]

    def blind(call, proceed):
        size = call.key.shape[2]
        mask = torch.ones(1, 1, size, size, dtype=torch.bool)
        mask[..., 0] = False
        call.mask = mask
        return proceed(call)

    with attention_hook.attach(model.net, blind):
        trace = model.trace("Hello", fs.Confidence(length=4, steps=2))
    assert float(trace.mass.isel(key=0).max()) == 0
    np.testing.assert_allclose(trace.mass.sum("key"), 1, atol=1e-5)


@pytest.mark.parametrize("family", ["Llama", "LLaDA", "Dream"])
def test_choosing_layers_heads_and_steps(models, family):
    model = models[family]
    sampler = sampler_for(model)
    whole = model.trace("Hello there", sampler)
    part = model.trace("Hello there", sampler, layers=[0, 2], heads=slice(1, 3), steps=[1, -1])
    assert part.data.sizes["layer"] == 2
    assert part.data.sizes["head"] == 2
    assert part.data["step"].values.tolist() == [1, sampler.n_steps - 1]
    same = whole.data.sel(layer=part.data["layer"], step=part.data["step"])
    for name in ("column_sum", "entropy", "flow", "score", "cosine", "value_norm", "key_norm"):
        np.testing.assert_allclose(
            part.data[name],
            same[name].sel(head=part.data["head"]),
            atol=1e-5,
            rtol=1e-4,
            err_msg=name,
        )
    for name in ("rollout", "residual_norm"):  # over all heads, whatever is kept
        np.testing.assert_allclose(part.data[name], same[name], atol=1e-5, rtol=1e-4)
    kept = np.isin(whole.data["event_step"], part.data["event_step"])
    weights = whole.data["row_weight"][kept].sel(layer=part.data["layer"], head=part.data["head"])
    np.testing.assert_allclose(part.data["row_weight"], weights, atol=1e-5)


@pytest.mark.parametrize("name", [name for name in fs.statistics.STATISTICS if name != "experts"])
def test_each_statistic_can_be_kept_alone(models, name):
    for model in (models["Dream"], models["Qwen3"]):
        trace = model.trace("Hello", sampler_for(model), keep=[name])
        whole = model.trace("Hello", sampler_for(model))
        for kept in trace.data.data_vars:
            if kept in whole.data and trace.data[kept].shape == whole.data[kept].shape:
                np.testing.assert_allclose(trace.data[kept], whole.data[kept], atol=1e-5, rtol=1e-4)
        if name not in ("mass", "groups"):
            with pytest.raises(fs.TraceError, match="keep including 'mass'"):
                _ = trace.mass
        if name == "mass":
            np.testing.assert_allclose(trace.mass, whole.mass, atol=1e-6)
            with pytest.raises(fs.TraceError, match="keep including 'qk'"):
                _ = trace.score


def test_invalid_trace_options_are_named(llada):
    for options, words in [
        ({"keep": ["masss"]}, "no statistic 'masss'"),
        ({"keep": {"mass", "residual"}}, r"no statistic 'residual'.*model\.activations"),
        ({"keep": "attention"}, r"no statistic 'attention'.*model\.pattern"),
        ({"keep": []}, "keep is empty"),
        ({"layers": [7]}, "no layer 7: there are 3"),
        ({"heads": slice(9, 12)}, "chooses none of the 4"),
        ({"steps": 99}, "no step 99"),
        ({"dtype": "int8"}, "float32 or float16"),
        ({"groups": "mine"}, "groups = 'mine'"),
        ({"top": 0}, "top = 0"),
        ({"batch_size": 0}, "batch_size = 0"),
    ]:
        with pytest.raises(fs.UsageError, match=words):
            llada.trace("Hello", fs.Confidence(length=4, steps=2), **options)


def test_large_trace_gives_a_warning(llada, monkeypatch):
    monkeypatch.setattr("floatscope.recording.recorder._LARGE", 1000)
    with pytest.warns(UserWarning, match="will need about .* of memory"):
        llada.trace("Hello", fs.Confidence(length=4, steps=2))


def test_progress_counts_every_step(llada):
    seen = []
    llada.trace(
        ["a", "b", "c"],
        fs.Confidence(length=4, steps=2),
        batch_size=2,
        progress=lambda d, t: seen.append((d, t)),
    )
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_unreached_steps_give_a_trace_without_statistics(models):
    """Sampling may end early: such a trace says so and holds no statistics."""
    model = models["LLaDA"]
    with pytest.warns(UserWarning, match="none of the chosen steps was reached"):
        trace = model.trace("Hi", fs.samplers.Threshold(length=8, threshold=0.0), steps=-1)
    assert trace.n_steps == 1
    assert trace.data.sizes["step"] == 0
    with pytest.raises(fs.TraceError, match="contains no statistics: decoding ended after 1 steps"):
        _ = trace.mass


def test_ids_of_any_integer_type(llada):
    ids = list(np.array([5, 6, 7]))
    assert llada.generate(ids, fs.Confidence(length=4, steps=2)).prompt.ids == (5, 6, 7)


def test_a_reversed_choice_is_put_in_order(models):
    """Arrays and their coordinates agree whichever way heads and layers are named."""
    model = models["LLaDA"]
    sampler = fs.Confidence(length=4, steps=1)
    whole = model.trace("Hello there", sampler)
    back = model.trace(
        "Hello there", sampler, heads=slice(None, None, -1), layers=slice(None, None, -1)
    )
    for head in (0, 3):
        np.testing.assert_array_equal(
            back.entropy.sel(head=head, layer=2), whole.entropy.sel(head=head, layer=2)
        )


def test_keys_of_rows_are_the_same_alone_and_in_a_batch(models):
    """A row that sees fewer keys than asked for names no others."""
    model = models["Llama"]
    sampler = fs.Autoregressive(length=2, stop_at_eos=False)
    alone = model.trace("Hi", sampler)
    padded = model.trace(["Hello there, how are you?", "Hi"], sampler)[1]
    nothing = (alone.rows["row_weight"] == 0).values
    assert nothing.any()
    for trace in (alone, padded):
        assert (trace.rows["row_key"].values[nothing] == -1).all()


def test_rows_of_prompts_that_reveal_unequal_numbers(exact):
    model = exact["LLaDA"]
    sampler = fs.samplers.Threshold(length=8, threshold=0.05)
    prompts = ["Hello there, how are you?", "Hi", "And now something else"]
    together = model.trace(prompts, sampler)
    counts = [np.bincount(t.rows["event_step"].values, minlength=9) for t in together]
    assert any(len(set(column)) > 1 for column in np.stack(counts).T)  # unequal at some step
    for prompt, trace in zip(prompts, together, strict=True):
        alone = model.trace(prompt, sampler)
        np.testing.assert_allclose(
            trace.rows["row_weight"], alone.rows["row_weight"], rtol=1e-4, atol=1e-6
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("inference", [True, False])
def test_cpu_lse_capture_leaves_attention_output_unchanged(dtype, inference):
    """Bit for bit, whatever the mask; and the log-sum-exp is that of the scores."""
    from floatscope.attention.lse_capture import CpuLseCapture, attend
    from floatscope.models import attention_hook

    sdpa = torch.nn.functional.scaled_dot_product_attention
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(2, n, 9, 8, generator=generator).to(dtype) for n in (4, 2, 2))
    seen = torch.rand(2, 1, 9, 9, generator=generator) < 0.5
    seen[..., 0] = True
    numbers = torch.randn(2, 4, 9, 9, generator=generator).to(dtype)
    for asked in (
        *({}, {"is_causal": True}, {"attn_mask": seen}, {"attn_mask": numbers}),
        {"attn_mask": seen, "scale": 0.7},
    ):
        asked = {"enable_gqa": True, **asked}
        with torch.inference_mode(inference):
            stock = sdpa(query, key, value, **asked)
            heard = attend(query, key, value, **asked)
        assert torch.equal(stock, heard)
        score = query.double() @ key.double().repeat_interleave(2, 1).mT
        score = score * asked.get("scale", 8**-0.5)
        if "is_causal" in asked:
            score = score.masked_fill(~torch.ones(9, 9, dtype=torch.bool).tril(), -torch.inf)
        mask = asked.get("attn_mask")
        if mask is not None:
            added = torch.zeros(seen.shape).masked_fill(~seen, -torch.inf)
            score = score + (added if mask is seen else mask.double())
        lse = CpuLseCapture(
            attention_hook.Call(0, torch.nn.Identity(), query, key, value, None, False, 1.0)
        ).lse(query)
        assert lse is not None
        near = 2e-2 if dtype is torch.bfloat16 else 1e-5
        torch.testing.assert_close(lse.double(), score.logsumexp(-1), rtol=near, atol=near)


def test_lse_capture_returns_none_without_a_kernel():
    """SDPA's plain arithmetic, which keeps no log-sum-exp, gives what it gives."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    from floatscope.attention.lse_capture import CpuLseCapture
    from floatscope.models import attention_hook

    q = torch.randn(1, 2, 5, 8)
    call = attention_hook.Call(0, torch.nn.Identity(), q, q, q, None, False, 8**-0.5)
    with torch.inference_mode(), sdpa_kernel(SDPBackend.MATH):
        stock = attention_hook.compute_attention(call)
        with CpuLseCapture(call) as ear:
            heard = attention_hook.compute_attention(call)
    assert torch.equal(stock, heard) and ear.lse(q) is None


@pytest.mark.parametrize("mask", [None, "some"])
@pytest.mark.parametrize("heads", [4, 2])
def test_lse_capture_patches_the_transformers_function(mask, heads):
    """Its code, whatever it does around SDPA; afterwards the call is as it was."""
    from floatscope.attention.lse_capture import CpuLseCapture
    from floatscope.models import attention_hook

    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(2, n, 9, 8, generator=generator) for n in (4, heads, heads))
    module = torch.nn.Identity()
    module.num_key_value_groups = 4 // heads
    seen = None if mask is None else torch.ones(2, 1, 9, 9, dtype=torch.bool).tril(2)
    call = attention_hook.Call(0, module, query, key, value, seen, mask is None, 0.3)
    with torch.inference_mode():
        stock = attention_hook.compute_attention(call)
        with CpuLseCapture(call) as ear:
            heard = attention_hook.compute_attention(call)
    assert torch.equal(stock, heard) and call.attention is None
    assert ear.lse(query) is not None and ear.lse(query) is None  # it is given once


@pytest.mark.parametrize("family", ["LLaDA", "Dream"])
def test_layers_measured_together_equal_single_layers(models, family, monkeypatch):
    """With room for all of them, or for one at a time; and the room is given back."""
    from floatscope.attention.cpu import layer_batch

    model, sampler = models[family], fs.Confidence(steps=2, length=4)
    keep, found = ["mass", "groups", "entropy", "flow"], []
    for short, room in ((0, 1), (1 << 17, 1 << 21), (1 << 17, 1)):
        monkeypatch.setattr(layer_batch, "_SHORT", short)
        monkeypatch.setattr(layer_batch, "_ROOM", room)
        monkeypatch.setattr(layer_batch, "_thread_memory", threading.local())
        both = model.trace(["Hello there", "there Hello"], sampler, keep=keep, heads=[1, 2])
        found.append(both[1])
        assert (getattr(layer_batch._thread_memory, "room", None) is not None) == (short > 0)
    for name in ("column_sum", "entropy", "flow"):
        alone, *others = (trace.data[name].values for trace in found)
        for other in others:
            np.testing.assert_allclose(other, alone, rtol=2e-6, atol=1e-6)
