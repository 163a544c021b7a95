"""Interventions against an oracle at the attention hook: exactly the intended keys are hidden."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import DIFFUSION, FAMILIES, sampler_for

import floatscope as fs
from floatscope.attention.reference import expand
from floatscope.errors import ModelError, UsageError
from floatscope.interventions import INTERVENTIONS, columns, controls
from floatscope.interventions.base import Intervention
from floatscope.models import attention_hook

PROMPT = fs.Prompt.rag(
    "Who wrote it?", ["A first text, short.", "Emma was written by Jane Austen."], gold=1
)
PROMPTS = [PROMPT, fs.Prompt.rag("Where is it?", ["It is far away.", "No."], gold=0)]
# What one cannot do without; every other field has a default.
NEEDED = {
    "mask-tokens": {"regions": "gold"},
    "cut-edges": {"queries": "question", "keys": "gold"},
    "mask-values": {"regions": "gold"},
    "ablate-heads": {"heads": ((0, 1), (1, 2))},
}
# Need a run, or change what a step decides and no attention: test_patching.py, test_overruling.py.
ELSEWHERE = ("patch", "force-token", "remasked")
# Every one as it comes, and with the settings that take another way through the code.
ALL = {
    name: kind(**NEEDED.get(name, {}))
    for name, kind in INTERVENTIONS.items()
    if name not in ELSEWHERE
} | {
    "random columns": fs.interventions.MaskColumns(k=2, control="random"),
    "weakened random columns": fs.interventions.WeakenColumns(control="random"),
    "matched columns": fs.interventions.MaskColumns(k=2, control="matched"),
    "columns of equal mass": fs.interventions.MaskColumns(k=2, control="mass"),
    "columns of the step before": fs.interventions.MaskColumns(
        k=2, hold=False, keys="all", control="random"
    ),
    "the first position": fs.interventions.MaskTokens(positions=0),
    "columns by head mean": fs.interventions.MaskColumns(k=2, per_head=False),
    "mean values, one head": fs.interventions.MaskValues(
        positions=0, to="mean", heads=1, control="random"
    ),
    "structural tokens": fs.interventions.MaskTokens(classes="structural", queries="answer"),
    "strong boost": fs.interventions.BoostDynamics(strength=2.0),
    "together": fs.interventions.Combined(
        (
            fs.interventions.SinkToken(),
            fs.interventions.MaskColumns(k=1),
            fs.interventions.BoostDynamics(),
        )
    ),
}
DIFFUSION_ONLY = ("keep-columns",)  # about masked rows
EACH = [(n, f) for n in ALL for f in FAMILIES if n not in DIFFUSION_ONLY or f in DIFFUSION]


def watched(model, run, *, innermost):
    """Every call of a run: (layer, query, key, mask matrix), before or after the interventions."""
    calls = []

    def look(call, proceed):
        mask = (
            attention_hook.explicit_mask(call)
            .expand(len(call.query), model.n_heads, -1, -1)
            .clone()
        )
        calls.append((call.layer, call.query.clone(), call.key.clone(), mask, call.scale))
        return proceed(call)

    with attention_hook.attach(model.net, look, innermost=innermost):
        run()
    return calls


def weights(query, key, mask, scale):
    score = query.double() @ expand(key.double(), query.shape[1]).mT * scale
    return score.masked_fill(~mask, -torch.inf).softmax(-1)


def brief(model):
    """Few steps, of which the second may hide what the first has seen."""
    return sampler_for(model, length=3, steps=2)


@pytest.fixture(scope="module")
def alone(models):
    """What each family attends to before anything was in force."""
    return {name: m.trace(PROMPT, brief(m), keep=["mass"]) for name, m in models.items()}


@pytest.fixture(scope="module")
def untouched(models):
    """The same, of both prompts together."""
    keep = ["mass", "entropy"]
    return {name: m.trace(PROMPTS, brief(m), keep=keep) for name, m in models.items()}


@pytest.mark.parametrize(("name", "family"), EACH)
def test_every_family_is_changed_and_restored_afterwards(models, alone, family, name):
    model, sampler, before = models[family], brief(models[family]), alone[family]
    with ALL[name](model):
        during = model.trace(PROMPT, sampler, keep=["mass"])
    after = model.trace(PROMPT, sampler, keep=["mass"])
    assert not model.edits and not attention_hook._handlers
    np.testing.assert_array_equal(before.mass, after.mass)
    assert before.text == after.text
    assert during.mass.shape != before.mass.shape or not np.allclose(
        during.mass, before.mass, atol=1e-7, equal_nan=True
    )


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "nothing",
    [
        fs.interventions.MaskColumns(k=0),
        fs.interventions.WeakenColumns(dose=0.0),
        fs.interventions.MaskColumns(rule=fs.anchors.Share(1.0), k=3),
        fs.interventions.MaskTokens(regions="no such region"),
        fs.interventions.BoostDynamics(strength=0.0),
        fs.interventions.MaskColumns(k=3, steps=slice(90, 99)),
        fs.interventions.MaskValues(regions="no such region", to="mean"),
        fs.interventions.CutEdges(queries="question", keys="no such region"),
        fs.interventions.CutEdges(queries="no such region", keys="gold"),
        fs.interventions.AblateHeads(((0, 0),), steps=slice(90, 99)),
    ],
    ids=lambda i: i.describe(),
)
def test_over_zero_columns_it_changes_nothing_bit_for_bit(models, untouched, family, nothing):
    model = models[family]
    with nothing(model):
        during = model.trace(PROMPTS, brief(model), keep=["mass", "entropy"])
    for one, other in zip(untouched[family], during, strict=True):
        np.testing.assert_array_equal(one.mass, other.mass)
        np.testing.assert_array_equal(one.entropy, other.entropy)
        np.testing.assert_array_equal(one.data["confidence"], other.data["confidence"])
        np.testing.assert_array_equal(one.canvas, other.canvas)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("per_head", [True, False])
def test_hidden_are_the_anchors_of_the_step_before(models, family, per_head):
    """Recomputed in float64 from every layer's own q and k, without the mask."""
    model, k = models[family], 3
    published = fs.interventions.MaskColumns(
        k=k, per_head=per_head, by="received", viewers=0, keys="all", hold=False
    )
    with published.in_force(model):  # no proof: its forwards would count
        calls = watched(model, lambda: model.generate(PROMPT, sampler_for(model)), innermost=True)
    for layer in range(model.n_layers):
        total, count = torch.zeros(model.n_heads, 0), torch.zeros(0)
        mine = [call for call in calls if call[0] == layer]
        assert len(mine) > 2
        for step, (_, query, key, mask, scale) in enumerate(mine):
            q, n = query.shape[2], key.shape[2]
            plain = torch.ones(q, n, dtype=torch.bool)
            plain = plain if model.is_diffusion else plain.tril(n - q)
            now = weights(query, key, plain.expand_as(mask), scale)[0].sum(1)  # (h, k)
            seen = plain.sum(0)
            new = n - len(count)
            total, count = (torch.nn.functional.pad(x, (0, new)) for x in (total, count))
            if step == 0:
                total, count = now, seen
            means = torch.where(count > 0, total / count, -torch.inf)
            means = means if per_head else means.mean(0, keepdim=True)
            top = means.topk(k, dim=-1).indices.expand(model.n_heads, -1)
            expected = torch.zeros(model.n_heads, n, dtype=torch.bool).scatter_(1, top, True)
            expected = expected[:, None] & plain  # (h, q, k)
            expected &= (plain & ~expected).any(-1, keepdim=True)  # a row keeps its only keys
            assert torch.equal(plain & ~mask[0], expected)
            if model.is_diffusion:
                total, count = now, seen
            elif step > 0:
                total, count = total + now, count + seen


