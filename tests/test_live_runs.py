"""Runs of the live page: what streams is what the trace holds, a branch is the intervention, code repeats."""

import base64
import io
import json
import tempfile
import zipfile
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from unpacking import unpack

import floatscope as fs
from floatscope.livepage.control import control_of
from floatscope.livepage.limits import KEEP
from floatscope.models import attention_hook
from floatscope.models.sharpened import match_sharpness, sharpened
from floatscope.recording.finished import replaying
from floatscope.recording.options import TraceOptions
from floatscope.report.embed import as_json
from floatscope.scenes.pack import scene_of

PROMPT = {"question": "Who has a cat?", "passages": ["Ann has a dog.", "Bo has a cat."], "gold": 1}
SAMPLERS = {
    "LLaDA": {"name": "confidence", "settings": {"length": 8, "steps": 6}},
    "Llama": {"name": "autoregressive", "settings": {"length": 6, "stop_at_eos": False}},
}


@pytest.fixture(scope="module")
def page(models):
    """Two tiny models behind one page, in this process."""
    from floatscope.livepage.notebook import live

    with live(models["LLaDA"], models["Llama"]) as shown:
        from live_client import Client

        yield Client(shown._server).ready()


@pytest.fixture(scope="module")
def first(page):
    """A finished run of each model: its events."""
    return {
        name: page.run({"model": f"m{i}", "prompt": PROMPT, "sampler": SAMPLERS[name]})
        for i, name in enumerate(SAMPLERS)
    }


def traced(model, sampler, change=None):
    prompt = fs.Prompt.rag(PROMPT["question"], PROMPT["passages"], gold=1)
    if change is None:
        return model.trace(prompt, sampler, keep=KEEP)
    with change(model):
        return model.trace(prompt, sampler, keep=KEEP)


def samplers():
    return {
        "LLaDA": fs.Confidence(length=8, steps=6),
        "Llama": fs.Autoregressive(length=6, stop_at_eos=False),
    }


def answer_ids(trace):
    return trace.canvas.values[-1, int(trace.info["prompt_length"]) :].tolist()


@pytest.mark.parametrize("name", SAMPLERS)
def test_the_stream_is_the_trace(first, models, name):
    started, *steps, done = first[name]
    trace = traced(models[name], samplers()[name])
    scene, header = scene_of(trace), started["scene"]
    assert [e["event"] for e in first[name]] == ["started", *["step"] * trace.n_steps, "done"]
    for same in ("format", "example", "title", "prompt_length", "gold", "layers", "heads", "rule"):
        assert header[same] == scene[same]
    assert unpack(header["region"]).tolist() == unpack(scene["region"]).tolist()
    vocabulary, classes = [], []
    mass = trace.mass.transpose("step", "layer", "head", "key").values
    size = mass.shape[-1]
    for t, step in enumerate(steps):
        vocabulary += step["words"]
        classes += step["new_classes"]
        part = step["scene"]
        words = [vocabulary[i] if i >= 0 else None for i in unpack(part["canvas"])[0]]
        whole = [scene["vocabulary"][i] if i >= 0 else None for i in unpack(scene["canvas"])[t]]
        assert words[:size] == whole and set(words[size:]) <= {None}
        kinds = [classes[i] for i in unpack(part["class"])[0]]
        assert kinds[:size] == trace.data["token_class"].values[t].tolist()
        for one in ("share", "null", "reach", "peak"):
            np.testing.assert_allclose(
                unpack(part[one])[0][..., :size], unpack(scene[one])[t], rtol=1e-3, err_msg=one
            )
        np.testing.assert_array_equal(
            unpack(part["anchors"])[0], unpack(scene["anchors"])[t], err_msg="anchors"
        )
        np.testing.assert_allclose(
            unpack(part["single_heads"]["share"])[0][..., :size], mass[t], rtol=0.05, atol=1e-5
        )
        moved = {(key, kind) for key, kind, _, _ in step["changes"]}
        expected = trace.change.values[t]
        assert moved == {(int(k), int(expected[k])) for k in np.flatnonzero(expected)}
        p = unpack(part["confidence"])[0][:size]
        np.testing.assert_allclose(p, trace.confidence.values[t], atol=0.003)
    assert done["result_ids"] == answer_ids(trace) and done["answer"] == trace.text


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_streamed_run_and_its_stored_trace_are_the_same_bytes(page, first, models, name):
    started, *steps, done = first[name]
    trace = traced(models[name], samplers()[name])
    whole = scene_of(trace, budget=8_000_000, fetched=True)
    differ = {"vocabulary", "classes", "model"}  # these grow, and how it ended is not known yet
    streamed = started["scene"]
    for part in streamed.keys() - differ:
        assert streamed[part] == whole[part], part
    assert streamed["model"] | {"ended": done["ended"]} == whole["model"]
    for growing, part in (("vocabulary", "words"), ("classes", "new_classes")):
        assert [word for step in steps for word in step[part]] == whole[growing]
    for part in ("canvas", "class", "masked", "anchors", "anchor_count", "peak_key"):
        codes = [base64.b64decode(step["scene"][part]["data"]) for step in steps]
        assert b"".join(codes) == base64.b64decode(whole[part]["data"]), part
    for t, step in enumerate(steps):  # scaled by the largest value of the step
        alone = scene_of(trace.at_step(t), budget=8_000_000)
        parts = ["range", "null", "reach", "share", "anchors", "anchor_count", "peak", "peak_key"]
        for part in [*parts, "single_heads", *({"from"} & alone.keys())]:
            assert as_json(step["scene"][part]) == as_json(alone[part]), (t, part)
    # The server of the run, and the one of the saved trace, answer with the same text.
    status, served = page.ask("GET", f"scene/{done['run']}")
    assert status == 200 and as_json(served) == as_json(whole)


