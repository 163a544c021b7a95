"""KeepColumns: masked rows see the strongest keys of an earlier step, and no others."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from tiny_models import DIFFUSION

import floatscope as fs
from floatscope.interventions.parse import intervention_of
from floatscope.measures.reused_keys import deciding_mass, present_keys, set_sizes, top_sets

PROMPT = "The cat sat on the mat, and the dog lay by the door."
SAMPLER = fs.Confidence(length=8, steps=4)


def traced(model, sampler=SAMPLER, **settings):
    with fs.interventions.KeepColumns(**settings)(model):
        return model.trace(PROMPT, sampler, keep=("groups",))


def seen_keys(trace):
    """Which keys the masked rows attend to: (step, layer, head, key)."""
    return deciding_mass(trace).values > 0


def strongest(trace, share):
    """The strongest keys of every step by the definition of the measures: (step, layer, head, key)."""
    mass = deciding_mass(trace).transpose("layer", "head", "step", "key").values
    present = present_keys(trace)
    sets = top_sets(mass, present, set_sizes(present, (share,)))[..., 0, :]
    return np.moveaxis(sets, 2, 0)


@pytest.mark.parametrize("family", DIFFUSION)
def test_the_whole_budget_changes_no_bit(models, family):
    model = models[family]
    plain = model.trace(PROMPT, SAMPLER, keep=("groups",))
    kept = traced(model, budget=1.0)
    np.testing.assert_array_equal(kept.canvas, plain.canvas)
    np.testing.assert_array_equal(kept.confidence, plain.confidence)
    np.testing.assert_array_equal(kept.data["column_sum"], plain.data["column_sum"])


@pytest.mark.parametrize("family", DIFFUSION)
@pytest.mark.parametrize("share", [0.1, 0.5])
def test_the_first_layer_keeps_the_strongest_keys_of_the_plain_forward(models, family, share):
    """Below the first layer nothing is hidden, so its choice is that of the unrestricted decoding."""
    model = models[family]
    plain = model.trace(PROMPT, fs.Confidence(length=8, steps=1), keep=("groups",))
    kept = traced(model, fs.Confidence(length=8, steps=1), budget=share)
    np.testing.assert_array_equal(seen_keys(kept)[0, 0], strongest(plain, share)[0, 0])
    assert (seen_keys(kept).sum(-1) == int(np.ceil(share * kept.data.sizes["key"]))).all()


@pytest.mark.parametrize(
    ("chosen_at", "refresh", "chosen"),
    [
        ("block start", None, [0, 0, 0, 0]),
        ("block start", 2, [0, 0, 2, 2]),
        (1, None, [None, 1, 1, 1]),
        (1, 2, [None, 1, 1, 3]),
        ("every", None, [0, 1, 2, 3]),
    ],
)
def test_sets_stay_until_they_are_chosen_again(llada, chosen_at, refresh, chosen):
    seen = seen_keys(traced(llada, budget=0.2, chosen_at=chosen_at, refresh=refresh))
    for step, reference in enumerate(chosen):
        if reference is None:
            assert seen[step].all()
        else:
            np.testing.assert_array_equal(seen[step], seen[reference])
    changes = [not np.array_equal(seen[i], seen[i + 1]) for i in range(3)]
    assert changes == [a != b for a, b in pairwise(chosen)]


def test_every_block_chooses_at_its_first_step(llada):
    sampler = fs.Confidence(length=8, steps=4, block_length=4)
    seen = seen_keys(traced(llada, sampler, budget=0.2))
    np.testing.assert_array_equal(seen[0], seen[1])
    np.testing.assert_array_equal(seen[2], seen[3])
    assert not np.array_equal(seen[1], seen[2])


def test_rows_that_are_not_masked_see_every_key(llada):
    trace = traced(llada, budget=0.1)
    assert (trace.mass_from("prompt").isel(step=1) > 0).all()


def test_hidden_share_is_what_the_hidden_keys_would_have_held(llada):
    """In the first layer, the attention of the plain forward on the keys that were left out."""
    one = fs.Confidence(length=8, steps=1)
    plain = llada.trace(PROMPT, one, keep=("groups",))
    mass = deciding_mass(plain).isel(step=0, layer=0).values
    expected = np.where(strongest(plain, 0.2)[0, 0], 0, mass).sum(-1).mean()
    with fs.interventions.KeepColumns(budget=0.2, layers=0)(llada):
        decoding = llada.generate(PROMPT, one)
    assert decoding.info["hidden_share"] == pytest.approx(expected, abs=1e-5)


def test_controls_keep_as_many_keys_or_as_much_attention(llada):
    one = fs.Confidence(length=8, steps=1)
    plain = llada.trace(PROMPT, one, keep=("groups",))
    mass = deciding_mass(plain).isel(step=0, layer=0).values
    chosen = strongest(plain, 0.2)[0, 0]
    random = seen_keys(traced(llada, one, budget=0.2, control="random"))[0, 0]
    assert (random.sum(-1) == chosen.sum(-1)).all() and not np.array_equal(random, chosen)
    heavy = seen_keys(traced(llada, one, budget=0.2, control="mass"))[0, 0]
    wanted, held = (np.where(keys, mass, 0).sum(-1) for keys in (chosen, heavy))
    assert (held >= wanted - 1e-6).all()  # the last key that was drawn may exceed it
    assert (held - wanted <= mass.max(-1) + 1e-6).all() and (heavy.sum(-1) > chosen.sum(-1)).any()
    again = seen_keys(traced(llada, one, budget=0.2, control="random"))[0, 0]
    np.testing.assert_array_equal(random, again)


def test_budgets_by_layer_and_head(llada):
    shares = np.linspace(0.1, 0.9, llada.n_layers * llada.n_heads).reshape(
        llada.n_layers, llada.n_heads
    )
    trace = traced(llada, fs.Confidence(length=8, steps=1), budget=shares.tolist())
    expected = np.ceil(shares * trace.data.sizes["key"] - 1e-9)
    np.testing.assert_array_equal(seen_keys(trace)[0].sum(-1), expected)
    by_layer = traced(
        llada, fs.Confidence(length=8, steps=1), budget=[0.1, 0.5, 1.0][: llada.n_layers]
    )
    assert np.unique(seen_keys(by_layer)[0].sum(-1), axis=1).shape[1] == 1


def test_a_batch_decodes_as_each_prompt_alone(exact):
    model = exact["LLaDA"]
    prompts = [PROMPT, "Hello"]
    for control in (None, "random"):
        with fs.interventions.KeepColumns(budget=0.3, control=control)(model):
            together = model.generate(prompts, SAMPLER)
            alone = [model.generate(prompt, SAMPLER) for prompt in prompts]
        assert [one.text for one in together] == [one.text for one in alone]


def test_a_model_in_blocks_decodes_with_its_cache(tmp_path):
    from floatscope.models import tiny

    model = fs.load(tiny.write("SDAR", tmp_path / "SDAR"), block=4)
    trace = traced(model, fs.Confidence(length=8, steps=8), budget=0.2)
    masked = trace.data["masked"].transpose("step", "key").values
    sizes = seen_keys(trace).sum(-1)
    for step, rows in enumerate(masked):
        if rows.any():
            present = int((trace.data["visible"].values[step] > 0).sum())
            assert sizes[step].max() <= np.ceil(0.2 * present)


@pytest.mark.parametrize(
    "settings",
    [
        {"budget": 0},
        {"budget": 1.5},
        {"budget": [0.1]},
        {"chosen_at": "later"},
        {"refresh": 0},
        {"control": "matched"},
    ],
)
def test_impossible_settings_are_refused_with_a_remedy(llada, settings):
    with pytest.raises(fs.UsageError) as error, fs.interventions.KeepColumns(**settings)(llada):
        pass
    assert error.value.remedy


def test_a_causal_model_is_refused(llama):
    with pytest.raises(fs.UsageError, match="MaskColumns"), fs.interventions.KeepColumns()(llama):
        pass


def test_it_can_be_typed(llada):
    assert intervention_of(
        "keep-columns,budget=0.5,chosen_at=every"
    ) == fs.interventions.KeepColumns(budget=0.5, chosen_at="every")
    assert torch.equal(
        fs.interventions.KeepColumns(budget=0.5).shares(llada),
        torch.full((llada.n_layers, llada.n_heads), 0.5, dtype=torch.float64),
    )
