"""Head means and sums of entropies, reduced on the model's device: those of the rows and heads themselves."""

import numpy as np
import pytest
import torch
from tiny_models import FAMILIES, sampler_for

import floatscope as fs
from floatscope.models import tiny

PROMPTS = ["Hello there", "A longer prompt than that", "Hi"]
KEEP = ("mass", "groups", "head_mean", "entropy", "entropy_mean")


def compare(trace):
    data = trace.data
    mean = data["column_sum"].mean("head", skipna=False)
    np.testing.assert_allclose(data["column_mean"].transpose(*mean.dims), mean, atol=1e-5)
    answer, masked = data["region"].values == "answer", data["masked"].values  # (key,), (step, key)
    kinds = {"masked": answer & masked, "revealed": answer & ~masked}
    kinds["prompt"] = np.broadcast_to(~answer, masked.shape)
    entropy = data["entropy"].transpose("step", "layer", "head", "query").values
    for name, rows in kinds.items():
        there = rows[:, None, None] & ~np.isnan(entropy)
        total = np.where(there, entropy, 0).sum(-1)
        found = data["entropy_sum"].sel(group=name).transpose("step", "layer", "head")
        np.testing.assert_allclose(found, total, atol=2e-5)
        counted = data["entropy_rows"].sel(group=name).transpose("step", "layer")
        np.testing.assert_array_equal(counted, there[:, :, 0].sum(-1))


@pytest.mark.parametrize("family", FAMILIES)
def test_recorded_means_equal_means_of_the_trace(models, family):
    """Batches with padding; causal models with their cache."""
    model = models[family]
    for trace in model.trace(PROMPTS, sampler_for(model), keep=KEEP):
        compare(trace)


@pytest.mark.parametrize("cache", [None, "exact"])
def test_rows_of_finished_blocks_are_counted_once(tmp_path, cache):
    path = tiny.write("Qwen3", tmp_path / "model", tiny.Shape(layers=2, context=128))
    rule = {"direction": "block-causal", "block": 4, "mask_id": tiny.MASK, "shift": 0}
    model = fs.load(path, dtype="float64", **rule)
    for trace in model.trace(PROMPTS, fs.Confidence(length=8, steps=8), keep=KEEP, cache=cache):
        compare(trace)


@pytest.mark.parametrize("cache", ["prefix", "dual", "dkv"])
def test_rows_that_an_approximate_cache_leaves_out_are_not_counted(models, cache):
    sampler = fs.Confidence(length=8, steps=8, block_length=4)
    for trace in models["LLaDA"].trace(PROMPTS, sampler, keep=KEEP, cache=cache):
        compare(trace)


def test_a_choice_of_heads_is_averaged_over_those(models):
    model = models["LLaDA"]
    trace = model.trace("Hello", fs.Confidence(length=4, steps=2), keep=KEEP, heads=[1, 3])
    compare(trace)


@pytest.mark.parametrize("family", ["LLaDA", "Llama"])
def test_statistics_are_exact_where_the_network_runs_under_autocast(models, family):
    """A network in lower precision is the user's choice; its statistics are in float32 all the same."""
    model = models[family]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        traces = model.trace(PROMPTS, sampler_for(model), keep=(*KEEP, "flow"))
    for trace in traces:
        compare(trace)
        # To the digits of a log-sum-exp of scores in bfloat16; sums in bfloat16 would be off by 1e-3.
        np.testing.assert_allclose(trace.mass.sum("key"), 1, atol=5e-5)
        np.testing.assert_allclose(trace.flow.sum("target").max(), 1, atol=5e-5)
