"""Local layers (ModernBERT): each row sees a window, and every scale and level of chance follows by layer."""

import json

import numpy as np
import pytest
import torch
from published import FORWARDS, read
from rich.console import Console
from test_families import PROMPT, SAMPLER, compare, compare_lens

import floatscope as fs
from floatscope.interventions import columns
from floatscope.measures import nulls
from floatscope.models import attention_hook, tiny
from floatscope.plots.attention_map import attention_map
from floatscope.plots.summary import _layers
from floatscope.report.catalogue import Catalogue
from floatscope.scenes.pack import scene_of

REACH = 14  # to either side, of layers 1 and 2; layer 0 sees everything
LOCAL = (False, True, True)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    path = tiny.write("ModernBERT", tmp_path_factory.mktemp("local") / "m", tiny.Shape(layers=3))
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"local_attention": 2 * REACH + 1}))
    return path


@pytest.fixture(scope="module")
def model(written):
    return fs.load(written, dtype="float64")


@pytest.fixture(scope="module")
def trace(model):
    keep = [n for n in fs.statistics.STATISTICS if n != "experts"]
    return model.trace(PROMPT, SAMPLER, keep=keep, groups="regions")


def near(n):
    """Who sees whom in a local layer."""
    return abs(np.arange(n)[:, None] - np.arange(n)) <= REACH


def by_layer(n):
    return np.stack([near(n) if local else np.ones((n, n), bool) for local in LOCAL])


def evenly(n):
    """Uniform attention of each layer, by its matrix."""
    seen = by_layer(n).astype(float)
    return seen / seen.sum(-1, keepdims=True)


def test_logits_ignore_tokens_beyond_the_window(written, model):
    """Those of the float64 statement, and of transformers' own class."""
    from transformers import ModernBertForMaskedLM

    config, weights = read(written)
    ids = torch.randint(2, 256, (2, 30), generator=torch.Generator().manual_seed(3))
    found = model.logits(ids)
    stated = FORWARDS["ModernBERT"](weights, config, ids[0], torch.ones(30, 30, dtype=torch.bool))
    torch.testing.assert_close(found[0], stated.logits, rtol=1e-5, atol=1e-5)
    net = ModernBertForMaskedLM.from_pretrained(written, dtype=torch.float64, local_files_only=True)
    with torch.inference_mode():
        logits = net.eval()(input_ids=ids).logits
    torch.testing.assert_close(found, logits, rtol=1e-9, atol=1e-9)
    assert model.reaches == (None, REACH, REACH) and model.context == 512


def test_every_statistic_equals_the_materialised_one(written, model, trace):
    config, weights = read(written)
    before = None
    for t in range(trace.n_steps):
        ids = torch.from_numpy(trace.canvas.values[t]).long()
        n = len(ids)
        assert n > 4 * REACH
        done = FORWARDS["ModernBERT"](weights, config, ids, torch.ones(n, n, dtype=torch.bool))
        compare(trace, t, done, by_layer(n), before)
        compare_lens(model, trace, t, done)
        before = done


def test_nulls_are_those_of_uniform_attention_in_each_layer(trace, tmp_path):
    """By hand, of matrices; and a saved trace knows them."""
    again = fs.Trace.load(trace.save(tmp_path / "t.zarr"))
    n = trace.data.sizes["key"]
    even, size = evenly(n), trace.data.sizes["step"]
    for one in (trace, again):
        assert list(one.info["reaches"]) == [-1, REACH, REACH]
        assert one.null.dims == ("step", "layer", "key")
        np.testing.assert_allclose(one.null, np.stack([even.sum(1) / n] * size), rtol=1e-6)
        np.testing.assert_array_equal(one.data["visible"], [by_layer(n).sum(1)] * size)
    flow, rolled, rows = nulls.flow_null(again), nulls.rollout_null(again), nulls.row_null(again)
    for t in range(size):
        inside = nulls.members(trace, t).astype(float)
        some, state = inside.sum(0) > 0, inside
        mean = inside[:, some] / inside.sum(0)[some]
        for layer, matrix in enumerate(even):
            at = {"step": t, "layer": layer}
            close(flow.isel(at)[some], mean.T @ matrix @ inside)
            state = (matrix @ state + state) / 2
            close(rolled.isel(at)[some], mean.T @ state)
            for event in np.flatnonzero(trace.rows["event_step"].values == t):
                row = int(trace.rows["event_position"].values[event])
                close(rows.isel(event=event, layer=layer), matrix[row] @ inside)


def close(found, wanted):
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-9)


def regions_of_passages(trace):
    """The gold one first."""
    passages = [name for name in nulls.names(trace) if name.startswith("passage ")]
    return sorted(passages, key=lambda name: name != trace.info["gold"])


