"""Heads ablated, values masked, edges cut: each against plain torch in float64, on every family."""

import numpy as np
import pytest
import torch
from plain_forward import agrees, plain
from tiny_models import FAMILIES, sampler_for

import floatscope as fs
from floatscope.errors import UsageError
from floatscope.interventions.parse import intervention_of
from floatscope.models import attention_hook

PROMPT = fs.Prompt.rag("Who?", ["A first text.", "Jane, far away."], gold=1)
OTHERS = ["Something else, and longer than that.", "Short."]
HEADS = ((0, 1), (1, 3), (1, 0), (2, -1))


def brief(model):
    return sampler_for(model, length=3, steps=2)


# Heads


@pytest.fixture(scope="module")
def means(exact):
    return {name: fs.interventions.HeadMeans.of(model, OTHERS) for name, model in exact.items()}


def test_means_are_those_of_all_rows(exact):
    for family, model in exact.items():
        outputs = []

        def keep(layer, weights, value, seen, outputs=outputs):
            outputs.append((layer, weights @ value))
            return outputs[-1][1]

        with torch.inference_mode():
            for prompt in OTHERS:
                plain(model, model.encode(prompt).ids, keep)
        found = fs.interventions.HeadMeans.of(model, OTHERS)
        assert found.rows == sum(len(model.encode(p).ids) for p in OTHERS) and found.prompts == 2
        for layer in range(model.n_layers):
            rows = torch.cat([out for at, out in outputs if at == layer], 1)
            torch.testing.assert_close(found.mean[layer], rows.mean(1), atol=1e-10, rtol=1e-9)
        decoded = fs.interventions.HeadMeans.of(model, OTHERS, brief(model))
        grown = 2 * 3 * 2 if model.is_diffusion else 2 * 2  # two prompts, steps and their answers
        steps = 2 if model.is_diffusion else 1
        assert decoded.rows == steps * found.rows + grown, family


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("steps", [None, [1]])
def test_ablated_heads_put_out_zero_or_their_mean(exact, means, family, steps):
    model = exact[family]
    start = len(model.encode(PROMPT).ids)
    for to, reference in (("zero", None), ("mean", means[family])):

        def edit(step, ids, layer, weights, value, seen, reference=reference):
            out = weights @ value
            # With a cache a row is computed once, at its own step.
            own = [step if model.is_diffusion else max(0, r - start + 1) for r in range(len(ids))]
            rows = torch.tensor([steps is None or at in steps for at in own])
            for at, head in HEADS:
                if at == layer:
                    out[head, rows] = 0 if reference is None else reference.mean[layer, head]
            return out

        agrees(
            model,
            fs.interventions.AblateHeads(HEADS, to, steps, reference),
            PROMPT,
            brief(model),
            edit,
        )


@pytest.mark.parametrize("family", FAMILIES)
def test_resampled_heads_output_rows_of_another_prompt(exact, family):
    model = exact[family]
    prompts = [PROMPT, *OTHERS]  # the first is never drawn for itself
    reference = fs.interventions.HeadRows.of(model, prompts, heads=HEADS)
    spoken = []
    with torch.inference_mode():
        for prompt in OTHERS:
            plain(
                model,
                model.encode(prompt).ids,
                lambda layer, w, v, seen: (spoken.append((layer, w @ v)), w @ v)[1],
            )
    used, drawn = {}, {}

    def edit(step, ids, layer, weights, value, seen):
        """Which row it was is read off layer 0, and must be the same in all layers and heads."""
        out = weights @ value
        for at, head in HEADS:
            if at == layer:
                rows = [o[head] for n, o in spoken if n == layer]
                other, numbers = drawn["is"]
                out[head] = rows[other][numbers[: len(ids)]]
                used[layer, head] = True
        return out

    from floatscope.interventions.library.ablate_heads import Fills

    spec = fs.interventions.AblateHeads(HEADS, "resample", reference=reference, seed=4)
    other, noise = Fills(spec, model)._draw(model.encode(PROMPT).ids, reference)
    assert other in (1, 2)
    size = len(model.encode(OTHERS[other - 1]).ids)
    drawn["is"] = other - 1, (noise * size).long()
    agrees(model, spec, PROMPT, brief(model), edit)
    assert len(used) == len(HEADS)
    again = [
        Fills(fs.interventions.AblateHeads(HEADS, seed=s), model)._draw((1, 2), reference)[0]
        for s in range(20)
    ]
    assert set(again) == {0, 1, 2}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("to", ["mean", "resample"])
