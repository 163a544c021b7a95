"""Geometry on advantages that are all angle, all norm, half and half, and none."""

import numpy as np
import pytest
from pictures import assert_drawn
from planted import random_attention, trace_of

import floatscope as fs
from floatscope.measures.library.geometry import Geometry

SIZE, KEY = 40, 7
DIMS = (2, 3, 2, SIZE)
PER_HEAD = fs.anchors.ZScore(per_head=True)


def sink(share=0.6, layers=slice(None)):
    a = np.full((*DIMS, SIZE), 1 / SIZE)
    row = np.full(SIZE, (1 - share) / (SIZE - 1))
    row[KEY] = share
    a[:, layers] = row
    return a


def planted(cosine, norm, *, others=(0.2, 2.0), attention=None, **options):
    """The anchor's cosine and norm product; the others', the same for all of them."""
    c, k = np.full(DIMS, others[0]), np.full(DIMS, others[1] / 4)
    c[..., KEY], k[..., KEY] = cosine, norm / 4
    q = np.full(DIMS, 4.0)
    extra = {"cosine": c, "key_norm": k, "query_norm": q, "score": c * k * q}
    return trace_of(sink() if attention is None else attention, extra=extra, **options)


@pytest.mark.parametrize("rule", [fs.anchors.ZScore(), PER_HEAD])
@pytest.mark.parametrize(
    ("cosine", "norm", "share"),
    [(0.6, 2.0, 1.0), (0.2, 6.0, 0.0), (0.6, 6.0, 0.5)],
    ids=["angle", "norm", "half"],
)
def test_the_planted_part_is_found(rule, cosine, norm, share):
    found = Geometry(rule)(planted(cosine, norm))
    np.testing.assert_allclose(found.angle_share, share, atol=1e-6)
    np.testing.assert_allclose(found.angle, (cosine - 0.2) * (norm + 2) / 2, atol=1e-6)
    np.testing.assert_allclose(found.norm, (norm - 2) * (cosine + 0.2) / 2, atol=1e-6)
    np.testing.assert_allclose(found.angle + found.norm, cosine * norm - 0.4, atol=1e-6)
    np.testing.assert_allclose(found.remainder, 0, atol=1e-6)
    # One key of S apart: its distance from the others is S/√(S − 1) standard deviations.
    apart = SIZE / np.sqrt(SIZE - 1)
    np.testing.assert_allclose(found.cosine, apart if cosine > 0.2 else 0, atol=1e-6)
    np.testing.assert_allclose(found.norms, apart if norm > 2 else 0, atol=1e-6)
    np.testing.assert_allclose(found.score, apart, atol=1e-6)
    np.testing.assert_allclose(found.key_rank, 1 if norm > 2 else 0.5, atol=1e-6)
    np.testing.assert_allclose(found.found, 1)


def test_the_lowest_key_norm_has_rank_zero_and_works_against_the_angle():
    found = Geometry()(planted(0.6, 1.5))
    np.testing.assert_allclose(found.key_rank, 0, atol=1e-9)
    assert (found.norm < 0).all() and (found.angle_share > 1).all()


@pytest.mark.parametrize("cosine", [0.1, -0.5])
def test_no_advantage_has_no_share(cosine):
    found = Geometry()(planted(cosine, 2.0))
    assert np.isnan(found.angle_share).all()
    assert (found.angle < 0).all()


def test_the_remainder_holds_what_means_do_not_explain():
    trace = planted(0.6, 2.0)
    trace.data["score"][...] = trace.data["score"] + 0.5 * (trace.data["key"] == KEY)
    np.testing.assert_allclose(Geometry()(trace).remainder, 0.5, atol=1e-6)


def test_layers_without_anchors_are_nan_or_fall_back_to_the_strongest_key():
    a = sink(0.6, layers=1)
    a[:, [0, 2], :, :, KEY] += 1e-3  # the strongest, and no anchor by this rule
    trace = planted(0.6, 2.0, attention=a)
    rule = fs.anchors.Share(threshold=0.3)
    alone = Geometry(rule, fallback=False)(trace)
    np.testing.assert_array_equal(np.isnan(alone.angle), [True, False, True])
    np.testing.assert_array_equal(np.isnan(alone.key_rank), [True, False, True])
    np.testing.assert_allclose(alone.found, [0, 1, 0])
    np.testing.assert_allclose(Geometry(rule)(trace).angle, 0.4 * 2, atol=1e-6)


@pytest.mark.parametrize("causal", [False, True])
def test_random_vectors_have_no_advantage(causal):
    rng = np.random.default_rng(1)
    traces = []
    for _ in range(40):
        names = ("score", "cosine", "key_norm", "query_norm")
        extra = {n: np.exp(rng.normal(0, 0.3, (1, 3, 4, SIZE))) for n in names}
        a = random_attention(rng, 1, 3, 4, SIZE, causal=causal)
        traces.append(trace_of(a, causal=causal, extra=extra))
    found = Geometry()(traces)
    for name in ("score", "cosine", "norms", "angle", "norm", "key_rank"):
        null = found[f"{name}_null"]
        wide = 1.6 * (found[f"{name}_high"] - found[f"{name}_low"]) / 2  # 18 intervals at once
        assert (abs(found[name] - null) < wide).all(), name


def test_absent_keys_are_ignored():
    """A causal trace's later keys are NaN: the numbers are those of the keys before."""
    trace, there = planted(0.6, 6.0), SIZE - 5
    for name in ("column_sum", "null", "visible", "score", "cosine", "key_norm", "query_norm"):
        trace.data[name] = trace.data[name].where(trace.data["key"] < there)
    found = Geometry()(trace)
    np.testing.assert_allclose(found.score, there / np.sqrt(there - 1), atol=1e-6)
    np.testing.assert_allclose(found.angle_share, 0.5, atol=1e-6)
    np.testing.assert_allclose(found.key_rank, 1)


def test_missing_statistics_are_named():
    with pytest.raises(fs.TraceError, match="keep including 'qk'"):
        Geometry()(trace_of(sink()))


def test_result_has_a_tidy_table_and_a_figure(tmp_path):
    found = Geometry()([planted(c, 3.0) for c in (0.5, 0.6, 0.7)])
    table = found.table()
    row = table[(table["value"] == "key_rank") & (table["layer"] == 1)].iloc[0]
    assert row["mean"] == 1 and row["null"] == 0.5 and row["n"] == 3
    assert len(table) == 9 * 3
    for ending in ("svg", "pdf"):
        assert_drawn(found.save_figure(tmp_path / f"f.{ending}"))
