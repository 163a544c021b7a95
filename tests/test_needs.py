"""Head means of a trace, and what each measure says that it needs: enough, and no more."""

import numpy as np
import pytest
import test_expert_routing
import xarray as xr
from planted import random_attention, trace_of

import floatscope as fs
from floatscope.measures import MEASURES, Absorption, Drift, Geometry, RegionFlow, StrongestKey
from floatscope.measures.base import Measure
from floatscope.stats.anchors import ZScore
from floatscope.studies import request_of
from floatscope.studies.kept_models import KeptModels
from floatscope.studies.library.geometry import PartsByRule
from floatscope.studies.worker import ShardWorker

VARIABLES = {  # of a trace, by statistic
    name: [array.name for array in row.arrays if array.name != "rows_counted"]
    for name, row in fs.statistics.STATISTICS.items()
} | {"rows": ("row_key", "row_weight", "row_flow")}
HEAD = ZScore(2.0, per_head=True)
EVERY = {name: measure() for name, measure in MEASURES.items()} | {
    "absorption of heads": Absorption(rule=HEAD),
    "drift of heads": Drift(rule=HEAD),
    "drift over layers": Drift(over="layer"),
    "geometry by the head mean": Geometry(rule=ZScore(2.0)),
    "flow from the answer": RegionFlow(rows="answer"),
    "strongest key of heads": StrongestKey(per_head=True),
    "parts by rule": PartsByRule(),
}


def keeping(trace, statistics):
    """Return the trace as it would be had it kept these statistics alone."""
    data = trace.data
    if "column_mean" not in data:
        data = data.assign(column_mean=data["column_sum"].mean("head", skipna=False))
    remaining = {variable for name in statistics for variable in VARIABLES[name]}
    left_out = {variable for names in VARIABLES.values() for variable in names} - remaining
    return fs.Trace(data.drop_vars(left_out, errors="ignore"))


@pytest.fixture(scope="module")
def traces(models):
    """One that kept every statistic for most measures, and one each for experts and for states."""
    diffusion = models["LLaDA"]
    prompt = fs.Prompt.rag("Who?", ["Ada did it.", "No, Bob."], gold=0)
    sampler = fs.Confidence(length=48, steps=24, stop_at_eos=False)
    keep = [name for name in fs.statistics.STATISTICS if name != "experts"]
    routed = test_expert_routing.planted(np.random.default_rng(0), test_expert_routing.by_chance)
    decoded = diffusion.trace(prompt, sampler, keep=keep)
    return {
        "movement": diffusion.read_states(decoded),
        "expert-routing": routed,
        "": decoded,
    }


@pytest.mark.filterwarnings("ignore:ZScore")
@pytest.mark.parametrize("name", EVERY)
def test_what_a_measure_needs_is_enough_and_none_of_it_can_be_left_out(traces, name):
    measure, trace = EVERY[name], traces.get(name, traces[""])
    expected = measure.example(trace)
    found = measure.example(keeping(trace, measure.needs))
    xr.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
    for statistic in measure.needs:
        less = keeping(trace, set(measure.needs) - {statistic})
        with pytest.raises(fs.TraceError, match="keep including"):
            measure.example(less)


