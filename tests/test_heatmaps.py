"""Heat maps of a trace: the numbers shown are the planted ones, and the axes say what is where."""

import numpy as np
import pytest
from figure_sizes import texts_outside
from planted import random_attention, trace_of

import floatscope as fs

PARTS = ["question"] * 3 + ["passage 1"] * 4 + ["passage 2"] * 3 + ["answer"] * 2
TOKENS = [" Who", " is", "?", " $a", "_b$", "\n", " ", " 50%", "#", "{x}", " Ada", "^"]


@pytest.fixture(scope="module")
def attention():
    return random_attention(np.random.default_rng(0), 4, 3, 2, len(PARTS))


@pytest.fixture(scope="module")
def trace(attention):
    return trace_of(
        attention, regions=PARTS, tokens=TOKENS, prompt_length=10, gold="passage 2", model="a_b"
    )


def shown(axis):
    return np.asarray(axis.images[0].get_array())


def test_layer_by_position_is_the_mean_over_steps_and_heads(trace, attention):
    axis = trace.heatmap()
    np.testing.assert_allclose(shown(axis), attention.mean((0, 2, 3)), rtol=1e-5)
    assert (axis.get_ylabel(), axis.get_xlabel()) == ("layer", "position")
    assert axis.get_title(loc="left") == "a_b; mean over steps and heads"


def test_step_by_position_of_a_layer_and_a_head(trace, attention):
    axis = trace.heatmap("step", layer=2, head=1)
    np.testing.assert_allclose(shown(axis), attention[:, 2, 1].mean(1), rtol=1e-5)
    several = trace.heatmap("step", layer=[0, 2])
    np.testing.assert_allclose(shown(several), attention[:, [0, 2]].mean((1, 2, 3)), rtol=1e-5)


def test_step_by_layer_of_a_region_is_the_sum_over_its_positions(trace, attention):
    inside = np.array(PARTS) == "passage 2"
    share = attention.mean((2, 3))[..., inside].sum(-1)  # (step, layer)
    for name in ("passage 2", "gold"):
        np.testing.assert_allclose(
            shown(trace.heatmap("step", "layer", region=name)), share, rtol=1e-5
        )
    lift = trace.heatmap("step", "layer", region="gold", lift=True)
    np.testing.assert_allclose(shown(lift), share / (inside.sum() / len(PARTS)), rtol=1e-5)


def test_regions_and_heads_are_axes_too(trace, attention):
    by_region = shown(trace.heatmap("layer", "region"))
    assert by_region.shape == (3, 4)
    np.testing.assert_allclose(by_region.sum(1), 1, rtol=1e-5)
    heads = shown(trace.heatmap("layer", "head", region="question", step=3))
    np.testing.assert_allclose(heads, attention[3].mean(2)[..., :3].sum(-1), rtol=1e-5)


def test_lift_is_logarithmic_and_chance_is_in_the_middle(trace, attention):
    image = trace.heatmap(lift=True).images[0]
    np.testing.assert_allclose(
        np.asarray(image.get_array()), attention.mean((0, 2, 3)) * len(PARTS), rtol=1e-5
    )
    assert image.norm(1.0) == pytest.approx(0.5)
    assert image.norm(2.0) - image.norm(1.0) == pytest.approx(image.norm(1.0) - image.norm(0.5))


def test_zero_attention_is_the_last_colour_and_missing_positions_are_grey():
    a = np.zeros((1, 1, 1, 6, 6))
    a[..., 0] = 1
    image = trace_of(a).heatmap(lift=True).images[0]
    assert np.isfinite(image.get_array()).all() and image.get_array()[0, 1] == image.norm.vmin
    causal = trace_of(
        random_attention(np.random.default_rng(1), 1, 1, 1, 6, causal=True), causal=True
    )
    causal.data["column_sum"][..., -1] = np.nan  # not generated yet
    axis = causal.heatmap("step")
    assert np.ma.getmaskarray(axis.images[0].get_array()).sum() == 1
    assert "grey: not there yet" in axis.get_xlabel()


def test_tick_labels_are_the_tokens(trace, tmp_path):
    """No mathematics, no empty labels; a narrow figure names the strongest with their places."""
    axis = trace.heatmap()
    words = [label.get_text() for label in axis.get_xticklabels()]
    assert words == ["Who", "is", "?", "$a", "_b$", "↵", "␣", "50%", "#", "{x}", "Ada", "^"]
    axis.figure.savefig(tmp_path / "map.svg")  # "$a" and "_b$" would be no formula
    assert [t.get_text() for t in trace.heatmap(tokens=False).get_xticklabels()][:2] == ["0", "1"]
    few = [t.get_text() for t in trace.heatmap(width=2.2).get_xticklabels()]
    assert 0 < len(few) < 12 and all(text.split()[-1].isdigit() for text in few)
    with pytest.raises(fs.UsageError, match="letters of"):
        trace.heatmap(tokens=True, width=1.8)
    inside = trace.heatmap(region="question", width=2.2)
    assert [t.get_text() for t in inside.get_xticklabels()] == ["Who", "is", "?"]


@pytest.mark.parametrize("lift", [False, True])
def test_heatmap_fits_a_paper_column(trace, lift):
    for axes in (("layer", "position"), ("step", "position"), ("layer", "region")):
        figure = trace.heatmap(*axes, lift=lift, width=3.3, font_size=8).figure
        assert figure.get_figwidth() == 3.3
        assert not texts_outside(figure)


def test_heatmap_is_drawn_into_given_axes(trace):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4, 3))
    mine = figure.subplots()
    assert trace.heatmap("step", "layer", region="gold", ax=mine) is mine
    assert len(mine.images) == 1 and figure.get_size_inches().tolist() == [4, 3]


def test_invalid_selection_is_refused_with_the_valid_choices(trace):
    for call, message in (
        (lambda: trace.heatmap("step", "layer"), "1 everywhere.*gold.*question, passage 1"),
        (lambda: trace.heatmap("layer", "layer"), "layer × layer is no map"),
        (lambda: trace.heatmap("token"), "no axis 'token'.*step, layer, head"),
        (lambda: trace.heatmap(layer=7), r"no layer 7.*\[0, 1, 2\]"),
        (lambda: trace.heatmap(head=[0, 5]), "no head 5"),
        (lambda: trace.heatmap(step=-1), "no step -1"),
        (lambda: trace.heatmap(region="passage 9"), "no region 'passage 9'.*passage 2, answer"),
        (lambda: trace.heatmap(width=-1), "width = -1"),
        (lambda: trace.heatmap(width=0.7), "too small for this figure's words"),
    ):
        with pytest.raises(fs.UsageError, match=message):
            call()


def test_anchors_of_one_head(trace):
    """`fs.heatmap` marks what the rule finds in what is shown."""
    size = 30
    a = np.full((3, 2, 2, size, size), 0.3 / (size - 1))
    a[:, 1, 0, :, 7], a[:, 1, 1, :, 9] = 0.7, 0.7
    planted = trace_of(a)
    for head, place in ((0, 7), (1, 9)):
        axis = fs.heatmap(planted, 1, head=head, width=3.3).axes[0]
        marks = next(line for line in axis.lines if line.get_label() == "anchor")
        assert set(marks.get_xdata()) == {place}