TOUCHES = {
    "LLaDA": [
        (
            [{"kind": "force", "position": 2, "token": 65}],
            lambda m, p: fs.interventions.ForceToken(2, 65, 2),
        ),
        (
            [{"kind": "remask", "positions": [0, 1]}],
            lambda m, p: fs.interventions.Remasked([0, 1], 2),
        ),
        (
            [{"kind": "ablate", "heads": [[1, 2], [0, 0]]}],
            lambda m, p: fs.interventions.AblateHeads(((1, 2), (0, 0)), steps=slice(2, None)),
        ),
        (
            [{"kind": "ablate", "heads": [[1, 2]], "to": "mean"}],
            lambda m, p: fs.interventions.AblateHeads(
                ((1, 2),), "mean", slice(2, None), fs.interventions.HeadMeans.of(m, [p])
            ),
        ),
        (
            [{"kind": "hide", "positions": [-9, -8], "layers": [0, 1], "heads": [1]}],
            lambda m, p: fs.interventions.MaskTokens(
                [0, 1], [1], slice(2, None), positions=[len(m.encode(p).ids) - n for n in (9, 8)]
            ),
        ),
        (
            [{"kind": "hide", "positions": [3]}],
            lambda m, p: fs.interventions.MaskTokens(steps=slice(2, None), regions=("answer 3",)),
        ),
        (
            [{"kind": "value", "positions": [-4], "to": "mean"}],
            lambda m, p: fs.interventions.MaskValues(
                steps=slice(2, None), positions=[len(m.encode(p).ids) - 4], to="mean"
            ),
        ),
        (
            [{"kind": "cut", "queries": ["answer"], "keys": ["gold"]}],
            lambda m, p: fs.interventions.CutEdges(
                steps=slice(2, None), queries=("answer",), keys=("gold",)
            ),
        ),
        (
            [
                {"kind": "force", "position": 2, "token": 65},
                {"kind": "hide", "positions": [2]},
            ],
            lambda m, p: fs.interventions.Combined(
                (
                    fs.interventions.ForceToken(2, 65, 2),
                    fs.interventions.MaskTokens(steps=slice(2, None), regions=("answer 2",)),
                )
            ),
        ),
    ],
    "Llama": [
        (
            [{"kind": "force", "position": 2, "token": 65}],
            lambda m, p: fs.interventions.ForceToken(2, 65),
        ),
        (
            [{"kind": "ablate", "heads": [[1, 2]]}, {"kind": "hide", "positions": [-3, 1]}],
            lambda m, p: fs.interventions.Combined(
                (
                    fs.interventions.AblateHeads(((1, 2),), steps=slice(2, None)),
                    fs.interventions.MaskTokens(
                        steps=slice(2, None), positions=[len(m.encode(p).ids) - 3]
                    ),
                    fs.interventions.MaskTokens(steps=slice(2, None), regions=("answer 1",)),
                )
            ),
        ),
    ],
}