@pytest.mark.filterwarnings("ignore:ZScore")
@pytest.mark.parametrize("name", [n for n in EVERY if n not in ("movement", "expert-routing")])
def test_a_trace_that_keeps_what_a_measure_needs_gives_the_same(traces, models, name):
    """Recorded so, and not cut from a trace that kept more."""
    measure, whole = EVERY[name], traces[""]
    if not measure.needs:
        return
    prompt = fs.Prompt.rag("Who?", ["Ada did it.", "No, Bob."], gold=0)
    sampler = fs.Confidence(length=48, steps=24, stop_at_eos=False)
    kept = models["LLaDA"].trace(prompt, sampler, keep=measure.needs)
    xr.testing.assert_allclose(measure.example(kept), measure.example(whole), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("causal", [False, True])
def test_recorded_head_means_and_averages_of_heads_are_the_same(causal):
    attention = random_attention(np.random.default_rng(0), 3, 2, 4, 12, causal=causal)
    whole = trace_of(attention, causal=causal, prompt_length=6)
    means = keeping(whole, ["head_mean"])
    for trace in (whole, means):
        near = {"rtol": 1e-6, "atol": 1e-6}
        np.testing.assert_allclose(trace.mean_mass, whole.mass.mean("head"), **near)
        np.testing.assert_allclose(trace.mean_received, whole.received.mean("head"), **near)
        expected = whole.mass_from("prompt", "revealed").mean("head")
        np.testing.assert_allclose(trace.mean_mass_from("prompt", "revealed"), expected, **near)
        assert trace.mean_mass.dims == ("step", "layer", "key")
    for single in ("mass", "received"):
        with pytest.raises(fs.TraceError, match="did not keep column_sum.*keep including 'mass'"):
            getattr(means, single)
    with pytest.raises(fs.TraceError, match="keep including 'head_mean'"):
        _ = keeping(whole, []).mean_mass


def test_head_means_are_computed_once_and_cannot_be_changed():
    trace = trace_of(random_attention(np.random.default_rng(0), 2, 2, 3, 8))
    for name in ("mean_mass", "mean_received"):
        assert getattr(trace, name) is getattr(trace, name)
        with pytest.raises(ValueError, match="read-only"):
            getattr(trace, name)[0] = 0


def test_a_narrow_trace_has_wide_head_means(llada):
    sampler = fs.Confidence(length=4, steps=2)
    narrow = llada.trace("Hello", sampler, keep=["mass"], dtype="float16")
    assert narrow.mean_mass.dtype == narrow.mass.dtype == np.float32
    np.testing.assert_allclose(narrow.mean_mass, narrow.mass.mean("head"), rtol=1e-6)


def test_one_step_of_a_trace_gives_what_the_whole_gives():
    trace = trace_of(random_attention(np.random.default_rng(0), 4, 2, 3, 8), prompt_length=6)
    for place in (0, 2, -1):
        xr.testing.assert_identical(trace.at_step(place).mass, trace.mass.isel(step=[place]))


@pytest.mark.filterwarnings("ignore:ZScore")
@pytest.mark.parametrize("name", [name for name, measure in EVERY.items() if measure.layerwise])
def test_blocks_of_layers_give_what_the_whole_trace_gives(traces, name, monkeypatch):
    whole = EVERY[name].example(traces[""])
    blocks = fs.Trace.layer_blocks
    one = traces[""].nbytes / traces[""].data.sizes["layer"]  # bytes of a layer
    monkeypatch.setattr(fs.Trace, "layer_blocks", lambda trace: blocks(trace, limit=one))
    assert len(list(traces[""].layer_blocks())) == traces[""].data.sizes["layer"] > 1
    found = EVERY[name].example(traces[""])
    xr.testing.assert_allclose(found, whole, rtol=1e-6, atol=1e-6)


class Undeclared(Measure):
    """Reads attention and does not say so."""

    def compute(self, trace):
        return xr.Dataset({"x": trace.mean_mass.mean()})


def test_a_study_names_the_measure_that_reads_what_it_does_not_declare():
    """Rather than giving it a trace that was cut down to its canvases."""
    fields = {"models": ["pair/mdm"], "studies": ["floating"], "data": "world:one", "limit": 2}
    fields |= {"length": 4, "steps": 2, "controls": 0, "view": 0}
    worker = ShardWorker(request_of(fields), KeptModels())
    worker.by_domain["questions"] = {"mine": Undeclared()}
    spec = {"kind": "trace", "model": "pair/mdm", "domain": "questions", "start": 0, "stop": 2}
    with pytest.raises(fs.UsageError, match="measure mine: .* in the `needs` of Undeclared"):
        worker(spec, lambda done, of: None)