def test_a_batch_with_padding_is_ablated_as_each_alone(exact, means, family, to):
    model, sampler = exact[family], brief(exact[family])
    reference = (
        means[family] if to == "mean" else fs.interventions.HeadRows.of(model, OTHERS, heads=HEADS)
    )
    one = fs.interventions.AblateHeads(HEADS, to, reference=reference)
    prompts = [PROMPT, fs.Prompt.rag("So?", ["No."], gold=0)]
    cut = fs.interventions.CutEdges(queries="answer", keys="gold")
    with fs.interventions.Combined((one, fs.interventions.MaskValues(positions=0), cut))(model):
        together = model.trace(prompts, sampler, keep="mass")
        alone = [model.trace(prompt, sampler, keep="mass") for prompt in prompts]
    for one, other in zip(together, alone, strict=True):
        np.testing.assert_array_equal(one.canvas, other.canvas)
        np.testing.assert_allclose(one.mass, other.mass, atol=1e-6)
        assert [line.partition("(")[0] for line in one.interventions] == [
            "AblateHeads",
            "MaskValues",
            "CutEdges",
        ]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_mean_over_the_row_itself_changes_nothing(models, family):
    """A text of one token has one row, and its mean is that row: to the last bit, in every layer."""
    model = models[family]
    every = [(layer, head) for layer in range(model.n_layers) for head in range(model.n_heads)]
    for token in (5, 70):
        one = fs.interventions.AblateHeads(
            every, "mean", reference=fs.interventions.HeadMeans.of(model, [[token]])
        )
        ids = torch.tensor([[token]])
        with one(model):
            same, other = model.logits(ids), model.logits(ids + 1)
        assert torch.equal(same, model.logits(ids))
        assert not torch.equal(other, model.logits(ids + 1))


@pytest.mark.parametrize("family", FAMILIES)
def test_many_sets_in_one_forward_equal_separate_forwards(exact, means, family):
    model = exact[family]
    ids = [*model.encode(PROMPT).ids, *([model.mask_id] * 2 if model.is_diffusion else [7, 9])]
    rows = [3, len(ids) - 1]
    sets = [((2, 1),), (), ((0, 0), (2, 3)), ((1, 2),), ((1, 0), (1, 1), (2, 2)), ((2, 0),)]
    samples = fs.interventions.HeadRows.of(model, OTHERS)
    for to, reference in (("zero", None), ("mean", means[family]), ("resample", samples)):
        many = fs.interventions.ablated_each(model, ids, sets, rows, to=to, reference=reference)
        few = fs.interventions.ablated_each(
            model, ids, sets, rows, to=to, reference=reference, batch_size=2
        )
        torch.testing.assert_close(few, many, atol=1e-12, rtol=1e-12)
        for heads, found in zip(sets, many, strict=True):
            if not heads:
                expected = model.logits(torch.tensor([ids]))[0, rows]
            else:
                expected = _read_logits(
                    model, ids, rows, fs.interventions.AblateHeads(heads, to, None, reference)
                )
            torch.testing.assert_close(found, expected, atol=1e-12, rtol=1e-12)
    assert not attention_hook._handlers and not any(
        b._forward_pre_hooks for b in model.net.model.layers
    )


def _read_logits(model, ids, rows, intervention):
    """Of one forward over a text with the intervention in force, as reading does it."""
    from floatscope.decode.state import State, notify_edits
    from floatscope.sequences.prompt import Encoded

    prompt = Encoded(tuple(ids), ("prompt",) * len(ids))
    canvas = torch.tensor([ids])
    with intervention(model), torch.inference_mode():
        state = State.build(model, [prompt], canvas, (len(ids), len(ids)), prompt_end=len(ids))
        with notify_edits(model, state):
            return model.forward(canvas, torch.tensor(rows), state.visible)[0]


def test_lower_layers_are_computed_once(models):
    model, seen = models["LLaDA"], []

    def look(call, proceed):
        seen.append(len(call.query))
        return proceed(call)

    sets = [((2, h),) for h in range(4)] + [((1, 0),), ()]
    with attention_hook.attach(model.net, look):
        fs.interventions.ablated_each(model, [5, 6, 7], sets, [2])
        assert seen == [1, 1, 1, 1, 5]  # the clean one, then layers 1 and 2
        del seen[:]
        fs.interventions.ablated_each(model, [5, 6, 7], sets, [2], batch_size=2)
    assert seen == [1, 1, 1, 1, 2, 2, 1]
    assert not any("forward" in vars(block) for block in model.net.model.layers)


# Values


def chosen(model, ids, test):
    """Positions of the prompt and the answer by a test of (position, region), computed by hand."""
    encoded = model.encode(PROMPT)
    regions = [*encoded.regions, *["answer"] * (len(ids) - len(encoded.ids))]
    return torch.tensor([test(at, region) for at, region in enumerate(regions)])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("to", ["zero", "mean"])