def placed(touches, start):
    """Positions of the cases count from the answer; those of the page from the prompt's first."""
    moved = []
    for touch in touches:
        one = dict(touch)
        if "position" in one:
            one["position"] += start
        if "positions" in one:
            one["positions"] = [start + p for p in one["positions"]]
        moved.append(one)
    return moved


@pytest.mark.parametrize(
    ("name", "case"), [(name, i) for name, cases in TOUCHES.items() for i in range(len(cases))]
)
def test_a_branch_is_the_intervention_token_by_token(page, first, models, name, case, monkeypatch):
    touches, make = TOUCHES[name][case]
    model, origin = models[name], first[name][0]["run"]
    prompt = fs.Prompt.rag(PROMPT["question"], PROMPT["passages"], gold=1)
    start = len(model.encode(prompt).ids)
    request = {"from": {"run": origin, "step": 2}, "touches": placed(touches, start)}
    started, *_, done = page.run(request)
    assert done["event"] == "done", done
    expected = traced(model, samplers()[name], make(model, prompt))
    plain = traced(model, samplers()[name])
    assert done["result_ids"] == answer_ids(expected)
    assert all(touch["step"] == 2 and touch["text"] for touch in started["touches"])
    assert started["from"] == {"run": origin, "step": 2} and done["steps"] == expected.n_steps
    # What changed, against the two traces themselves.
    changed = done["changed"]
    was, now = answer_ids(plain), answer_ids(expected)
    differ = [start + i for i, (a, b) in enumerate(zip(was, now, strict=True)) if a != b]
    assert [one["position"] for one in changed["tokens"]] == differ
    assert changed["answer"] == {
        "was": plain.text,
        "is": expected.text,
        "same": plain.text == expected.text,
    }
    gap = np.abs(plain.mass - expected.mass).sum("key").transpose("step", "layer", "head") / 2
    np.testing.assert_allclose(
        changed["attention"]["distance"], gap.mean(["layer", "head"])[2:], rtol=1e-4, atol=1e-7
    )
    assert (plain.canvas.values[:3] == expected.canvas.values[:3]).all()
    # The lines that the page gives repeat it.
    code = page.post("python", {"run": done["run"]})["code"]
    assert f"model = fs.load({model.name!r})" in code
    if case != len(TOUCHES[name]) - 1:  # once for each model it is loaded, as the lines say
        monkeypatch.setattr(fs, "load", lambda name: model)
    scope = {}
    exec(code, scope)
    np.testing.assert_array_equal(scope["trace"].canvas, expected.canvas)
    assert scope["trace"].interventions == expected.interventions
    page.post("forget", {"runs": [done["run"]]})


def test_a_branch_of_a_branch_keeps_what_was_touched(page, first):
    origin, start = first["LLaDA"][0]["run"], first["LLaDA"][0]["scene"]["prompt_length"]
    force = {"kind": "force", "position": start + 2, "token": 65}
    one = page.run({"from": {"run": origin, "step": 1}, "touches": [force]})
    back = {"kind": "remask", "positions": [start + 2]}
    two = page.run({"from": {"run": one[0]["run"], "step": 3}, "touches": [back]})
    assert [t["kind"] for t in two[0]["touches"]] == ["force", "remask"]
    assert [t["step"] for t in two[0]["touches"]] == [1, 3]
    canvas = [unpack(step["scene"]["canvas"])[0][start + 2] for step in two[1:-1]]
    assert unpack(two[5]["scene"]["masked"])[0][start + 2] == 1 and len(canvas) == 6
    # The address of a branch is complete: on another page it gives the same.
    state = two[-1]["state"]
    again = page.post("state", state)
    assert again["missing"] == []
    repeated = page.run(again["runs"][0])
    assert repeated[-1]["result_ids"] == two[-1]["result_ids"]
    elsewhere = json.loads(json.dumps(state))
    elsewhere["runs"][0]["fingerprint"] = "0" * 16
    missing = page.post("state", elsewhere)
    assert missing["runs"] == [None] and "--model" in missing["missing"][0]["remedy"]
    assert missing["missing"][0]["run"] == 0 and missing["waiting"] == []
    assert missing["state"]["runs"][0]["touches"] == state["runs"][0]["touches"]


