"""Patch: a run put into itself changes nothing; put into another it is what plain torch says it is."""

import numpy as np
import pytest
import torch
from plain_forward import agrees, plain
from tiny_models import FAMILIES, sampler_for

import floatscope as fs
from floatscope.errors import UsageError
from floatscope.interventions import alignment
from floatscope.models import attention_hook
from floatscope.sequences.prompt import Encoded

CLEAN = fs.Prompt.rag("Who?", ["A first text.", "Jane, far away."], gold=1)
OTHER = fs.Prompt.rag("Who?", ["A first text.", "Emma, by a sea."], gold=1)  # of the same length
LONGER = fs.Prompt.rag("Who?", ["A first text.", "Emma, at home and by a sea."], gold=1)
KINDS = ("head", "attention", "residual")


def brief(model):
    return sampler_for(model, length=3, steps=2)


@pytest.fixture(scope="module")
def clean(models):
    return {name: fs.interventions.PatchSource.of(m, CLEAN, brief(m)) for name, m in models.items()}


@pytest.fixture(scope="module")
def untouched(models):
    return {name: model.trace(CLEAN, brief(model)) for name, model in models.items()}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("what", KINDS)
def test_a_run_put_into_itself_changes_nothing_bit_for_bit(models, clean, untouched, family, what):
    model, before = models[family], untouched[family]
    with fs.interventions.Patch(what, clean[family])(model):
        during = model.trace(CLEAN, brief(model))
    assert set(before.data.data_vars) == set(during.data.data_vars)
    for name in before.data.data_vars:
        np.testing.assert_array_equal(before.data[name], during.data[name], err_msg=name)
    assert not model.edits and not attention_hook._handlers
    assert not any(block._forward_pre_hooks for block in model.net.model.layers)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_layers_residual_restores_the_clean_answer(models, clean, family):
    """In every step, to the last bit of its confidence; without the patch it is another answer."""
    model, sampler = models[family], brief(models[family])
    wanted, plainly = model.generate(CLEAN, sampler), model.generate(OTHER, sampler)
    with fs.interventions.Patch("residual", clean[family])(model):
        restored = model.generate(OTHER, sampler)
    start = len(wanted.prompt.ids)
    np.testing.assert_array_equal(restored.canvas[:, start:], wanted.canvas[:, start:])
    np.testing.assert_array_equal(restored.confidence, wanted.confidence)
    assert not np.array_equal(plainly.confidence, wanted.confidence, equal_nan=True)
    assert wanted.canvas[0, :start].tolist() != restored.canvas[0, :start].tolist()
    rows = start + 3 if model.is_diffusion else None
    assert restored.info["patched_rows"] == (2 * rows if rows else start + 2)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("what", KINDS)
@pytest.mark.parametrize("align", ["positions", "regions"])
def test_a_patch_equals_plain_torch(exact, family, what, align):
    """Layers 1 and 2, the gold passage and the answer (from its end, where spans differ in length)."""
    model, sampler = exact[family], brief(exact[family])
    prompt = LONGER if align == "regions" and what != "attention" else OTHER
    done = model.generate(CLEAN, sampler)
    theirs = []  # by step: inputs, attention
    with torch.inference_mode():
        for t in range(done.steps):
            ids = [int(i) for i in done.canvas[t] if i >= 0]
            theirs.append(plain(model, ids)[1:])
    mine, source = model.encode(prompt), model.encode(CLEAN)
    first, last = (min(mine.positions("passage 2")), max(mine.positions("passage 2")) + 1)
    there = max(source.positions("passage 2")) + 1
    width = min(last - first, len(source.positions("passage 2")))

    def pairs(ids):
        """(mine, theirs) of what is patched."""
        some = [(last - n, there - n) for n in range(1, width + 1)]
        return some + [
            (len(mine.ids) + n, len(source.ids) + n) for n in range(len(ids) - len(mine.ids))
        ]

    def step_of(step, row):
        """With a cache a row is computed once, at its own step."""
        return step if model.is_diffusion else max(0, row - len(source.ids) + 1)

    def edit(step, ids, layer, weights, value, seen):
        weights, out = weights.clone(), weights @ value
        for row, other in pairs(ids) if layer in (1, 2) and what != "residual" else ():
            _, attention = theirs[step_of(step, other)]
            _, their_weights, their_value = attention[layer]
            for head in (1, 2):
                line = their_weights[head, other]
                if what == "head":
                    out[head, row] = line @ their_value[head]
                else:
                    out[head, row] = line @ value[head, : len(line)]
        return out

    def residual(step, ids, layer, x):
        x = x.clone()
        for row, other in pairs(ids) if layer in (1, 2) and what == "residual" else ():
            x[row] = theirs[step_of(step, other)][0][layer][other]
        return x

    patch = fs.interventions.Patch(
        what,
        fs.interventions.PatchSource.of(model, CLEAN, sampler, keep=what),
        layers=[1, 2],
        heads=None if what == "residual" else [1, 2],
        regions=("gold", "answer"),
        align=align,
    )
    agrees(model, patch, prompt, sampler, edit, residual)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_patch_of_one_step_leaves_other_steps_unchanged(exact, family):
    """At the second step alone: the first is the run's own."""
    model, sampler = exact[family], brief(exact[family])
    source = fs.interventions.PatchSource.of(model, CLEAN, sampler, keep="head", layers=1, steps=1)
    assert set(source.first_row) == {1}
    plainly = model.generate(OTHER, sampler)
    with fs.interventions.Patch("head", source, layers=1)(model):
        patched = model.generate(OTHER, sampler)
    np.testing.assert_array_equal(plainly.confidence[0], patched.confidence[0])
    assert not np.array_equal(plainly.confidence[1], patched.confidence[1], equal_nan=True)
    with pytest.raises(UsageError, match="did not record layer 0"):
        fs.interventions.Patch("head", source).check(model)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("what", KINDS)
