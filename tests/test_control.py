"""The untrained control in a study: planned, traced, paired with its model, drawn beside it."""

import json
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import floatscope as fs
from floatscope.measures.align import by_example
from floatscope.measures.style import UNTRAINED
from floatscope.stats.halves import halves
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


def shards(request, kind="control"):
    return [s for s in plan(request).shards if s.id.startswith(kind)]


def test_every_model_has_its_controls_on_the_same_prompts(checkpoints, data):
    asked = request(checkpoints, data)
    planned = shards(asked)
    assert len(planned) == 2 * 2 * 2  # models, seeds, shards of three examples
    assert {s.spec["control"] for s in planned} == {5, 6}
    traced = {(s.spec["model"], s.spec["start"], s.spec["stop"]) for s in shards(asked, "trace")}
    assert {(s.spec["model"], s.spec["start"], s.spec["stop"]) for s in planned} == traced
    assert shards(request(checkpoints, data, controls=0)) == []
    assert (
        shards(request(checkpoints, data, studies=("knowledge",))) == []
    )  # no measures, no control
    assert len(shards(request_of({"studies": ["floating"], "models": ["pair/mdm"]}))) == 3


def test_a_study_may_do_without(checkpoints, data, monkeypatch):
    monkeypatch.setattr(type(STUDIES.named("floating")), "control", False)
    assert shards(request(checkpoints, data)) == []
    both = request(checkpoints, data, studies=("floating", "geometry"), limit=2, controls=1)
    assert len(shards(both)) == 2


def test_the_control_is_the_permuted_model_measured_here(found, checkpoints, data):
    model = fs.load(checkpoints["LLaDA"], weights="permuted", seed=6)
    prompts = [PlainTemplate().prompt(r) for r in fs.read_records(data).records]
    traces = [model.trace(p, fs.Confidence(length=4, steps=2, seed=5)) for p in prompts]
    there = found.result("absorption", found.mdm, control=6)
    for value in (here := found.measures["absorption"](traces)).values:
        np.testing.assert_allclose(here[value], there[value], rtol=1e-4, atol=1e-6)
    for control in (5, None):
        other = found.result("absorption", found.mdm, control=control)
        assert not np.allclose(there["first"], other["first"])


def test_models_and_the_viewer_know_the_trained_ones_alone(found):
    assert list(found.models) == ["LLaDA", "Llama"]
    assert all("permuted" not in about["name"] for about in found.models.values())
    assert [(model, index) for model, _, _, index in found.shown()] == [("LLaDA", 0), ("Llama", 0)]
    control = next(s for s in found.plan.shards if "control" in s.spec)
    assert "permuted" in found.run.read(control.id, ()).meta["model"]["name"]


def test_examples_are_paired_by_their_prompt(found):
    ids = [record.id for record in fs.read_records(found.request.data).records]
    trained = found.result("absorption", found.mdm)
    control = found.control("absorption", found.mdm)
    assert trained.examples["example"].values.tolist() == ids
    assert control.examples["example"].values.tolist() == ids * 2 and control.n == 6
    a, b = found.paired("absorption", "first", found.mdm, control)
    np.testing.assert_array_equal(a, trained.examples["first"].transpose("example", ...))
    seeds = [found.result("absorption", found.mdm, control=s).examples["first"] for s in (5, 6)]
    both = (seeds[0].values + seeds[1].values) / 2
    np.testing.assert_allclose(b, both.reshape(b.shape), rtol=1e-6)
    mdm, arm = found.paired("absorption", "first", found.mdm, found.arm)
    assert len(mdm) == len(arm) == 3
    assert found.paired("absorption", "first", found.mdm, None) is None
    assert found.paired("absorption", "nothing", found.mdm, found.arm) is None


def test_pairs_need_a_common_prompt():
    a = xr.DataArray([1.0, 2.0, 4.0], dims="example", coords={"example": ["p", "q", "r"]})
    b = xr.DataArray([7.0, 5.0, np.nan], dims="example", coords={"example": ["r", "p", "p"]})
    one, other = by_example(a, b)
    assert one.tolist() == [1.0, 4.0] and other.tolist() == [5.0, 7.0]
    assert by_example(a, b.assign_coords(example=["x", "y", "z"])) is None


def test_tables_say_whose_weights(found):
    table = found.tables["absorption"]
    counts = table.groupby(["model", "weights"])["n"].agg(["size", "max"])
    assert counts.loc[("LLaDA", "trained"), "size"] == counts.loc[("LLaDA", "permuted"), "size"]
    assert counts["max"].to_dict() == {
        (model, weights): n
        for model in ("LLaDA", "Llama")
        for weights, n in {"trained": 3, "permuted": 6}.items()
    }


def test_figures_draw_the_control_lightly(found):
    for picture in STUDIES.named("floating").figures(found):
        assert "untrained control" in picture.alt
        axes = picture.draw().axes
        labels = [label for axis in axes for label in axis.get_legend_handles_labels()[1]]
        assert UNTRAINED in labels
        for axis in axes:
            assert axis.get_legend_handles_labels()[1].count(UNTRAINED) <= 1
    plain = found.result("absorption", found.mdm).plot()
    assert UNTRAINED not in [x for a in plain.axes for x in a.get_legend_handles_labels()[1]]


def test_a_run_cut_short_among_its_controls_ends_in_the_same_bytes(found, checkpoints, data):
    def produced():
        return {
            str(file): file.read_bytes()
            for pattern in ("shards/*.npz", "results/*", "summary.json")
            for file in Path(found.run.directory).glob(pattern)
        }

    before = produced()
    directory = Path(found.run.directory)
    lost = sorted(directory.glob("shards/control-1-*.npz"))
    assert len(lost) == 4
    for file in [*lost[1:], directory / "manifest.json", directory / "summary.json"]:
        file.unlink()
    summary, _ = run(request(checkpoints, data), directory)
    assert summary.computed == 3
    assert produced() == before


def test_run_json_says_how_many_and_is_read_back(found):
    asked = found.run.asked()["request"]
    assert asked["controls"] == 2 and Findings(found.run.directory).request == found.request


def test_halves_follow_from_ids_alone():
    ids = [f"q/{i}" for i in range(41)]
    first, second = halves(ids)
    assert sorted([*first, *second]) == list(range(41)) and len(first) == 21
    order = np.random.default_rng(0).permutation(41)
    mixed = [ids[i] for i in order]
    assert {mixed[i] for i in halves(mixed)[0]} == {ids[i] for i in first}
    assert {ids[i] for i in halves(ids, 1)[0]} != {ids[i] for i in first}
    twice = halves(ids + ids)[0]  # two seeds of a control: a prompt falls into one half
    assert twice.tolist() == [*first, *(first + 41)]
    assert [len(h) for h in halves([])] == [0, 0] and [len(h) for h in halves(["a"])] == [1, 0]


def test_halves_do_not_lean_to_either_side():
    """Over seeds, every id is in the first half half of the time."""
    ids = [str(i) for i in range(10)]
    share = np.mean([np.isin(np.arange(10), halves(ids, s)[0]) for s in range(400)], axis=0)
    assert (abs(share - 0.5) < 0.12).all()