def test_samplers_that_draw_branch_from_what_they_drew(page, models):
    """The steps before a touch draw what they drew; so do those after it, with other logits."""
    model = models["LLaDA"]
    settings = {"length": 8, "steps": 12, "temperature": 1.0, "seed": 3}
    plain = page.run(
        {
            "model": "m0",
            "prompt": {"text": "Hi there"},
            "sampler": {"name": "remask", "settings": settings},
        }
    )
    start = plain[0]["scene"]["prompt_length"]
    branch = page.run(
        {
            "from": {"run": plain[0]["run"], "step": 4},
            "touches": [{"kind": "force", "position": start + 1, "token": 70}],
        }
    )
    sampler = fs.samplers.Remask(**settings)
    with fs.interventions.ForceToken(1, 70, 4)(model):
        expected = model.generate("Hi there", sampler)
    assert branch[-1]["result_ids"] == expected.answer_ids
    assert branch[-1]["changed"]["first"] == 5
    for one, other in zip(plain[1:6], branch[1:6], strict=True):
        assert one["scene"]["canvas"]["data"] == other["scene"]["canvas"]["data"]


# What changed, and which heads matter


@pytest.fixture(scope="module")
def ablated(page, first):
    """A branch of the diffusion model's run: its last event."""
    touch = {"kind": "ablate", "heads": [[1, 2]], "step": 0}
    origin = {"run": first["LLaDA"][0]["run"], "step": 0}
    return page.run({"from": origin, "touches": [touch]})[-1]


def test_attention_of_two_steps_is_compared_before_it_is_rounded(page, first, models, ablated):
    run, model = first["LLaDA"][0]["run"], models["LLaDA"]
    prompt = fs.Prompt.rag(PROMPT["question"], PROMPT["passages"], gold=1)
    change = fs.interventions.AblateHeads(((1, 2),))
    traces = [traced(model, samplers()["LLaDA"], c) for c in (None, change)]
    was, now = (t.mass.transpose("step", "layer", "head", "key").values for t in traces)
    for step, other in ((0, 0), (2, 3), (5, 5)):
        found = page.get(f"compare/{run}/{ablated['run']}/{step}/{other}")
        gap = (now[other].astype(float) - was[step]).copy()
        distance = np.abs(gap).sum(-1) / 2
        assert found["steps"] == [step, other]
        np.testing.assert_allclose(found["distance"], distance.mean(), rtol=1e-5, atol=1e-8)
        np.testing.assert_allclose(found["layers"], distance.mean(1), rtol=1e-5, atol=1e-8)
        top = found["top"]
        np.testing.assert_allclose(top["distance"], distance.max(), rtol=1e-5)
        np.testing.assert_allclose(distance[top["layer"], top["head"]], distance.max(), rtol=1e-5)
        rows = unpack(found["difference"])
        rounding = np.abs(rows).max() / 65534
        expected = np.concatenate([gap.mean(1), gap.mean((0, 1))[None]])
        np.testing.assert_allclose(rows, expected, atol=rounding + 1e-8)
        (row,) = unpack(
            page.get(f"compare/{run}/{ablated['run']}/{step}/{other}/1/3")["difference"]
        )
        np.testing.assert_allclose(row, gap[1, 3], atol=np.abs(row).max() / 65534 + 1e-8)
    assert model.encode(prompt).ids  # the traces are of the page's prompt
    same = page.get(f"compare/{run}/{run}/2/2")
    assert same["distance"] == same["top"]["distance"] == 0 and not unpack(same["difference"]).any()
    assert 0 < same["resolution"] < 1e-6
    assert page.get(f"compare/{run}/{run}")["same"] and not ablated["changed"]["same"]
    for wrong in ("9/0", "0/9", "0/0/9/0", "0/0/0/99"):
        assert page.ask("GET", f"compare/{run}/{run}/{wrong}")[0] == 404


