"""Scenes: what a page carries of a trace, how exact it is, and what it says it left out."""

import json

import numpy as np
import planted
import pytest
import unpacking
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

import floatscope as fs
from floatscope.scenes import codec
from floatscope.scenes.pack import scene_of

ROOM = 10**9


def shares(shape, low=1e-9, seed=0):
    return 10 ** np.random.default_rng(seed).uniform(np.log10(low), 0, shape)


@settings(deadline=None, max_examples=60)
@given(
    values=st.lists(
        st.one_of(st.just(float("nan")), st.just(0.0), st.floats(1e-12, 1.0)), min_size=1
    ),
    dtype=st.sampled_from(["uint8", "uint16"]),
)
def test_log_codes_are_as_exact_as_they_say(values, dtype):
    values = np.array(values)
    packed = codec.pack_log(values, dtype)
    found = unpacking.unpack(packed)
    assert (np.isnan(found) == np.isnan(values)).all()
    there = np.isfinite(values)
    allowed = unpacking.relative_error(packed) * values[there] * (1 + 1e-9) + 1e-300
    near = np.abs(found[there] - values[there]) <= allowed
    small = (values[there] < unpacking.floor_of(packed)) & (
        found[there] <= unpacking.floor_of(packed)
    )
    assert (near | small).all()
    assert (found[values == 0] == 0).all()


@pytest.mark.parametrize(("dtype", "promised"), [("uint8", 0.023), ("uint16", 0.00013)])
def test_the_error_of_a_share_is_bounded(dtype, promised):
    """One byte: two digits; two bytes: more than three. Down to the floor, which is far below chance."""
    values = shares((50, 40))
    packed = codec.pack_log(values, dtype)
    assert unpacking.relative_error(packed) < promised
    kept = values > unpacking.floor_of(packed) * 1.1
    error = np.abs(unpacking.unpack(packed) / values - 1)[kept]
    assert error.max() <= unpacking.relative_error(packed) * 1.001
    assert unpacking.floor_of(packed) <= values.max() / 2**16 * 1.01


@settings(deadline=None, max_examples=30)
@given(
    values=st.lists(st.one_of(st.just(float("nan")), st.floats(-1e3, 1e3)), min_size=1),
    dtype=st.sampled_from(["uint8", "uint16"]),
)
def test_linear_codes_are_within_half_a_step(values, dtype):
    values = np.array(values)
    packed = codec.pack_linear(values, dtype)
    found = unpacking.unpack(packed)
    assert (np.isnan(found) == np.isnan(values)).all()
    assert np.nanmax(np.abs(found - values), initial=0) <= packed["scale"] * 0.5001 + 1e-12


def test_whole_numbers_come_back_and_those_too_large_are_refused():
    numbers = np.array([[0, 5, 254], [-1, 7, 9]])
    assert (unpacking.unpack(codec.pack_index(numbers, "uint8")) == numbers).all()
    with pytest.raises(ValueError, match="does not fit"):
        codec.pack_index([255], "uint8")
    with pytest.raises(ValueError, match="negative"):
        codec.pack_log([-0.1])


def trace_with(steps=6, layers=3, heads=2, prompt=20, answer=6, causal=False, **more):
    """A decoding that reveals one position a step, from the right."""
    size = prompt + answer
    rng = np.random.default_rng(1)
    canvas = np.tile(np.arange(10, 10 + size), (steps + 1, 1))
    events = []
    for t in range(steps):
        canvas[: t + 1, size - 1 - t] = planted.MASK
        events.append((t, size - 1 - t, 10 + size - 1 - t))
    regions = ["question"] * 5 + ["passage 1"] * (prompt - 5) + ["answer"] * answer
    return planted.trace_of(
        planted.random_attention(rng, steps, layers, heads, size, causal=causal),
        causal=causal,
        regions=regions,
        prompt_length=prompt,
        canvas=canvas,
        events=events,
        gold="passage 1",
        **more,
    )