@pytest.mark.parametrize("heads", [None, [1, 2]])
def test_masked_values_vanish_and_weights_stay(exact, family, to, heads):
    """Heads 1 and 2 share keys and values with others in the families with grouped heads."""
    model = exact[family]

    def edit(step, ids, layer, weights, value, seen):
        out, gone = weights @ value, chosen(model, ids, lambda at, r: r == "passage 2" or at == 0)
        fill = torch.zeros_like(value)
        if to == "mean":
            fill = (seen / seen.sum(-1, keepdim=True).double()) @ value  # (h, q, d)
        other = weights[..., ~gone] @ value[:, ~gone]
        other = other + weights[..., gone].sum(-1, keepdim=True) * fill
        which = torch.tensor(
            [layer in (0, 2) and (not heads or h in heads) for h in range(len(out))]
        )
        return torch.where(which[:, None, None], other, out)

    gold = fs.interventions.MaskValues(regions="gold", to=to, heads=heads, layers=[0, 2])
    first = fs.interventions.MaskValues(positions=0, to=to, heads=heads, layers=[0, 2])
    agrees(model, fs.interventions.Combined((gold, first)), PROMPT, brief(model), edit)


def test_the_weights_of_a_layer_stay_while_its_values_go(models):
    """In the first masked layer a trace sees the very same attention; above it, another."""
    for model in models.values():
        before = model.read(PROMPT, keep=["mass", "value_norm"])
        with fs.interventions.MaskValues(regions="gold", layers=slice(1, None)).in_force(model):
            after = model.read(PROMPT, keep=["mass", "value_norm"])
        for layer in (0, 1):
            same = before.mass.sel(layer=layer), after.mass.sel(layer=layer)
            np.testing.assert_allclose(*same, atol=1e-6)
        assert not np.allclose(before.mass.sel(layer=2), after.mass.sel(layer=2), atol=1e-5)


# Edges


@pytest.mark.parametrize("family", FAMILIES)
def test_edges_are_cut_at_both_ends(exact, family):
    """From function words of the question, and the answer's rows, to the gold passage and the start."""
    model = exact[family]
    words = [model.token_texts([i])[0] for i in model.encode(PROMPT).ids]

    def edit(step, ids, layer, weights, value, seen):
        keys = chosen(model, ids, lambda at, r: r == "passage 2")
        rows = chosen(
            model,
            ids,
            lambda at, r: (r == "question" and words[at] in "?") or r == "answer",
        )
        cut = rows[:, None] & keys
        if layer == 1:
            scores = weights.log().masked_fill(cut, -torch.inf)
            scores[0] = weights[0].log()
            weights = scores.softmax(-1)
        return weights @ value

    punctuation = fs.interventions.CutEdges(
        queries="question", query_classes="punctuation", keys="gold", layers=1, heads=[1, 2, 3]
    )
    answer = fs.interventions.CutEdges(queries="answer", keys="gold", layers=1, heads=[1, 2, 3])
    agrees(model, fs.interventions.Combined((punctuation, answer)), PROMPT, brief(model), edit)


@pytest.mark.parametrize("family", FAMILIES)
def test_cutting_all_edges_to_tokens_equals_masking_them(models, family):
    model, sampler = models[family], brief(models[family])
    same = [
        fs.interventions.MaskTokens(regions="gold", classes="content", queries="question"),
        fs.interventions.CutEdges(queries="question", keys="gold", key_classes="content"),
    ]
    traces = []
    for one in same:
        with one(model):
            traces.append(model.trace(PROMPT, sampler, keep=["mass"]))
    np.testing.assert_array_equal(traces[0].mass, traces[1].mass)


def test_names_of_positions_by_hand(models):
    """ "masked", "revealed", "predicting", "answer 1", in a batch with padding, at the second step."""
    from floatscope.decode.state import State, lay_out
    from floatscope.interventions.selection import Selection
    from floatscope.sequences.prompt import Encoded

    for model in (models["LLaDA"], models["Dream"], models["Llama"]):
        prompts = [Encoded((5, 6, 7), ("a", "b", "b")), Encoded((8,), ("b",))]
        fill = 9 if model.mask_id is None else model.mask_id
        canvas = lay_out(model, prompts, 2, fill)
        canvas[:, 4] = 9
        state = State.build(model, prompts, canvas, (3, 5), prompt_end=3)
        masked = [3] if model.is_diffusion else []
        shift = model.shift
        expected = {
            "b": [[1, 2], [2]],
            "answer": [[3, 4], [3, 4]],
            "answer 1": [[4], [4]],
            "masked": [masked, masked],
            "revealed": [sorted({3, 4} - set(masked))] * 2,
            "predicting": [list(range(3 - shift, 5))] * 2,
        }
        for name, places in expected.items():
            flags = Selection(model, name).find(state)
            assert [one.nonzero().flatten().tolist() for one in flags] == places, name
        assert Selection(model, positions=-1).find(state).nonzero().tolist() == [[0, 2], [1, 2]]
        assert Selection(model).find(state).sum(-1).tolist() == [5, 3]


