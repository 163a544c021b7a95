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
from floatscope.studies.values import flatten, unflatten


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


@pytest.mark.parametrize("examples", FORMS.values(), ids=FORMS)
def test_what_is_read_like_another_is_itself(examples):
    arrays, before = {}, None
    for i, one in enumerate(examples):
        said = flatten(one, f"{i}/key", arrays)
        before = unflatten(arrays, f"{i}/key", said, before)
        xr.testing.assert_identical(before, one)
        before.attrs["id"] = "changed"  # and is nobody else's
    xr.testing.assert_identical(
        unflatten(arrays, "0/key", flatten(examples[0], "0/key", {})), examples[0]
    )


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
    data = encode("a", "key", Output(arrays, {}))
    run = Run(tmp_path)
    run.shards.folder.mkdir()
    run.shards.write("a", data)
    read = run.read("a").arrays
    for name, expected in arrays.items():
        np.testing.assert_array_equal(read[name], expected, strict=True)
        assert read[name].flags.c_contiguous
        read[name][...] = 0  # may be written to
