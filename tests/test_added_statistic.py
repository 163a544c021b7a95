"""A statistic from outside: a row of the table and its function, and every consumer knows it."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import floatscope as fs
from floatscope.models import attention_hook, tiny
from floatscope.statistics import STATISTICS, Array, Join, Statistic

HEAD_KEY = ("layer", "head", "key")


def measure(view, call):
    """For each key its largest channel; for each row the same of its query; Σ ‖q_i‖ over its viewers."""
    heads = view.query.shape[1] // view.key.shape[1]
    key = view.key.float().abs().amax(-1).repeat_interleave(heads, dim=1)  # (b, h, k)
    counts = (view.labels.group >= 0).float()[:, None, :, None]  # (b, 1, q, 1)
    sees = view.visible.matrix[:, None].float() * counts  # (b, 1, q, k)
    norm = view.query.float().norm(dim=-1)[..., None]  # (b, h, q, 1)
    return {
        "seen_by": sees[:, 0].sum(1),
        "viewer_norm": (norm * sees).sum(2),
        "query_peak": view.query.float().abs().amax(-1),
        "key_peak": key,
    }


@pytest.fixture
def peaks():
    row = Statistic(
        "peaks",
        "largest channels of keys and queries",
        (
            Array("seen_by", ("layer", "key"), Join.SUM, stored=False),
            Array("viewer_norm", HEAD_KEY, Join.SUM, over="seen_by"),
            Array("query_peak", ("layer", "head", "query"), Join.ROWS),
            Array("key_peak", HEAD_KEY, Join.LATEST),
        ),
        on_request=True,
        compute=measure,
    )
    fs.register(row)
    yield row
    STATISTICS.remove("peaks")


def looked_at(model, ids):
    """q and k of every layer in one forward over the whole text."""
    calls = {}

    def note(call, proceed):
        calls[call.layer] = call
        return proceed(call)

    with attention_hook.attach(model.net, note):
        model.logits(torch.tensor([ids]))
    return calls


@pytest.mark.parametrize("family", ["LLaDA", "Dream", "Llama", "Qwen3"])
def test_an_added_statistic_is_recorded_joined_cut_and_stored(peaks, models, family, tmp_path):
    """Against q and k of a forward without a cache, in batches with padding, at the last kept step."""
    model = models[family]
    sampler = (
        fs.Confidence(length=6, steps=3) if model.is_diffusion else fs.Autoregressive(length=6)
    )
    keep = ("mass", "peaks")
    traces = model.trace(["Hello there", "A longer prompt than that"], sampler, keep=keep)
    for trace in traces:
        assert "seen_by" not in trace.data  # a count that only divides
        assert trace.data["viewer_norm"].dims == ("step", *HEAD_KEY)
        canvas = trace.canvas.values[int(trace.data["step"][-1])]
        ids = canvas[canvas >= 0].tolist()
        size = len(ids)
        last = trace.data.isel(step=-1)
        for layer, call in looked_at(model, ids).items():
            query, key = call.query[0].float(), call.key[0].float()
            key = key.repeat_interleave(len(query) // len(key), dim=0)
            sees = model.visibility(size, size, torch.zeros(1, dtype=torch.long)).matrix[0].float()
            expected = {
                "key_peak": key.abs().amax(-1),
                "query_peak": query.abs().amax(-1),
                "viewer_norm": (query.norm(dim=-1)[..., None] * sees).sum(1) / sees.sum(0),
            }
            for name, values in expected.items():
                found = last[name].isel(layer=layer).values
                np.testing.assert_allclose(found[:, :size], values, rtol=2e-4, atol=2e-4)
                assert np.isnan(found[:, size:]).all()
    saved = fs.Trace.load(traces[0].save(tmp_path / "saved.zarr"))
    np.testing.assert_array_equal(saved.data["key_peak"], traces[0].data["key_peak"])
    streamed = model.trace("Hello there", sampler, keep=keep, to=tmp_path / "streamed.zarr")
    assert streamed.data["query_peak"].dims == ("step", "layer", "head", "query")


def test_rows_of_finished_blocks_join_those_of_the_block_being_decided(peaks, tmp_path):
    """The same with the exact cache, whose forwards hold one block's rows, and without one."""
    path = tiny.write("Qwen3", tmp_path / "model", tiny.Shape(layers=2, context=128))
    rule = {"direction": "block-causal", "block": 4, "mask_id": tiny.MASK, "shift": 0}
    model = fs.load(path, dtype="float64", **rule)
    sampler, keep = fs.Confidence(length=8, steps=8), ("mass", "peaks")
    prompts = ["Hi", "Hello there", "Good morning, all of you"]
    plain = model.trace(prompts, sampler, keep=keep, cache=None)
    cached = model.trace(prompts, sampler, keep=keep, cache="exact")
    for one, other in zip(cached, plain, strict=True):
        for name in ("viewer_norm", "query_peak", "key_peak"):
            np.testing.assert_allclose(one.data[name], other.data[name], atol=1e-5, err_msg=name)