def test_a_row_keeps_its_only_keys(llama):
    """All rows cut from all keys see what they saw."""
    with fs.interventions.CutEdges(queries="prompt", keys="prompt")(llama):
        during = llama.read("Go on.", keep=["mass"])
    np.testing.assert_array_equal(during.mass, llama.read("Go on.", keep=["mass"]).mass)


def test_an_intervention_inside_another_is_proven_separately(models):
    """What is in force already needs prompts, with a gold passage at that; a random text is none."""
    for model in (models["LLaDA"], models["Llama"]):
        gold, head = (
            fs.interventions.MaskTokens(regions="gold"),
            fs.interventions.AblateHeads(((1, 0),)),
        )
        with fs.interventions.Combined((head, gold))(model):
            together = model.trace(PROMPT, brief(model), keep="mass")
        with gold(model), head(model):
            assert len(model.edits) == 2
            nested = model.trace(PROMPT, brief(model), keep="mass")
        np.testing.assert_array_equal(together.mass, nested.mass)
        assert not model.edits and not attention_hook._handlers


# What is typed, and what is refused


def test_typed_interventions_are_parsed():
    assert intervention_of(
        "ablate-heads,heads=3.1|4.0,to=zero,steps=0:4"
    ) == fs.interventions.AblateHeads(((3, 1), (4, 0)), "zero", slice(0, 4))
    assert intervention_of(
        "mask-values,regions=gold|answer 2,to=mean,control=mass"
    ) == fs.interventions.MaskValues(regions=("gold", "answer 2"), to="mean", control="mass")
    typed = "cut-edges,queries=masked,keys=gold|question,key_classes=content,query_positions=0:4"
    assert intervention_of(typed) == fs.interventions.CutEdges(
        queries=("masked",),
        keys=("gold", "question"),
        key_classes=("content",),
        query_positions=slice(0, 4),
    )
    assert intervention_of("mask-columns,keys=all").keys == "all"
    with pytest.raises(UsageError, match=r"layer\.head"):
        intervention_of("ablate-heads,heads=3.x")


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (fs.interventions.AblateHeads(), r"needs heads.*heads=\(\(layer, head\), …\)"),
        (fs.interventions.AblateHeads(((1, 2, 3),)), "Give pairs"),
        (fs.interventions.AblateHeads(((9, 0),)), "no layer 9"),
        (fs.interventions.AblateHeads(((0, 9),)), "no head 9"),
        (fs.interventions.AblateHeads(((0, 0),), "median"), "Use one of zero, mean, resample"),
        (fs.interventions.AblateHeads(((0, 0),), "mean"), r"HeadMeans\.of"),
        (fs.interventions.AblateHeads(((0, 0),), "resample"), r"HeadRows\.of"),
        (fs.interventions.AblateHeads(((0, 0),), seed=-1), "seed"),
        (fs.interventions.MaskValues(), "MaskValues selects no tokens"),
        (fs.interventions.MaskValues(regions="gold", to="one"), "Use one of zero, mean"),
        (fs.interventions.CutEdges(keys="gold"), "has no queries.*query_classes="),
        (fs.interventions.CutEdges(queries="gold"), "has no keys.*key_positions="),
        (fs.interventions.CutEdges(queries="gold", key_classes="verbs"), "no token class 'verbs'"),
    ],
)
def test_invalid_settings_are_refused_before_anything_runs(llada, wrong, says):
    with pytest.raises(UsageError) as caught, wrong(llada):
        raise AssertionError("in force")
    import re

    assert re.search(says, str(caught.value), re.S), caught.value


def test_references_that_do_not_fit_are_refused(llada, means):
    few = fs.interventions.HeadRows.of(llada, OTHERS, heads=((0, 0),))
    with pytest.raises(UsageError, match="no outputs of head 1 of layer 0"):
        fs.interventions.AblateHeads(((0, 1),), "resample", reference=few).check(llada)
    alone = fs.interventions.HeadRows.of(llada, ["Short."], heads=((0, 0),))
    one = fs.interventions.AblateHeads(((0, 0),), "resample", reference=alone)
    with one(llada), pytest.raises(UsageError, match="more prompts"):
        llada.generate("Short.", brief(llada))
    with one(llada), pytest.raises(UsageError, match="no prompt is being decoded"):
        llada.logits(torch.zeros(1, 4, dtype=torch.long))
    with pytest.raises(UsageError, match="a list of at least one prompt"):
        fs.interventions.HeadMeans.of(llada, "one text")
    with one(llada), pytest.raises(UsageError, match="outside the `with`"):
        fs.interventions.ablated_each(llada, [1, 2], [((0, 0),)], [1])
    rows = len(llada.encode("Short.").ids)
    assert f"reference=HeadRows(1 prompts, {rows} rows, " in one.describe()
