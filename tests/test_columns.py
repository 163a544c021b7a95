"""Which columns an intervention hides, what its controls hide instead, and that both stay where they are."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from tiny_models import CAUSAL, DIFFUSION, FAMILIES, sampler_for

import floatscope as fs
from floatscope.attention.reference import expand
from floatscope.decode.state import State, notify_edits
from floatscope.interventions import columns, controls
from floatscope.interventions.parse import intervention_of
from floatscope.models import Direction, attention_hook
from floatscope.stats import uniform

PROMPT = fs.Prompt.rag(
    "Who wrote it?", ["A first text, short.", "Emma was written by Jane Austen."], gold=1
)
PUBLISHED = {"by": "received", "viewers": 0, "keys": "all", "hold": False}


def watched(model, run):
    """Of every call: layer, float64 weights without this mask, and the mask matrix with it."""
    calls = []

    def look(call, proceed):
        allowed = (
            attention_hook.explicit_mask(call)
            .expand(len(call.query), model.n_heads, -1, -1)
            .clone()
        )
        n, q = call.key.shape[2], call.query.shape[2]
        plain = torch.ones(q, n, dtype=torch.bool)
        plain = plain if model.is_diffusion else plain.tril(n - q)
        score = call.query.double() @ expand(call.key.double(), model.n_heads).mT * call.scale
        weights = score.masked_fill(~plain, -torch.inf).softmax(-1)
        calls.append((call.layer, weights[0], (plain & ~allowed)[0]))
        return proceed(call)

    with attention_hook.attach(model.net, look, innermost=True):
        run()
    return calls


def hidden_columns(call):
    """(h, k): hidden from any row; a row that keeps its only key tells nothing."""
    return call[2].any(1)


def planted(scores, heads):
    """A call whose scaled scores are these."""
    size = len(scores)
    query = scores.expand(1, heads, size, size)
    key = torch.eye(size).expand(1, heads, size, size)
    return attention_hook.Call(0, torch.nn.Identity(), query, key, key, None, True, 1.0)


def test_a_last_key_that_few_rows_see_does_not_win_by_noise(llama):
    """Key 3 gets five times its share from every row; the last rows look at themselves."""
    size, anchor = 40, 3
    scores = torch.zeros(size, size)
    scores[:, anchor] = np.log(5)
    scores[-3:] = torch.eye(size)[-3:] * 6
    found = {}
    specs = {
        "default": fs.interventions.MaskColumns(),
        "mass": fs.interventions.MaskColumns(by="mass"),
        "published": fs.interventions.MaskColumns(**PUBLISHED),
        "lift of anyone": fs.interventions.MaskColumns(viewers=0),
        "ten rows": fs.interventions.MaskColumns(viewers=10),
    }
    for name, spec in specs.items():
        changed = []

        def proceed(call, changed=changed):
            changed.append(call)
            return call.value.transpose(1, 2)

        spec.acting(llama).attention(planted(scores, llama.n_heads), proceed)
        lost = ~changed[0].mask[0, 0] & torch.ones(size, size, dtype=torch.bool).tril()
        found[name] = lost.any(0).nonzero().flatten().tolist()
    assert found["default"] == found["mass"] == found["ten rows"] == [anchor]
    assert found["published"] == found["lift of anyone"] == [size - 1]


@pytest.mark.parametrize("direction", list(Direction))
def test_even_attention_is_the_null_of_mass(llama, direction):
    block = 4 if direction.in_blocks else None
    padding, size = torch.tensor([0, 3]), 14
    visible = type(llama.visibility(1, 1, padding))(direction, block, padding, size, size)
    query = torch.randn(2, 2, size, 4, generator=torch.Generator().manual_seed(0))
    mask = visible.matrix[:, None]
    call = attention_hook.Call(0, torch.nn.Identity(), query, query, query, mask, False, 1.0)
    sums = columns.attended(call, visible)
    for b, pad in enumerate(padding.tolist()):
        real = size - pad
        null = uniform.mass(direction, block, real) * real
        np.testing.assert_allclose(sums.even[b, 0, pad:], null, rtol=1e-6)
        np.testing.assert_array_equal(
            sums.viewers[b, 0, pad:], uniform.visible_queries(direction, block, real)
        )
        lift = sums.total[b, :, pad:].numpy() / null
        np.testing.assert_allclose(sums.by("lift")[b, :, pad:], lift, rtol=1e-5)
        assert sums.by("lift")[b, :, :pad].isnan().all()


@pytest.mark.parametrize("family", ["LLaDA", "Llama"])
@pytest.mark.parametrize("control", [None, "random", "matched", "mass"])
def test_what_is_hidden_stays_over_steps(models, family, control):
    model = models[family]
    with fs.interventions.MaskColumns(k=3, control=control).in_force(model):
        calls = watched(model, lambda: model.generate(PROMPT, sampler_for(model)))
    prompt = len(model.encode(PROMPT).ids)
    for layer in range(model.n_layers):
        mine = [hidden_columns(call) for call in calls if call[0] == layer]
        assert len(mine) > 2 and mine[0].any()
        for later in mine[1:]:
            assert torch.equal(later[:, :prompt], mine[0][:, :prompt])
            assert not later[:, prompt:].any()


@pytest.mark.parametrize("family", ["LLaDA", "Llama"])
@pytest.mark.parametrize("control", ["random", "matched"])
def test_a_control_of_tokens_is_not_drawn_anew_for_a_layer_or_step(models, family, control):
    model = models[family]
    with fs.interventions.MaskTokens(regions="gold", control=control).in_force(model):
        calls = watched(model, lambda: model.generate(PROMPT, sampler_for(model)))
    prompt = len(model.encode(PROMPT).ids)
    found = {tuple(row.tolist()) for call in calls for row in hidden_columns(call)[:, :prompt]}
    assert len(found) == 1


def test_a_random_control_follows_its_anchor_and_is_uniform():
    """One key gives way to the same one wherever it was chosen; over prompts, to any other alike."""
    n, prompts, generator = 12, 1500, torch.Generator().manual_seed(0)
    picks = torch.zeros(prompts, 2, n, dtype=torch.bool)
    picks[:, 0, 5] = picks[:, 1, 5] = picks[:, 1, 2] = True  # two layers, say: both chose 5
    pool = torch.ones(prompts, 1, n, dtype=torch.bool)
    pool[..., 0] = False
    other = controls.pick_controls(
        "random", picks, pool, torch.rand(prompts, n, generator=generator)
    )
    alone, both = other[:, 0], other[:, 1]
    assert ((alone & both).any(-1) | alone[:, 2]).all()  # (2 was itself chosen in the other layer)
    assert (both.sum(-1) == 2).all() and not (other & picks).any()
    free = [j for j in range(n) if j not in (0, 5)]
    count = alone.sum(0).numpy()
    assert count.sum() == count[free].sum() == prompts
    assert chisquare(count[free]).pvalue > 1e-3


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 5), st.sampled_from([0.05, 0.3, 2.0]))
def test_a_control_of_equal_mass_keeps_its_error_bound(seed, k, concentration):
    rng = np.random.default_rng(seed)
    total = torch.tensor(rng.dirichlet(np.full(30, concentration), size=(2, 3)) * 30)
    pool = torch.ones(2, 1, 30, dtype=torch.bool)
    pool[1, :, :6] = False
    picked = columns.top(total.float(), pool, k)
    other = controls.pick_controls("mass", picked, pool, torch.zeros(2, 30), total.float())
    assert not (other & picked).any() and not (other & ~pool).any()
    for b in range(2):
        for h in range(3):
            weight, mine = total[b, h].float().double(), other[b, h]
            gap = float(weight[picked[b, h]].sum() - weight[mine].sum())
            free = pool[b, 0] & ~picked[b, h] & (weight > 0)
            if weight[free].sum() <= weight[picked[b, h]].sum():
                assert torch.equal(mine, free)  # all there is
            else:
                left = weight[free & ~mine]
                one = left.min() if len(left) else weight[mine].max()
                assert abs(gap) <= float(one) / 2 + 1e-6


@pytest.mark.parametrize("family", ["LLaDA", "Llama"])
def test_a_control_of_equal_mass_hides_as_much(models, family):
    model = models[family]
    share = {}
    for control in (None, "mass", "random"):
        spec = fs.interventions.MaskColumns(k=3, by="mass", control=control, layers=0)
        with spec(model):
            model.read(PROMPT)
            share[control] = model.edits[0].hidden
    anchors, mass, random = (one.share[0, 0, 0] for one in share.values())  # (h,)
    np.testing.assert_allclose(mass, anchors, atol=0.01)
    assert (random < anchors - 0.01).any()
    assert (share["mass"].columns[0, 0, 0] >= 3).all()


@pytest.mark.parametrize("family", FAMILIES)
def test_the_first_position_alone(models, family):
    model = models[family]
    with intervention_of("mask-tokens,positions=0")(model):
        trace = model.trace(PROMPT, sampler_for(model))
    first = (
        trace.received.isel(key=0).isel(step=0).values
    )  # (layer, head): the mean of all its rows
    size = int(trace.received.isel(step=0, layer=0, head=0).notnull().sum())
    expected = (
        0 if model.is_diffusion else 1 / size
    )  # a causal first row sees nothing else, and keeps it
    np.testing.assert_allclose(first, expected, atol=1e-6)
    assert float(trace.received.isel(key=1, step=0).min()) > 0


@pytest.mark.parametrize("family", ["Dream", "Qwen2"])
@pytest.mark.parametrize(
    "spec",
    ["mask-columns,k=3,heads=1|3", "mask-columns,k=2,hold=false", "mask-tokens,regions=gold"],
)
def test_the_trace_reports_what_was_hidden(models, family, spec):
    """Against float64 weights of every layer's own q and k, without the mask."""
    model = models[family]
    edit = intervention_of(spec)
    with edit.in_force(model):
        box = []
        calls = watched(model, lambda: box.append(model.generate(PROMPT, sampler_for(model))))
        hidden = model.edits[0].hidden
    heads = [1, 3] if "heads" in spec else list(range(model.n_heads))
    held = rows = 0.0
    for at, (layer, weights, lost) in enumerate(calls):
        step = at // model.n_layers
        gone = lost.any(1)[heads]  # (h, k)
        now = (weights[heads] * gone[:, None]).sum((1, 2))
        np.testing.assert_allclose(hidden.share[0, step, layer], now / weights.shape[1], atol=1e-5)
        np.testing.assert_array_equal(hidden.columns[0, step, layer], gone.sum(-1))
        held, rows = held + float(now.sum()), rows + weights.shape[1] * len(heads)
    assert box[0].info["hidden_share"] == pytest.approx(held / rows, abs=1e-5)
    assert box[0].info["hidden_share"] > 0 and box[0].info["hidden_columns"] > 0