@pytest.mark.parametrize(
    ("name", "family"), [e for e in EACH if e[0] not in ("columns by head mean", "together")]
)
def test_a_batch_is_changed_as_each_prompt_alone(exact, family, name):
    model, sampler = exact[family], brief(exact[family])
    with ALL[name](model):
        together = model.trace(PROMPTS, sampler, keep=["mass"])
        alone = [model.trace(p, sampler, keep=["mass"]) for p in PROMPTS]
    for one, other in zip(together, alone, strict=True):
        np.testing.assert_array_equal(one.canvas, other.canvas)
        np.testing.assert_allclose(one.mass, other.mass, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", ["random", "matched"])
def test_controls_hide_as_many_other_columns_in_every_layer(models, family, kind):
    """Than those that are hidden without a control: what a layer's anchors are does not depend on that."""
    model, k = models[family], 4
    found = {}
    for control in (None, kind):
        with fs.interventions.MaskColumns(k=k, control=control).in_force(model):
            calls = watched(model, lambda: model.read(PROMPT), innermost=True)
        found[control] = torch.stack([~call[3][0, :, -1] for call in calls])  # (l, h, k)
    assert (found[None].sum(-1) == k).all() and (found[kind].sum(-1) == k).all()
    assert not (found[None] & found[kind]).any()
    if kind == "matched":
        for anchors, others in zip(
            found[None].flatten(0, 1), found[kind].flatten(0, 1), strict=True
        ):
            a, o = anchors.nonzero().flatten(), others.nonzero().flatten()
            assert (a[:, None] - o).abs().min(0).values.max() <= k


def test_hidden_tokens_get_no_attention_where_they_are_hidden(models):
    for family, model in models.items():
        sampler = brief(model)
        with fs.interventions.MaskTokens(regions="gold", layers=slice(1, None))(model):
            trace = model.trace(PROMPT, sampler)
        to_gold = trace.flow.sel(target="passage 2").sel(source="question")
        assert float(abs(to_gold.sel(layer=slice(1, None))).max()) == 0, family
        if model.is_diffusion:
            assert float(to_gold.sel(layer=0).min()) > 0
        with fs.interventions.MaskTokens(regions="passage 1", queries="question")(model):
            trace = model.trace(PROMPT, sampler)
        flow = trace.flow.sel(target="passage 1")
        assert float(abs(flow.sel(source="question")).max()) == 0
        assert float(flow.sel(source="passage 1").min()) > 0


def test_a_trace_sees_the_attention_as_changed(models):
    """Rows still sum to one, and the statistics agree with each other."""
    for name, family in EACH:
        if family not in ("Dream", "Llama"):
            continue
        model = models[family]
        with ALL[name](model):
            trace = model.trace(PROMPT, brief(model))
        np.testing.assert_allclose(trace.mass.sum("key"), 1, atol=1e-5)
        assert float(trace.rows["row_weight"].sum("rank").max()) <= 1 + 1e-5
        np.testing.assert_allclose(trace.rows["row_flow"].sum("target"), 1, atol=1e-5)


def test_a_trace_records_the_interventions_in_force(llada, tmp_path):
    """On itself, on disk, in its repr, in a terminal and for the viewer; a clean one says nothing."""
    from rich.console import Console

    from floatscope.plots.summary import summary
    from floatscope.scenes.pack import scene_of

    sampler = fs.Confidence(length=4, steps=2)
    both = fs.interventions.Combined(
        (fs.interventions.MaskColumns(k=1), fs.interventions.SinkToken())
    )
    with both(llada):
        trace = llada.trace("Go on, now.", sampler)
        read = llada.read(trace)
    clean = llada.trace("Go on, now.", sampler)
    wanted = tuple(part.describe() for part in both.parts)
    assert trace.interventions == read.interventions == wanted and len(wanted) == 2
    assert clean.interventions == () and "under" not in repr(clean)
    assert all(f"under {one}" in repr(trace) for one in wanted)
    trace.save(tmp_path / "t.zarr")
    assert fs.Trace.load(tmp_path / "t.zarr").interventions == wanted
    with (console := Console(width=200)).capture() as captured:
        console.print(summary(trace))
    assert all(one in captured.get() for one in wanted)
    assert scene_of(trace)["under"] == list(wanted) and scene_of(clean)["under"] == []
    del trace.data.attrs["interventions"]  # a trace of an earlier version
    assert trace.interventions == ()


def test_a_sink_token_is_seen_by_all_and_sees_itself_alone(models):
    for family, model in models.items():
        with fs.interventions.SinkToken()(model):
            trace = model.trace(PROMPT, brief(model))
        flow = trace.flow.sel(source="sink")
        np.testing.assert_allclose(flow.sel(target="sink"), 1, atol=1e-6, err_msg=family)
        assert float(trace.flow.sel(source="question", target="sink").min()) > 0
        assert str(trace.data["region"].values[0]) == "sink"


def test_boost_adds_the_defined_bias(models):
    """scores + bias, recomputed: the captured column sums are those of the boosted scores."""
    model = models["LLaDA"]
    biases = {}

    def look(call, proceed):
        if call.bias is not None:
            a = (
                call.query.double() @ expand(call.key.double(), model.n_heads).mT * call.scale
                + call.bias.double()
            ).softmax(-1)
            biases[call.layer] = a.sum(2)[0] / a.shape[2]
        return proceed(call)

    with (
        fs.interventions.BoostDynamics(strength=3.0).in_force(model),
        attention_hook.attach(model.net, look, innermost=True),
    ):
        trace = model.read(PROMPT, keep=["mass"])
    assert sorted(biases) == list(range(2, model.n_layers))
    for layer, mass in biases.items():
        np.testing.assert_allclose(trace.mass.sel(layer=layer).values[0], mass, atol=1e-6)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_no_row_is_left_without_a_key(data):
    b, h, q = (
        data.draw(st.integers(1, 3)),
        data.draw(st.integers(1, 3)),
        data.draw(st.integers(1, 6)),
    )
    k = q + data.draw(st.integers(0, 3))
    causal = data.draw(st.booleans())
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    query = torch.randn(b, h, q, 2, generator=generator)
    key = torch.randn(b, h, k, 2, generator=generator)
    call = attention_hook.Call(0, torch.nn.Identity(), query, key, key, None, causal, 1.0)
    picked = torch.rand(b, h, k, generator=generator) < data.draw(
        st.sampled_from([0.0, 0.5, 0.9, 1.0])
    )
    rows = torch.rand(b, q, generator=generator) < 0.5 if data.draw(st.booleans()) else None
    before, changed = attention_hook.explicit_mask(call), columns.hide(call, picked, rows)
    after = attention_hook.explicit_mask(changed).expand(b, h, q, k)
    assert after.any(-1).all() and not (after & ~before).any()
    if not picked.any() or (rows is not None and not rows.any()):
        assert changed is call
    cut = (before & ~after).any(-1)  # rows that lost a key lost all that were picked, and no others
    lost = before & picked[:, :, None]
    assert torch.equal((before & ~after)[cut], lost.expand_as(after)[cut])


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 999), st.integers(1, 5), st.sampled_from(["random", "matched"]))
def test_a_control_has_the_size_of_the_choice(seed, n, kind):
    generator = torch.Generator().manual_seed(seed)
    picked = torch.rand(2, 3, 24, generator=generator).argsort(-1) < n
    there = torch.ones(2, 1, 24, dtype=torch.bool)
    there[1, :, :4] = False  # padding
    picked &= there
    other = controls.pick_controls(kind, picked, there, torch.rand(2, 24, generator=generator))
    assert torch.equal(other.sum(-1), picked.sum(-1))
    assert not (other & picked).any() and not (other & ~there).any()