def test_a_branch_without_one_of_the_edits(page, ablated, first):
    force = {"kind": "remask", "positions": [first["LLaDA"][0]["scene"]["prompt_length"]]}
    both = page.run({"from": {"run": ablated["run"], "step": 2}, "touches": [force]})
    fewer = page.run({"from": {"run": both[0]["run"], "step": 0, "without": [1]}})
    assert [t["kind"] for t in fewer[0]["touches"]] == ["ablate"]
    assert fewer[-1]["result_ids"] == ablated["result_ids"]
    none = page.run({"from": {"run": both[0]["run"], "step": 0, "without": [0, 1]}})
    assert none[0]["touches"] == [] and none[-1]["result_ids"] == first["LLaDA"][-1]["result_ids"]


def events_of(page, path, body):
    status, lines = page.ask("POST", path, body)
    assert status == 200
    return [json.loads(line) for line in lines.splitlines()]


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("own", [False, True])
def test_ranked_heads_are_those_that_ablation_finds(page, first, models, name, own):
    """Batched on the server; here each head and layer by itself, also in a run with an ablated head."""
    model, started = models[name], first[name][0]
    run, always = started["run"], [(0, 1)] if own else []
    if own:
        touch = {"kind": "ablate", "heads": always, "step": 0}
        branch = page.run({"from": {"run": run, "step": 0}, "touches": [touch]})
        run = branch[0]["run"]
    step, position = 3, started["scene"]["prompt_length"] + 3
    *progress, answer = events_of(page, "rank", {"run": run, "step": step, "position": position})
    assert [e["done"] for e in progress if e["event"] == "progress"] == [0, 1, 2]  # layers done
    archive = page.get(f"trace/{run}")
    trace = loaded_from(archive)
    canvas = trace.canvas.values[step]
    token = int(trace.canvas.values[-1, position])
    assert answer["token"]["id"] == token and len(answer["heads"]) == model.n_layers * model.n_heads

    def chance(heads):
        ids = torch.tensor(canvas[canvas >= 0])[None].long()
        with fs.interventions.AblateHeads(tuple(heads))(model) if heads else nullcontext():
            logits = model.logits(ids)[0, position - model.shift].float()
        if model.mask_id is not None:
            logits = logits.clone()
            logits[model.mask_id] = -torch.inf
        return float(logits.log_softmax(-1)[token])

    clean = chance(always)
    np.testing.assert_allclose(answer["token"]["p"], np.exp(clean), rtol=1e-4)
    for entry in answer["heads"]:
        expected = clean - chance({*always, (entry["layer"], entry["head"])})
        np.testing.assert_allclose(entry["effect"], expected, rtol=1e-3, atol=1e-5)
    for entry in answer["layers"]:
        whole = {(entry["layer"], head) for head in range(model.n_heads)}
        expected = clean - chance({*always, *whole})
        np.testing.assert_allclose(entry["effect"], expected, rtol=1e-3, atol=1e-5)
    for kind in ("heads", "layers"):
        effects = [entry["effect"] for entry in answer[kind]]
        assert effects == sorted(effects, reverse=True)


def loaded_from(archive):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "run.zip")
        path.write_bytes(archive)
        return fs.Trace.load(path)


def test_ranking_refuses_what_one_forward_does_not_repeat(page, first):
    start = first["LLaDA"][0]["scene"]["prompt_length"]
    origin = {"run": first["LLaDA"][0]["run"], "step": 0}
    hidden = page.run({"from": origin, "touches": [{"kind": "hide", "positions": [1]}]})
    (error,) = events_of(page, "rank", {"run": hidden[0]["run"], "step": 1, "position": start})
    assert error["event"] == "error" and "hide" in error["error"]["message"]
    assert "left" in error["error"]["remedy"]
    (error,) = events_of(page, "rank", {"run": origin["run"], "step": 1, "position": 0})
    assert "not one of the answer's" in error["error"]["message"]
    status, _ = page.ask("POST", "rank", {"run": origin["run"], "step": 99, "position": start})
    assert status == 404