def test_a_scene_says_what_the_trace_says():
    trace = trace_with()
    scene = scene_of(trace, budget=ROOM)
    assert scene["left_out"] == []
    read = {name: unpacking.unpack(scene[name]) for name in ("share", "null", "reach", "peak")}
    mass = trace.mass.transpose("step", "layer", "head", "key")
    np.testing.assert_allclose(read["share"], mass.mean("head"), rtol=2e-4)
    np.testing.assert_allclose(read["null"], trace.null, rtol=2e-4)
    np.testing.assert_allclose(read["peak"], mass.max("key"), rtol=2e-4)
    single = unpacking.unpack(scene["single_heads"]["share"])
    np.testing.assert_allclose(single, mass, rtol=2e-4)
    received = read["share"] / read["reach"][:, None]
    expected = trace.received.mean("head").transpose("step", "layer", "key")
    np.testing.assert_allclose(received, expected, rtol=4e-4)
    from_groups = unpacking.unpack(scene["from"]["share"])
    for i, group in enumerate(scene["from"]["names"]):
        there = trace.mass_from(group).mean("head").transpose("step", "layer", "key").values
        np.testing.assert_allclose(from_groups[:, i], there, rtol=0.025)
    rows = trace.rows.transpose("event", "layer", "head", "rank", "target")
    assert (unpacking.unpack(scene["rows"]["key"]) == rows["row_key"]).all()
    np.testing.assert_allclose(
        unpacking.unpack(scene["rows"]["weight"]), rows["row_weight"], rtol=0.025
    )
    gold = rows["row_flow"].sel(target="passage 1").values
    np.testing.assert_allclose(unpacking.unpack(scene["gold_look"]), gold, rtol=0.025)
    json.dumps(scene, allow_nan=False)


def test_the_words_of_every_step():
    trace = trace_with()
    scene = scene_of(trace, budget=ROOM)
    canvas, masked = unpacking.unpack(scene["canvas"]), unpacking.unpack(scene["masked"])
    assert (masked == trace.data["masked"].values).all()
    tokens, final = trace.data["token"].values, trace.data["final_token"].values
    for step in range(6):
        for key in range(26):
            word = scene["vocabulary"][canvas[step, key]]
            assert word == ("" if masked[step, key] else tokens[step, key])
    tick, key, kind, word = unpacking.unpack(scene["changes"])[-1]
    assert (tick, key, kind, scene["vocabulary"][word]) == (5, 20, 1, final[20])
    assert scene["title"] == "t0t1t2t3t4" and scene["gold"] == "passage 1"
    classes = np.array(scene["classes"])[unpacking.unpack(scene["class"])]
    assert (classes == trace.data["token_class"].values).all()


def test_a_token_that_was_taken_back_is_named_by_its_id():
    """Where its spelling is not known: in a step that was not kept."""
    trace = trace_with()
    trace.data["canvas"].values[2, 3] = 999
    fewer = fs.Trace(trace.data.isel(step=[0, 4]))
    fewer.data["change"].values[1, 3] = 1
    assert "⟨token 999⟩" in scene_of(fewer, budget=ROOM)["vocabulary"]


def test_a_token_that_was_taken_back_is_spelled(llada):
    trace = llada.trace([5, 6, 7], fs.samplers.Remask(length=6, steps=12))
    gone = np.setdiff1d(trace.canvas.values, [*trace.canvas.values[-1], llada.mask_id])
    assert len(gone)
    words = scene_of(trace, budget=ROOM)["vocabulary"]
    assert set(llada.token_texts(gone.tolist())) <= set(words)
    assert not any("⟨token" in word for word in words)


