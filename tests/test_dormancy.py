"""Dormancy: a head that sleeps in one domain and not in the other is found, and no other."""

import numpy as np
import pytest
from pictures import assert_drawn
from planted import random_attention, softmax, trace_of

import floatscope as fs
from floatscope.measures.library.dormancy import Dormancy, draw_switching, switching

SIZE, KEY, N = 40, 7, 30
HEAD = (1, 2)
EVERYWHERE = (2, 0)
RULE = fs.anchors.Share(threshold=0.15, per_head=True)


def domain(seed, *heads, n=N, **options):
    """Random attention; in the given (layer, head)s about 0.6 of it on one key."""
    rng, traces = np.random.default_rng(seed), []
    for _ in range(n):
        a = 0.5 * random_attention(rng, 1, 3, 4, SIZE) + 0.5 / SIZE
        for layer, head in heads:
            share = rng.uniform(0.5, 0.7)
            a[:, layer, head] = (1 - share) * a[:, layer, head] + share * np.eye(SIZE)[KEY]
        traces.append(trace_of(a, **options))
    return traces


def test_the_map_equals_the_planted_mass():
    found = Dormancy(rule=RULE)(domain(0, HEAD))
    mass, dormant = np.zeros((3, 4)), np.zeros((3, 4))
    mass[HEAD], dormant[HEAD] = 0.6, 1
    np.testing.assert_allclose(found.mass, mass, atol=0.04)
    np.testing.assert_array_equal(found.dormant, dormant)
    assert found.mass_null.values[HEAD] == pytest.approx(1 / SIZE)
    np.testing.assert_array_equal(found.dormant_null, 0)
    np.testing.assert_array_equal(Dormancy(0.9, RULE)(domain(0, HEAD)).dormant, 0)


def test_the_switching_head_is_found_and_no_other():
    measure = Dormancy(rule=RULE)
    found = switching(
        {
            "code": measure(domain(1, HEAD, EVERYWHERE)),
            "prose": measure(domain(2, EVERYWHERE)),
        }
    )
    expected = np.zeros((1, 3, 4), bool)
    expected[0][HEAD] = True
    np.testing.assert_array_equal(found["crosses"], expected)
    np.testing.assert_array_equal(found["stays"], ~expected)
    assert found["difference"].values[0][HEAD] == pytest.approx(0.6, abs=0.05)
    assert found.attrs["tested"] == 12 and found.attrs["switching"] == 1
    assert found.attrs["at_least"] == found.attrs["at_most"] == 1
    assert list(found["pair"].values) == ["code − prose"]


def test_heads_that_differ_on_one_side_of_the_threshold_do_not_switch():
    """Mass 0.6 in both, and 0.6 against 0.85: a difference of means once counted as a switch."""
    measure, more = Dormancy(rule=RULE), []
    for trace in domain(3, HEAD, EVERYWHERE, n=10):
        data = trace.data.copy(deep=True)
        # Half of what the other keys of that head had goes to the anchor as well.
        sums = data["column_sum"]
        sums[:, :, HEAD[0], HEAD[1]] /= 2
        sums[:, :, HEAD[0], HEAD[1], KEY] += data["rows_counted"] / 2
        more.append(fs.Trace(data))
    found = switching({"a": measure(more), "b": measure(domain(4, HEAD, EVERYWHERE, n=10))})
    assert found["differs"].values[0][HEAD] and found["difference"].values[0][HEAD] > 0.15
    assert not found["crosses"].any() and found["stays"].values[0][HEAD]
    assert found.attrs["switching"] == found.attrs["at_least"] == 0
    raised = switching({"a": measure(more), "b": measure(domain(4, HEAD, n=10))}, threshold=0.7)
    assert raised["crosses"].values[0][HEAD] and raised.attrs["threshold"] == 0.7


def noise(seed, layers, heads):
    """Every head has a sink whose strength varies by example; no domain differs."""
    rng, traces = np.random.default_rng(seed), []
    for _ in range(20):
        strength = rng.normal(4, 0.7, (1, layers, heads, 1, 1)) * (np.arange(16) == 3)
        a = softmax(rng.normal(0, 0.3, (1, layers, heads, 16, 16)) + strength)
        traces.append(trace_of(a))
    return traces


def test_without_a_difference_no_head_switches():
    measure = Dormancy(rule=fs.anchors.Share(per_head=True))
    found = switching({"a": measure(noise(1, 10, 40)), "b": measure(noise(2, 10, 40))})
    assert found.attrs["tested"] == 400
    assert found.attrs["switching"] == found.attrs["at_least"] == 0
    inside = (found["low"] < 0) & (found["high"] > 0)
    assert 0.9 < float(inside.mean()) < 0.98  # head by head, one in twenty leaves out 0
    assert int(found["differs"].sum()) <= 2


def test_three_domains_are_three_pairs():
    measure = Dormancy(rule=RULE)
    results = {name: measure(domain(i, n=10)) for i, name in enumerate("abc")}
    assert switching(results).sizes["pair"] == 3
    assert switching(results).attrs["switching"] == 0


def test_domains_that_cannot_be_compared_are_refused():
    measure = Dormancy(rule=RULE)
    some = measure(domain(0, n=10))
    with pytest.raises(fs.UsageError, match="two domains"):
        switching({"a": some})
    with pytest.raises(fs.UsageError, match="no interval"):
        switching({"a": some, "b": measure(domain(1, n=1))})
    with pytest.raises(fs.UsageError, match="same Dormancy"):
        switching({"a": some, "b": Dormancy(0.5, RULE)(domain(1, n=10))})
    with pytest.raises(fs.UsageError, match="one model"):
        switching({"a": some, "b": measure(domain(1, n=10, model="other"))})
    with pytest.raises(fs.TraceError, match="keep including 'mass'"):
        measure(fs.Trace(domain(0, n=1)[0].data.drop_vars("column_sum")))


def test_result_has_a_tidy_table_and_a_figure(tmp_path):
    measure = Dormancy(rule=RULE)
    found = measure(domain(1, HEAD, n=10))
    table = found.table()
    here = (table["layer"] == HEAD[0]) & (table["head"] == HEAD[1])
    row = table[(table["value"] == "dormant") & here].iloc[0]
    assert row["mean"] == 1 and row["null"] == 0 and row["unit"] == "share of examples"
    for ending in ("svg", "pdf"):
        assert_drawn(found.save_figure(tmp_path / f"f.{ending}"))
    pairs = switching({"a": found, "b": measure(domain(2, n=10))})
    draw_switching(pairs).savefig(tmp_path / "s.svg")
    assert_drawn(tmp_path / "s.svg")
    assert len(pairs["difference"].to_dataframe()) == 12