def test_the_untrained_control_reads_the_same_canvases_as_sharply(page, first, models):
    run, model = first["LLaDA"][0]["run"], models["LLaDA"]
    *_, done = events_of(page, "control", {"run": run})
    assert done["event"] == "done" and done["name"] == f"{model.name} (permuted, seed 0)"
    trained, control = (loaded_from(page.get(f"trace/{r}")) for r in (run, done["run"]))
    np.testing.assert_array_equal(trained.canvas, control.canvas)
    assert control.info["fingerprint"] == done["fingerprint"] != model.fingerprint
    assert page.get(f"compare/{run}/{done['run']}")["attention"]["distance"][0] > 0.01
    texts, rows = texts_of(model, trained)
    nets = (model, control_of(model))
    scale = match_sharpness(nets[1], model, texts, rows)
    with sharpened(nets[1], scale):
        means = [entropies(net, texts)[:, :, rows].mean(-1) for net in nets]
        again = replaying(nets[1], trained, TraceOptions(keep=KEEP))
    assert (means[0] - means[1]).abs().max() < 0.01  # nats, of each head over masked rows
    np.testing.assert_allclose(control.mass, again.mass, rtol=1e-4, atol=1e-7)
    for path, body in (
        ("candidates", {"step": 0, "position": 60}),
        ("pattern", {"step": 0, "layer": 0, "head": 0}),
        ("rank", {"step": 0, "position": 60}),
        ("python", {}),
        ("control", {}),
    ):
        status, refused = page.ask("POST", path, {"run": done["run"], **body})
        assert status == 400 and "untrained control" in refused["error"]["message"]
    status, _ = page.ask("POST", "run", {"from": {"run": done["run"], "step": 0}})
    assert status == 400
    row = next(r for r in page.get("history")["runs"] if r["run"] == done["run"])
    assert row["control"] and row["from"] == {"run": run, "step": 0}


def texts_of(model, trace):
    from floatscope.livepage.control import _texts

    return _texts(model, trace)


def entropies(model, ids):
    """Entropy of each row of attention: layer, head, text, row."""
    found = {}

    def look(call, proceed):
        key = attention_hook.repeat_kv(call.key, call.query.shape[1])
        scores = call.query @ key.transpose(-1, -2) * call.scale
        scores = scores.masked_fill(~attention_hook.explicit_mask(call), -torch.inf)
        weights = scores.double().softmax(-1)
        entropy = -(weights * weights.clamp(min=1e-30).log()).sum(-1)
        found[call.layer] = entropy.transpose(0, 1)
        return proceed(call)

    with attention_hook.attach(model.net, look, innermost=True):
        model.logits(ids)
    return torch.stack([found[layer] for layer in sorted(found)])


def test_a_causal_control_decodes_by_itself(page, first, models):
    *_, done = events_of(page, "control", {"run": first["Llama"][0]["run"]})
    trace = loaded_from(page.get(f"trace/{done['run']}"))
    assert trace.n_steps == 6 and trace.info["direction"] == "causal"
    branch = page.run(
        {
            "from": {"run": first["Llama"][0]["run"], "step": 0},
            "touches": [{"kind": "ablate", "heads": [[0, 0]]}],
        }
    )
    (*_, error) = events_of(page, "control", {"run": branch[0]["run"]})
    assert "without edits" in error["error"]["message"]