@pytest.mark.parametrize(
    "rule", [fs.anchors.ZScore(1.5), fs.anchors.Share(0.07), fs.anchors.Robust(3)]
)
def test_anchors_are_those_of_the_rule(rule):
    trace = trace_with()
    scene = scene_of(trace, rule=rule, budget=ROOM)
    found, passed = (
        unpacking.unpack(scene["anchors"]),
        rule(trace).transpose("step", "layer", "key"),
    )
    received = trace.received.mean("head").transpose("step", "layer", "key").values
    assert (unpacking.unpack(scene["anchor_count"])[:, :-1] == passed.sum("key")).all()
    for step in range(6):
        for layer in range(3):
            keys = np.flatnonzero(passed[step, layer])
            best = sorted(keys, key=lambda k: -received[step, layer, k])[:5]
            assert [k for k in found[step, layer] if k >= 0] == best


def test_keys_that_are_not_there_yet_are_not_there(llama):
    trace = llama.trace([5, 6, 7, 8], fs.Autoregressive(length=4, stop_at_eos=False))
    scene = scene_of(trace, budget=ROOM)
    share = unpacking.unpack(scene["share"])
    expected = trace.mass.mean("head").transpose("step", "layer", "key").values
    assert np.isnan(expected).any() and (np.isnan(share) == np.isnan(expected)).all()
    np.testing.assert_allclose(share, expected, rtol=2e-4)
    assert (unpacking.unpack(scene["canvas"])[0] == -1).sum() == 4
    assert any("finds no anchor" in said for said in scene["left_out"])


def test_a_budget_is_kept_and_what_was_left_out_is_said():
    trace = trace_with(steps=6, layers=6, heads=8, prompt=200)
    whole = len(json.dumps(scene_of(trace, budget=ROOM)))
    seen = set()
    for budget in np.linspace(30_000, whole * 1.1, 12).astype(int):
        scene = scene_of(trace, budget=int(budget))
        assert len(json.dumps(scene)) <= budget * 1.02
        seen |= {said.split(" ")[0] for said in scene["left_out"]}
        single = scene["single_heads"]
        if single:
            kept = unpacking.unpack(single["share"])
            mass = trace.mass.transpose("step", "layer", "head", "key").values
            here = [scene["steps"][i] for i in single["kept"]]
            np.testing.assert_allclose(kept, mass[here], rtol=0.025)
            if len(here) > 1:
                assert here[0] == 0 and here[-1] == scene["steps"][-1]
    assert {"sampled", "single"} <= seen
    with pytest.raises(fs.UsageError, match="does not fit"):
        scene_of(trace, budget=5000)


def test_a_saved_trace_gives_the_same_scene(tmp_path):
    trace = trace_with()
    path = trace.save(tmp_path / "t.zarr")
    assert scene_of(fs.Trace.load(path, lazy=True)) == scene_of(trace)


def test_two_models_share_an_example_where_they_share_a_prompt():
    one, other = scene_of(trace_with()), scene_of(trace_with(causal=True))
    assert one["example"] == other["example"]
    assert scene_of(trace_with(), example="mine", title="Mine")["example"] == "mine"


def test_a_scene_taken_apart_is_put_together_again():
    scene = scene_of(trace_with(), budget=ROOM)
    rest, data = codec.take_arrays(scene)
    rest = json.loads(json.dumps(rest))
    assert {"share", "rows/event", "single_heads/anchors"} <= set(data.data_vars)
    assert {array.dtype.name for array in data.data_vars.values()} <= {"uint8", "uint16"}
    assert len(json.dumps(rest)) < len(json.dumps(scene)) / 2
    assert codec.put_arrays(rest, data) == scene


@pytest.mark.parametrize("change", ["dtype", "code", "missing", "scale"])
def test_what_is_no_packed_array_is_not_put_into_a_scene(change):
    codes = np.zeros((2, 3), np.float32 if change == "dtype" else np.uint8)
    data = xr.Dataset({} if change == "missing" else {"share": (("x", "y"), codes)})
    said = {"code": "<script>" if change == "code" else "log", "scale": 1.0, "offset": 0.0}
    if change == "scale":
        said["scale"] = "<script>"
    with pytest.raises((ValueError, KeyError)):
        codec.put_arrays({"share": said}, data)
