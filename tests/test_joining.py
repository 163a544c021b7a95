"""The short ways from a run's files to its tables give what xarray, pandas and numpy give."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from floatscope.engine import Output, Run
from floatscope.engine.shards import encode
from floatscope.measures.base import Measure
from floatscope.measures.result import side_by_side, summarise


def example(seed, *, kinds=("near", "far"), layers=3, extra=False, whole=False):
    rng = np.random.default_rng(seed)
    data = xr.Dataset(
        {
            "share": (("layer", "kind"), rng.random((layers, len(kinds))), {"units": "share"}),
            "share_null": ("layer", rng.random(layers)),
            "count": ((), rng.integers(9) if whole else rng.random()),
            "unlabelled": ("place", rng.random(2)),
        },
        {"layer": np.arange(layers), "kind": list(kinds), "depth": ("layer", rng.random(layers))},
        {"id": f"q{seed}", "gold": bool(seed % 2)},
    )
    data["share"].values[0, 0] = np.nan
    return data.assign(more=rng.random()) if extra else data


LIKE = [example(i) for i in range(4)]
FORMS = {
    "alike": LIKE,
    "one": LIKE[:1],
    "other categories": [*LIKE, example(5, kinds=("near", "else"))],
    "in another order": [*LIKE, example(5, kinds=("far", "near"))],
    "more categories": [*LIKE, example(5, kinds=("near", "far", "else"))],
    "fewer layers": [*LIKE, example(5, layers=2)],
    "another value": [*LIKE, example(5, extra=True)],
    "another type": [*LIKE, example(5, whole=True)],
    "already joined": [one.expand_dims("example") for one in LIKE],
}


@pytest.mark.parametrize("examples", FORMS.values(), ids=FORMS)
def test_examples_side_by_side_are_those_of_concat(examples):
    expected = xr.concat(examples, dim="example", join="outer", coords="minimal", compat="override")
    found = side_by_side(examples)
    xr.testing.assert_identical(found, expected)
    assert list(found.data_vars) == list(expected.data_vars)
    assert {k: v.dtype for k, v in found.variables.items()} == {
        k: v.dtype for k, v in expected.variables.items()
    }


@dataclass(frozen=True)
class Asked(Measure):
    """Its examples are given."""


def test_a_table_has_every_value_at_its_place():
    """Row by row against the labelled data; text stays text and whole numbers stay whole."""
    result = summarise(LIKE, Asked(), "a model", {"share": "share"})
    table = result.table()
    assert list(table.columns[:5]) == ["model", "measure", "value", "layer", "kind"]
    expected = result.data["share"].rename("mean").to_dataframe().reset_index()
    mine = table[table["value"] == "share"].reset_index(drop=True)
    pd.testing.assert_frame_equal(
        mine[["layer", "kind", "mean"]], expected[["layer", "kind", "mean"]], check_dtype=False
    )
    assert mine["kind"].dtype == expected["kind"].dtype
    for row in mine.itertuples():
        here = result.data.sel(layer=row.layer, kind=row.kind)
        np.testing.assert_array_equal(
            [row.null, row.lift, row.low, row.high],
            [here[f"share_{end}"] for end in ("null", "lift", "low", "high")],
        )
        one = [d["share"].sel(layer=row.layer, kind=row.kind) for d in LIKE]
        assert row.n == np.isfinite(one).sum() and row.unit == "share"
    assert list(table["value"]) == ["share"] * 6 + ["count", "unlabelled", "unlabelled"]
    assert table["mean"].iloc[6] == result.data["count"] and table["null"].isna().iloc[6]


def stored(folder, data):
    """Write datasets as a shard, and return the run that holds it."""
    run = Run(folder)
    run.shards.folder.mkdir()
    run.shards.write("a", encode("a", "key", Output(data)))
    return run


@pytest.mark.parametrize("examples", FORMS.values(), ids=FORMS)
def test_datasets_of_a_shard_come_back_as_they_were(tmp_path, examples):
    """Also where they were built as copies of one another, and one of these is changed."""
    run = stored(tmp_path, {f"{i}/key": example for i, example in enumerate(examples)})
    for i, example in enumerate(examples):
        data = run.read("a", (f"{i}/key",)).data[f"{i}/key"]
        xr.testing.assert_identical(data, example)
        data.attrs["id"] = "changed"
        for array in data.data_vars.values():
            array.attrs["units"] = "changed"
            array.values[...] = 0
    for i, data in enumerate(run.read("a").data.values()):
        xr.testing.assert_identical(data, examples[i])


def test_attributes_and_texts_of_a_shard_come_back_as_json_has_them(tmp_path):
    data = xr.Dataset(
        {"a": (("layer", "kind"), np.arange(6.0).reshape(2, 3), {"units": "×"}), "b": 1.5},
        {"layer": [0, 1], "kind": np.array(["x", "y", "é"], object)},
        {"gold": True, "luck": [0.5, 0.25], "n": np.int64(3)},
    )
    read = stored(tmp_path, {"7/key": data}).read("a").data["7/key"]
    assert read["kind"].dtype.kind == "U" and type(read.attrs["n"]) is int
    xr.testing.assert_identical(read, data.assign_coords(kind=["x", "y", "é"]))


def test_arrays_of_a_shard_come_back_as_they_were(tmp_path):
    arrays = {
        "number": np.array(1.5),
        "none": np.zeros((0, 3)),
        "empty text": np.array(["", ""]),
        "text": np.array([["é", "longer"]]),
        "bits": np.array([True, False]),
        "small": np.arange(6, dtype=np.int8).reshape(2, 3),
        "turned": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "half": np.arange(3, dtype=np.float16),
    }
    data = xr.Dataset(
        {n: ([f"{n} {axis}" for axis in range(a.ndim)], a) for n, a in arrays.items()}
    )
    read = stored(tmp_path, {"x": data}).read("a").data["x"]
    for name, expected in arrays.items():
        array = read[name].values
        np.testing.assert_array_equal(array, expected, strict=True)
        assert array.flags.c_contiguous
        array[...] = 0  # may be written to