# Closer


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("touch", [None, "ablate"])
def test_candidates_and_patterns_are_those_of_the_step(page, first, models, name, touch):
    model, step = models[name], 3
    run, change = first[name][0]["run"], None
    if touch:
        change = fs.interventions.AblateHeads(((1, 2),), steps=slice(1, None))
        touches = [{"kind": "ablate", "heads": [[1, 2]]}]
        run = page.run({"from": {"run": run, "step": 1}, "touches": touches})[0]["run"]
    trace = traced(model, samplers()[name], change)
    position = int(np.flatnonzero(trace.change.values[step] == 1)[0])  # revealed by this step
    found = page.post("candidates", {"run": run, "step": step, "position": position})
    best, token = found["candidates"][0], int(trace.canvas.values[step + 1, position])
    assert found["masked"] and best["id"] == token and len(found["candidates"]) == 5
    np.testing.assert_allclose(best["p"], trace.confidence.values[step, position], rtol=1e-4)
    assert [one["p"] for one in found["candidates"]] == found["layers"][-1]["p"]
    assert len(found["layers"]) == model.n_layers
    # A pattern's column means are the mass that the trace holds.
    pattern = page.post("pattern", {"run": run, "step": step, "layer": 1, "head": 3})
    matrix = unpack(pattern["pattern"])
    np.testing.assert_allclose(matrix.sum(-1), 1, rtol=2e-3)
    mass = trace.mass.transpose("step", "layer", "head", "key").values[step, 1, 3]
    np.testing.assert_allclose(matrix.mean(0), mass[: len(matrix)], rtol=3e-3, atol=1e-6)
    row = page.post("pattern", {"run": run, "step": step, "layer": 1, "head": 3, "row": position})
    np.testing.assert_allclose(unpack(row["row"]), matrix[position - model.shift], rtol=2e-3)
    if not touch:
        exact = model.pattern(trace, step=step, layer=1, head=3)
        np.testing.assert_allclose(matrix, exact, rtol=2e-3, atol=1e-6)
        lens = traced_lens(model, samplers()[name])
        tokens = lens.isel(step=step, key=position)
        assert [one["best"]["id"] for one in found["layers"]] == tokens.values.tolist()
    assert not model.edits


def traced_lens(model, sampler):
    prompt = fs.Prompt.rag(PROMPT["question"], PROMPT["passages"], gold=1)
    trace = model.trace(prompt, sampler, keep=["lens"])
    return trace.data["lens_token"].transpose("step", "layer", "key")


# Kept


def test_runs_are_kept_shown_and_taken_away(page, first, models):
    run = first["LLaDA"][0]["run"]
    scene = page.get(f"scene/{run}")
    trace = traced(models["LLaDA"], samplers()["LLaDA"])
    assert scene == json.loads(json.dumps(scene_of(trace, budget=8_000_000, fetched=True)))
    assert page.get(f"scene/{run}/heads/2")["kept"] == [2]
    assert page.get(f"scene/{run}/head/1/2")["share"]["shape"][:3] == [6, 1, 1]
    index = page.get("index")
    assert {s["id"] for e in index["examples"] for s in e["scenes"]} >= {run}
    row = next(r for r in page.get("history")["runs"] if r["run"] == run)
    assert row["answer"] == trace.text and row["sampler"]["text"] == samplers()["LLaDA"].describe()
    alike = page.get(f"compare/{run}/{run}")
    assert alike["tokens"] == alike["order"] == [] and alike["first"] is None
    assert alike["answer"]["same"] and set(alike["attention"]["distance"]) == {0.0}
    short = {"name": "confidence", "settings": {"length": 1}}
    other = page.run({"model": "m0", "prompt": {"text": "Hi"}, "sampler": short})[0]["run"]
    status, refused = page.ask("GET", f"compare/{run}/{other}")
    assert status == 400 and "different prompts" in refused["error"]["message"]
    archive = zipfile.ZipFile(io.BytesIO(page.get(f"trace/{run}")))
    assert f"{run}.zarr/zarr.json" in archive.namelist()
    html = page.ask("POST", "export", {"runs": [run, first["Llama"][0]["run"]]})[1].decode()
    assert html.startswith("<!doctype html>") and html.count('"share":{') >= 2
    assert "connect-src" not in html and "http://" not in html.split("</style>")[0]
    assert html.count("<h2>What changed</h2>") == 1  # one prompt, token by token


