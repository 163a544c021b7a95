"""The untrained control in a study: planned, traced, paired with its model, drawn beside it."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import xarray as xr

import floatscope as fs
from floatscope.measures.comparing import by_example
from floatscope.models.sharpened import match_sharpness, sharpened
from floatscope.plots import UNTRAINED
from floatscope.stats.groups import groups
from floatscope.studies import STUDIES, Findings, request_of
from floatscope.studies.planning import plan
from floatscope.studies.run import run
from floatscope.tasks import PlainTemplate


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "questions.jsonl"
    rows = [
        {"question": f"What is {i}?", "answers": [f"word{i}"], "passages": [f"{i} is word{i}."]}
        for i in range(3)
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def request(checkpoints, data, **more):
    fields = {
        "studies": ("floating",),
        "models": (str(checkpoints["LLaDA"]), str(checkpoints["Llama"])),
        "data": str(data),
        "limit": 3,
        "questions": 2,
        "length": 4,
        "steps": 2,
        "view": 1,
        "shard": 2,
        "controls": 2,
        "seed": 5,
    }
    return request_of(fields | more)


@pytest.fixture(scope="module")
def found(checkpoints, data, tmp_path_factory):
    return run(request(checkpoints, data), tmp_path_factory.mktemp("run"))[1]


def controls(request):
    """The seeds of the controls that read beside each model's traces."""
    return [s.spec.get("controls", []) for s in plan(request).shards if s.id.startswith("trace")]


def test_controls_read_where_their_model_decodes(checkpoints, data):
    asked = request(checkpoints, data)
    assert controls(asked) == [[5, 6]] * 4  # two models, two shards of three examples
    assert controls(request(checkpoints, data, controls=0)) == [[]] * 4
    assert controls(request(checkpoints, data, studies=("knowledge",))) == [[]] * 4
    assert request_of({"studies": ["floating"], "models": ["pair/mdm"]}).controls == 5


def test_controls_are_planned_only_for_studies_that_use_them(checkpoints, data, monkeypatch):
    monkeypatch.setattr(type(STUDIES.named("floating")), "control", False)
    assert controls(request(checkpoints, data)) == [[]] * 4
    both = request(checkpoints, data, studies=("floating", "geometry"), limit=2, controls=1)
    assert controls(both) == [[5]] * 2


def test_the_control_is_the_permuted_model_as_sharp_as_the_trained_one(found, checkpoints, data):
    records = fs.tasks.read_records(data).records
    prompts = [PlainTemplate().prompt(record) for record in records]
    trained = fs.load(checkpoints["LLaDA"])
    model = fs.load(checkpoints["LLaDA"], weights="permuted", seed=6)
    ids = [
        [*trained.encode(p).ids, *trained.encode(fs.Prompt.plain(r.answers[0], chat=False)).ids]
        for p, r in zip(prompts, records, strict=True)
    ]
    size = min(map(len, ids))
    texts = torch.tensor([one[-size:] for one in ids])
    with sharpened(model, match_sharpness(model, trained, texts)):
        reads = [model.read(p, answer=r.answers[0]) for p, r in zip(prompts, records, strict=True)]
    there = found.result("absorption-same", found.mdm, control=6)
    for value in (here := found.measures["absorption-same"](reads)).values:
        np.testing.assert_allclose(here[value], there[value], rtol=1e-4, atol=1e-6)
    for control in (5, None):
        other = found.result("absorption-same", found.mdm, control=control)
        assert not np.allclose(there["first"], other["first"])
    assert found.result("absorption", found.mdm, control=6) is None  # controls do not decode


def test_models_and_the_viewer_list_only_trained_models(found):
    assert list(found.models) == ["LLaDA", "Llama"]
    assert all("permuted" not in about["name"] for about in found.models.values())
    assert [(model, index) for model, _, _, index in found.shown()] == [("LLaDA", 0), ("Llama", 0)]