def test_chosen_heads_and_layers_of_an_added_statistic(peaks, models):
    model, sampler = models["LLaDA"], fs.Confidence(length=4, steps=2)
    whole = model.trace("Hello", sampler, keep=("peaks", "rollout"))
    part = model.trace("Hello", sampler, keep=("peaks", "rollout"), heads=[1, 3], layers=[2])
    for name in ("key_peak", "query_peak", "viewer_norm"):
        chosen = whole.data[name].isel(head=[1, 3], layer=[2])
        np.testing.assert_array_equal(part.data[name], chosen)


def test_regions_and_divisors_of_an_added_statistic(models):
    """One axis of regions is in the order of the trace; a stored array may divide another."""

    def count(view, call):
        keys = view.labels.in_region.sum(1)  # (b, r)
        ones = torch.ones(len(keys), view.key.shape[2])
        return {"width": 2 * ones, "twice": 4 * ones, "keys_in": keys}

    row = Statistic(
        "counts",
        "keys of each region",
        (
            Array("width", ("layer", "key"), Join.LATEST),
            Array("twice", ("layer", "key"), Join.LATEST, over="width"),
            Array("keys_in", ("layer", "target"), Join.LATEST),
        ),
        compute=count,
    )
    fs.register(row)
    try:
        prompt = fs.Prompt.rag("Who?", ["Ada did it.", "No, Bob."], gold=0)
        trace = models["LLaDA"].trace(
            prompt, fs.Confidence(length=6, steps=2), keep=("mass", "counts")
        )
    finally:
        STATISTICS.remove("counts")
    first = trace.data.isel(step=0, layer=0)
    assert (first["width"] == 2).all() and (first["twice"] == 2).all()
    regions = trace.data["region"].values[: int(trace.info["prompt_length"])].tolist()
    for name in trace.data["target"].values.tolist():
        expected = {"masked": 6, "revealed": 0}.get(name, regions.count(name))
        assert float(first["keys_in"].sel(target=name)) == expected


@pytest.mark.parametrize(
    "wrong",
    [
        lambda view, call: {"own": view.key.norm(dim=-1)[..., :3]},  # of three keys
        lambda view, call: {"other": view.key.norm(dim=-1)},
        lambda view, call: {"own": torch.ones(())},
        lambda view, call: view.key.norm(dim=-1),
    ],
    ids=["too short", "another name", "one number", "no mapping"],
)
def test_arrays_of_a_user_function_are_checked(models, wrong):
    fs.register(Statistic("mine", "", (Array("own", HEAD_KEY, Join.LATEST),), compute=wrong))
    try:
        with pytest.raises(fs.CaptureError, match="statistic 'mine' gave own"):
            models["LLaDA"].trace("Hi", fs.Confidence(length=4, steps=2), keep=("mine",))
    finally:
        STATISTICS.remove("mine")


def test_names_that_are_taken_and_rows_without_a_function_are_refused():
    with pytest.raises(fs.UsageError, match="has no function"):
        fs.register(Statistic("mine", "", (Array("mine", ("layer", "key")),)))
    with pytest.raises(fs.UsageError, match="'entropy' is already a statistic of Floatscope"):
        fs.register(Statistic("mine", "", (Array("entropy", ("layer", "key")),), compute=measure))
    with pytest.raises(fs.UsageError, match="'mass' is already a statistic of Floatscope"):
        fs.register(Statistic("mass", "", (Array("own", ("layer", "key")),), compute=measure))
    with pytest.raises(fs.UsageError, match="asks for attention weights"):
        row = Statistic("mine", "", (Array("own", ("layer", "key")),), compute=measure)
        fs.register(replace(row, needs_weights=True))
    assert "mine" not in STATISTICS