def test_reports_of_several_maskings_are_numbered(llada):
    with fs.interventions.Combined(
        (fs.interventions.MaskColumns(k=1), fs.interventions.MaskColumns(k=3))
    )(llada):
        info = llada.generate(PROMPT, fs.Confidence(length=2)).info
    assert info["hidden_columns"] == 1 and info["hidden_columns_2"] == 3


@pytest.mark.parametrize("family", CAUSAL)
def test_a_cache_changes_nothing_and_the_prompt_is_masked_too(exact, family):
    """Decoded anew from the whole text at every step; and the first logits by a mask of one's own."""
    model, length = exact[family], 5
    encoded = model.encode(PROMPT)
    with fs.interventions.MaskColumns(k=3).in_force(model):
        cached = model.generate(PROMPT, fs.Autoregressive(length=length, stop_at_eos=False))
        ids = list(encoded.ids)
        for step in range(length):
            canvas = torch.tensor([ids])
            state = State.build(
                *(model, [encoded], canvas, (len(ids), len(ids) + 1)),
                prompt_end=len(encoded.ids),
                step=step,
            )
            with notify_edits(model, state):
                logits = model.forward(canvas, torch.tensor([len(ids) - 1]), state.visible)[0, 0]
            if step == 0:
                first = logits
            ids.append(int(logits.argmax()))
    assert ids == cached.canvas[-1].tolist()

    clean = watched(model, lambda: model.logits(torch.tensor([encoded.ids])))
    n = len(encoded.ids)
    null = torch.tensor(uniform.mass(Direction.CAUSAL, None, n) * n)
    chosen = {}
    for layer, weights, _ in clean:
        lift = weights.sum(1) / null
        lift[:, n - torch.arange(n) < n / 4] = 0
        chosen[layer] = torch.zeros_like(lift, dtype=torch.bool).scatter_(
            1, lift.topk(3).indices, True
        )

    def mask(call, proceed):
        causal = torch.ones(n, n, dtype=torch.bool).tril()
        seen = causal & ~chosen[call.layer][:, None]
        seen |= ~seen.any(-1, keepdim=True) & causal
        call.mask, call.causal = seen[None], False
        return proceed(call)

    with attention_hook.attach(model.net, mask):
        expected = model.logits(torch.tensor([encoded.ids]))[0, -1]
    torch.testing.assert_close(first, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("family", DIFFUSION)
def test_every_rank_is_the_same_where_every_row_sees_every_key(models, family):
    texts = []
    for by in columns.RANKS:
        with fs.interventions.MaskColumns(k=3, by=by).in_force(models[family]):
            calls = watched(models[family], lambda: models[family].read(PROMPT))
        texts.append(torch.stack([hidden_columns(call) for call in calls]))
    assert torch.equal(texts[0], texts[1]) and torch.equal(texts[0], texts[2])


def test_answers_report_what_was_hidden(llada, tmp_path):
    records = fs.tasks.world_records("world:one", 2)
    spec = {"sampler": fs.Confidence(length=2), "intervention": fs.interventions.MaskColumns(k=2)}
    first = fs.evaluate(llada, records, **spec, keep=tmp_path / "kept")
    again = fs.evaluate(llada, records, **spec, keep=tmp_path / "kept")  # from the store
    for answers in (first, again):
        assert (answers.table["hidden_columns"] == 2).all()
        assert answers.table["hidden_share"].between(0.001, 0.5).all()
    assert first.table.equals(again.table)
    plain = fs.evaluate(llada, records, fs.Confidence(length=2))
    assert "hidden_share" not in plain.table