def test_rules_choose_the_same_in_torch_and_in_numpy():
    generator = np.random.default_rng(0)
    values = generator.dirichlet(np.full(40, 0.1), size=(3, 4)).astype(np.float64)
    values[0, :, :7] = np.nan
    for rule in (
        fs.anchors.Share(0.2),
        fs.anchors.Excess(3),
        fs.anchors.ZScore(2),
        fs.anchors.Robust(8),
    ):
        found = rule.passes(torch.tensor(values)).numpy()
        np.testing.assert_array_equal(found, rule.passes(values))
        assert found.any() and not found[np.isnan(values)].any()


def test_guidance_forwards_are_edited_in_the_same_way(models):
    """The blind forward hides the same columns and teaches nothing."""
    model = models["LLaDA"]
    with fs.interventions.MaskColumns(k=2).in_force(model):
        calls = watched(
            model,
            lambda: model.generate(PROMPT, fs.Confidence(length=4, steps=2, cfg=1.0)),
            innermost=True,
        )
    first = [c for c in calls if c[0] == 0]
    assert len(first) == 4  # two steps, each with its blind twin
    assert torch.equal(first[2][3], first[3][3])


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (fs.interventions.MaskColumns(k=-1), "k = -1"),
        (fs.interventions.MaskColumns(k=1, control="placebo"), "control"),
        (fs.interventions.MaskColumns(k=1, by="luck"), "by = 'luck'"),
        (fs.interventions.MaskColumns(k=1, keys="some"), "keys = 'some'"),
        (fs.interventions.MaskColumns(k=1, viewers=-1), "viewers = -1"),
        (fs.interventions.MaskColumns(k=1, layers=99), "no layer 99"),
        (fs.interventions.MaskColumns(k=1, heads=99), "no head 99"),
        (fs.interventions.MaskTokens(), "selects no tokens"),
        (fs.interventions.MaskTokens(classes="verbs"), "no token class 'verbs'"),
        (fs.interventions.SinkToken(token=10**9), "not in the vocabulary"),
        (fs.interventions.Combined(()), "no interventions"),
    ],
)
def test_invalid_settings_are_refused_before_anything_runs(llada, wrong, says):
    with pytest.raises(UsageError, match=says), wrong(llada):
        raise AssertionError("in force")