def test_examples_are_paired_by_their_prompt(found):
    key = "absorption-same"
    ids = [record.id for record in fs.tasks.read_records(found.request.data).records]
    trained = found.result(key, found.mdm)
    control = found.control(key, found.mdm)
    assert trained.examples["example"].values.tolist() == ids
    assert sorted(control.examples["example"].values) == sorted(ids * 2) and control.n == 6
    a, b = found.paired(key, "first", found.mdm, control)
    np.testing.assert_array_equal(a, trained.examples["first"].transpose("example", ...))
    seeds = [found.result(key, found.mdm, control=s).examples["first"] for s in (5, 6)]
    both = (seeds[0].values + seeds[1].values) / 2
    np.testing.assert_allclose(b, both.reshape(b.shape), rtol=1e-6)
    mdm, arm = found.paired(key, "first", found.mdm, found.arm)
    assert len(mdm) == len(arm) == 3
    assert found.paired(key, "first", found.mdm, None) is None
    assert found.paired(key, "nothing", found.mdm, found.arm) is None


def test_pairs_need_a_common_prompt():
    a = xr.DataArray([1.0, 2.0, 4.0], dims="example", coords={"example": ["p", "q", "r"]})
    b = xr.DataArray([7.0, 5.0, np.nan], dims="example", coords={"example": ["r", "p", "p"]})
    one, other = by_example(a, b)
    assert one.tolist() == [1.0, 4.0] and other.tolist() == [5.0, 7.0]
    assert by_example(a, b.assign_coords(example=["x", "y", "z"])) is None


def test_tables_have_a_column_of_weights(found):
    table = found.tables["absorption-same"]
    counts = table.groupby(["model", "weights"])["n"].agg(["size", "max"])
    assert counts.loc[("LLaDA", "trained"), "size"] == counts.loc[("LLaDA", "permuted"), "size"]
    assert counts["max"].to_dict() == {
        (model, weights): n
        for model in ("LLaDA", "Llama")
        for weights, n in {"trained": 3, "permuted": 6}.items()
    }


def test_figures_draw_the_control_lightly(found):
    own, control = (one("absorption-same", found.mdm) for one in (found.result, found.control))
    for drawn, times in ((replace(own, control=control), 1), (own, 0)):
        labels = [
            label
            for axis in drawn.plot().axes
            for label in axis.get_legend_handles_labels()[1]
            if label == UNTRAINED
        ]
        assert len(labels) == times * len({id(a) for a in drawn.plot().axes if a.lines}) or (
            times and labels
        )


def test_a_resumed_run_gives_the_same_bytes(found, checkpoints, data):
    def produced():
        return {
            str(file): file.read_bytes()
            for pattern in ("shards/*.shard", "results/*", "summary.json")
            for file in Path(found.run.directory).glob(pattern)
        }

    before = produced()
    directory = Path(found.run.directory)
    lost = sorted(directory.glob("shards/trace-*.shard"))
    assert len(lost) == 4
    for file in [*lost[1:], directory / "manifest.json", directory / "summary.json"]:
        file.unlink()
    summary, _ = run(request(checkpoints, data), directory)
    assert summary.computed == 3
    assert produced() == before


def test_run_json_holds_the_number_of_controls(found):
    asked = found.run.read_request()["request"]
    assert asked["controls"] == 2 and Findings(found.run.directory).request == found.request


def test_groups_follow_from_ids_alone():
    ids = [f"q/{i}" for i in range(41)]
    made = groups(ids, 10)
    assert [len(one) for one in made] == [10] * 4 and len(np.unique(np.concatenate(made))) == 40
    order = np.random.default_rng(0).permutation(41)
    mixed = [ids[i] for i in order]
    assert {mixed[i] for i in groups(mixed, 10)[0]} == {ids[i] for i in made[0]}
    assert {ids[i] for i in groups(ids, 10, 1)[0]} != {ids[i] for i in made[0]}
    twice = groups(ids + ids, 10)[0]  # two seeds of a control: a prompt falls into one group
    assert twice.tolist() == [*made[0], *(made[0] + 41)]
    assert groups([], 2) == [] and groups(["a"], 2) == []


def test_groups_favour_no_id():
    """Over seeds, every id is in the first of two groups half of the time."""
    ids = [str(i) for i in range(10)]
    share = np.mean([np.isin(np.arange(10), groups(ids, 5, s)[0]) for s in range(400)], axis=0)
    assert (abs(share - 0.5) < 0.12).all()