def test_a_batch_with_padding_is_patched_as_each_alone(exact, family, what):
    model, sampler = exact[family], brief(exact[family])
    align = "positions" if what == "attention" else "regions"
    prompts = [OTHER, CLEAN] if what == "attention" else [OTHER, LONGER]
    source = fs.interventions.PatchSource.of(model, CLEAN, sampler, keep=what)
    part = {} if what == "attention" else {"regions": ("gold", "question", "masked")}
    with fs.interventions.Combined(
        (
            fs.interventions.AblateHeads(((0, 0),)),
            fs.interventions.Patch(what, source, align=align, **part),
        )
    )(model):
        together = model.trace(prompts, sampler, keep=["mass"])
        alone = [model.trace(p, sampler, keep=["mass"]) for p in prompts]
    for one, other in zip(together, alone, strict=True):
        np.testing.assert_array_equal(one.canvas, other.canvas)
        np.testing.assert_allclose(one.mass, other.mass, atol=1e-6)
        assert len(one.interventions) == 2 and "source=PatchSource(" in one.interventions[1]


def test_the_intervention_listed_first_acts_first(models, clean):
    """On a layer's input: the second puts its own there. On what comes out, the first has the last word."""
    model, sampler = models["Dream"], brief(models["Dream"])
    one, other = clean["Dream"], fs.interventions.PatchSource.of(model, OTHER, sampler)
    for what, stays in (("residual", OTHER), ("head", CLEAN)):
        alone = fs.interventions.Patch(what, other if stays is OTHER else one)
        with alone(model):
            expected = model.generate(CLEAN, sampler)
        with fs.interventions.Combined(
            (fs.interventions.Patch(what, one), fs.interventions.Patch(what, other))
        )(model):
            both = model.generate(CLEAN, sampler)
        np.testing.assert_array_equal(both.confidence, expected.confidence)
        assert expected.info["patched_rows"] == both.info["patched_rows"] > 0
    with (
        fs.interventions.Patch("residual", other)(model),
        fs.interventions.Patch("residual", one)(model),
    ):
        nested = model.generate(OTHER, sampler)  # the inner `with` is the outer one of the chain
    plainly = model.generate(OTHER, sampler).confidence
    np.testing.assert_array_equal(nested.confidence, plainly)


def test_spans_correspond_in_order_and_from_their_ends():
    own = Encoded((1, 2, 3, 4, 5, 6), ("t", "a", "a", "t", "t", "b"))
    other = Encoded((9, 9, 9, 9, 9), ("t", "a", "t", "c", "t"))
    assert alignment.partners(own, other, "regions") == [0, -1, 1, -1, 2, -1]
    assert alignment.partners(own, own, "regions") == [0, 1, 2, 3, 4, 5]
    with pytest.raises(UsageError, match="align='regions'"):
        alignment.partners(own, other, "positions")


def test_the_unprompted_forward_of_guidance_is_not_patched(models):
    """Put into itself a guided run stays as it is: its second forward is not the recorded one."""
    model, sampler = models["LLaDA"], fs.Confidence(length=3, steps=2, cfg=1.0)
    source = fs.interventions.PatchSource.of(model, CLEAN, sampler)
    with fs.interventions.Patch("residual", source)(model):
        during = model.generate(CLEAN, sampler)
    np.testing.assert_array_equal(during.confidence, model.generate(CLEAN, sampler).confidence)


def test_invalid_patches_are_refused_with_a_remedy(models, clean):
    model, source = models["LLaDA"], clean["LLaDA"]
    few = fs.interventions.PatchSource.of(model, CLEAN, keep="head", layers=[0])
    assert few.nbytes < source.nbytes and "read" in repr(few)
    for wrong, says in (
        (fs.interventions.Patch("head"), r"PatchSource\.of"),
        (fs.interventions.Patch("value", source), "Use one of head, attention, residual"),
        (fs.interventions.Patch("residual", source, heads=1), "has no heads"),
        (fs.interventions.Patch("head", source, align="tokens"), "positions' or 'regions"),
        (fs.interventions.Patch("head", source, classes="verbs"), "no token class"),
        (fs.interventions.Patch("head", source, layers=9), "no layer 9"),
        (fs.interventions.Patch("residual", few, layers=0), "keep='residual'"),
    ):
        with pytest.raises(UsageError, match=says), wrong(model):
            raise AssertionError("in force")
    with (
        fs.interventions.Patch("head", source)(model),
        pytest.raises(UsageError, match="align='regions'"),
    ):
        model.generate(LONGER, brief(model))
    rows = fs.interventions.Patch("attention", source, align="regions")
    with rows(model), pytest.raises(UsageError, match="one to one"):
        model.generate(LONGER, brief(model))
    with pytest.raises(UsageError, match="Use some of"):
        fs.interventions.PatchSource.of(model, CLEAN, keep="values")
    with pytest.raises(UsageError, match="none of the steps"):
        fs.interventions.PatchSource.of(model, CLEAN, brief(model), keep="head", steps=50)