def test_settings_that_do_not_fit_a_prompt_are_refused_while_running(llada):
    with (
        fs.interventions.MaskColumns(k=4000)(llada),
        pytest.raises(UsageError, match="k = 4000, but rows have"),
    ):
        llada.generate(PROMPT, fs.Confidence(length=2))
    with (
        fs.interventions.MaskColumns(k=1, steps=-1)(llada),
        pytest.raises(UsageError, match="Count from the first"),
    ):
        llada.generate(PROMPT, fs.Confidence(length=2))
    with (
        fs.interventions.MaskTokens(regions="gold")(llada),
        pytest.raises(UsageError, match="gold"),
    ):
        llada.generate("no gold here", fs.Confidence(length=2))
    with (
        fs.interventions.MaskTokens(regions="prompt")(llada),
        pytest.raises(UsageError, match="only while"),
    ):
        llada.logits(torch.zeros(1, 4, dtype=torch.long))
    many = fs.interventions.MaskTokens(
        regions=("instruction", "question", "passage 2", "passage 1"), control="random"
    )
    with many(llada), pytest.raises(UsageError, match="a control needs"):
        llada.generate(PROMPT, fs.Confidence(length=2))
    assert not llada.edits and not attention_hook._handlers


def test_an_intervention_without_effect_is_refused(llada):
    class Nothing(Intervention):
        def acting(self, model):
            from floatscope.interventions.base import ActiveIntervention

            return ActiveIntervention(model)

    with pytest.raises(ModelError, match="does not change the logits"), Nothing()(llada):
        raise AssertionError("in force")