def test_measures_support_local_layers_or_refuse_them(trace):
    n = trace.data.sizes["key"]
    due = evenly(n).sum(1) / n
    found = fs.measures.Absorption(rule=fs.anchors.Robust())(trace).data
    close(found["first_null"], due[:, 0])
    top = trace.mass.mean("head").argmax("key").values  # (step, layer)
    close(found["top_null"], due[np.arange(3), top].mean(0))
    anchor = fs.anchors.Robust()(trace).transpose("step", "layer", "key").values
    close(found["absorption_null"], (anchor * due).sum(-1).mean(0))
    region = trace.data["region"].values
    gold, other = (region == name for name in regions_of_passages(trace))
    seen = evenly(n)[:, other].mean(1)  # (layer, key): from the passage after it
    wanted = seen[:, gold].mean(-1) / seen[:, gold | other].mean(-1)
    found = fs.measures.RegionFlow(rows="answer", source=(regions_of_passages(trace)[1],))(
        trace
    ).data
    close(found["gold_lift_null"], wanted)
    assert wanted[0] == pytest.approx(1) and 0 < wanted[1] < 0.9
    following = [
        fs.measures.AttentionEntropy(),
        fs.measures.Dormancy(),
        fs.measures.Rollout(),
        fs.measures.KindsOfKey(),
        fs.measures.Geometry(),
    ]
    for measure in following:
        measure(trace)
    with_window = "see only a window.*Trace with layers=\\[0\\], which see every position"
    for measure in (
        fs.measures.Drift(),
        fs.measures.Dynamics(),
        fs.measures.StrongestKey(),
        fs.measures.RetrievalHeads(),
    ):
        with pytest.raises(fs.UsageError, match=with_window):
            measure(trace)
    with pytest.raises(fs.UsageError, match="the viewer has one chance level"):
        scene_of(trace)
    assert trace._repr_html_() is None
    assert (
        "the viewer has one chance level"
        in Catalogue("t", ["a"], {"a": trace}.get).index()["left_out"][0]
    )
    with pytest.raises(fs.UsageError, match="perturbation has one chance level"):
        fs.measures.perturbation([trace], [trace])


def test_trace_of_global_layers_is_measured_as_usual(model, trace):
    some = model.trace(PROMPT, SAMPLER, layers=[0])
    assert some.null.dims == ("step", "key")
    np.testing.assert_allclose(some.mass, trace.mass.sel(layer=[0]), rtol=1e-5)
    rolled = nulls.rollout_null(some)
    np.testing.assert_array_equal(rolled, nulls.rollout_null(trace).sel(layer=[0]))
    fs.measures.Dynamics()(some)
    assert scene_of(some)["layers"] == [0]


def test_a_batch_with_padding_is_traced_as_each_alone(model, trace):
    keep = ["mass", "entropy", "flow", "rollout", "qk", "rows"]
    prompts = ["Hi", PROMPT]
    for prompt, one in zip(prompts, model.trace(prompts, SAMPLER, keep=keep), strict=True):
        alone = model.trace(prompt, SAMPLER, keep=keep)
        assert one.null.dims == alone.null.dims
        for name in set(one.data) - {"row_key"}:
            np.testing.assert_allclose(one.data[name], alone.data[name], atol=1e-6, err_msg=name)


def test_columns_are_hidden_by_the_lift_of_their_layer(model):
    """What MaskColumns ranks by, against matrices."""
    n, found = 20, {}

    def look(call, proceed):
        seen = model.visibility(n, n, torch.zeros(1, dtype=torch.long))
        found[call.layer] = columns.attended(call, seen.within(model.reaches[call.layer]))
        return proceed(call)

    with attention_hook.attach(model.net, look):
        model.logits(torch.arange(n)[None] + 5)
    for layer, matrix in enumerate(evenly(n)):
        close(found[layer].even[0, 0], matrix.sum(0))
        close(found[layer].viewers[0, 0], by_layer(n)[layer].sum(0))
    plain = model.generate(PROMPT, SAMPLER).canvas
    with fs.interventions.MaskColumns(k=2)(model):
        hidden = model.trace(PROMPT, SAMPLER)
    assert hidden.canvas.shape == plain.shape
    with pytest.raises(fs.UsageError, match="SinkToken: .* has layers with a window"):
        fs.interventions.SinkToken()(model).__enter__()


def test_shown_layer_uses_its_own_chance_level(trace):
    n = trace.data.sizes["key"]
    lift = trace.mass.mean(["step", "head"]).values / (evenly(n).sum(1) / n)
    close(trace.lift.mean(["step", "head"]), lift)
    drawn = attention_map(trace, "layer", "position", lift=True)
    np.testing.assert_allclose(drawn, lift, rtol=1e-5)
    console = Console(width=200, record=True)
    console.print(_layers(trace))
    table = console.export_text()
    assert all(f"{one:.2f}×" in table for one in lift[:, 0])


def test_prompts_of_one_length_share_a_mask(model):
    prompts = ["Hello there", "Hullo where"]
    for prompt, one in zip(prompts, model.trace(prompts, SAMPLER), strict=True):
        alone = model.trace(prompt, SAMPLER)
        for name in set(one.data) - {"row_key"}:
            np.testing.assert_allclose(one.data[name], alone.data[name], atol=1e-6, err_msg=name)