def test_exported_branch_says_what_changed_and_nothing_becomes_markup(page):
    hostile = "<img src=x onerror=alert(1)>"
    prompt = {"question": hostile, "passages": [hostile]}
    origin = page.run({"model": "m0", "prompt": prompt, "sampler": SAMPLERS["LLaDA"]})
    ablate = {"kind": "ablate", "heads": [[1, 2]], "step": 0}
    branch = page.run({"from": {"run": origin[0]["run"], "step": 0}, "touches": [ablate]})
    changed = branch[-1]["changed"]
    html = page.ask("POST", "export", {"runs": [origin[0]["run"], branch[0]["run"]]})[1].decode()
    section = html.split("<h2>What changed</h2>")[1]
    moved = [f"<td>{t}</td><td>{100 * d:.3g} %</td>" for t, d in enumerate(distances(changed))]
    assert all(line in section for line in moved) and len(moved) == origin[-1]["steps"]
    assert "from step 0, layer 1 head 2 ablated" in html.split("<h2>Edits</h2>")[1]
    assert "<img" not in html
    twice = page.run({"model": "m0", "prompt": prompt, "sampler": SAMPLERS["LLaDA"]})
    html = page.ask("POST", "export", {"runs": [origin[0]["run"], twice[0]["run"]]})[1].decode()
    section = html.split("<h2>What changed</h2>")[1]
    assert "No change" in section and section.count("<td>no change</td>") == len(moved)


def distances(changed):
    return changed["attention"]["distance"]


def test_a_saved_trace_opens(page, first, tmp_path, models):
    run = first["Llama"][0]["run"]
    zipfile.ZipFile(io.BytesIO(page.get(f"trace/{run}"))).extractall(tmp_path)
    loaded = fs.Trace.load(tmp_path / f"{run}.zarr")
    expected = traced(models["Llama"], samplers()["Llama"])
    np.testing.assert_allclose(loaded.mass, expected.mass, rtol=1e-6)
    (tmp_path / "saved.zip").write_bytes(page.get(f"trace/{run}"))
    assert fs.Trace.load(tmp_path / "saved.zip").data.identical(loaded.data)


def test_a_branch_may_only_leave_from_where_it_was(page, first):
    run = first["Llama"][0]["run"]
    start = first["Llama"][0]["scene"]["prompt_length"]
    wrong = [
        ({"from": {"run": "r999", "step": 0}}, 404),
        ({"from": {"run": run, "step": 99}}, 404),
        ({"from": {"run": run, "step": 0}, "model": "m0"}, 400),
    ]
    for body, status in wrong:
        assert page.ask("POST", "run", body)[0] == status
    refused = [
        {"kind": "remask", "positions": [start]},  # a causal model has no mask
        {"kind": "force", "position": start + 4, "token": 65},  # another step's position
        {"kind": "force", "position": 0, "token": 65},
        {"kind": "force", "position": start + 1, "token": 999_999},
        {"kind": "ablate", "heads": [[99, 0]]},
        {"kind": "hide", "positions": [5000]},
        {"kind": "cut", "queries": ["nobody"], "keys": ["question"]},
    ]
    for touch in refused:
        (error,) = page.run({"from": {"run": run, "step": 1}, "touches": [touch]})
        assert error["event"] == "error" and error["error"]["kind"] == "usage"
        assert error["error"]["remedy"]


@pytest.fixture
def small(llada):
    from floatscope.livepage.notebook import live

    with live(llada) as shown:
        yield shown


def test_the_oldest_runs_make_room_and_it_is_said(small):
    from live_client import Client

    page = Client(small._server).ready()
    small._server.page.runs.most = 2
    ask = {
        "model": "m0",
        "prompt": {"text": "Hi"},
        "sampler": {"name": "confidence", "settings": {"length": 1}},
    }
    ends = [page.run(ask)[-1] for _ in range(3)]
    assert [end["dropped"] for end in ends] == [[], [], ["r1"]]
    history = page.get("history")
    assert [row["run"] for row in history["runs"]] == ["r3", "r2"] and history["dropped"] == 1
    status, gone = page.ask("GET", "scene/r1")
    assert status == 404 and "history" in gone["error"]["remedy"]
    assert small.url in small._repr_html_() and "iframe" in small._repr_html_()
    folder = small._server.page.runs.folder
    assert folder.exists()
    small.close()
    assert not folder.exists()
