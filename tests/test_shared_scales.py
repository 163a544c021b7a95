"""Figures of two models: the same scales, legends inside, and nothing that cannot be."""

import base64
import re
from dataclasses import replace

import numpy as np
import planted
import pytest
from figure_sizes import texts_outside

import floatscope as fs
from floatscope.measures import RegionFlow
from floatscope.plots import legend_above, panels, share_scales
from floatscope.report.build import drawing_of
from floatscope.studies.draw import Picture


def two(draw_one, draw_other):
    made = []
    for draw in (draw_one, draw_other):
        with panels(1, 2) as (figure, axes):
            draw(axes[0])
        made.append(figure)
    return made


def test_corresponding_panels_share_their_y_axes_and_colours():
    from matplotlib.colors import LogNorm

    from floatscope.plots import LIFT_MAP

    def first(axes):
        axes[0].plot([0, 1], [0, 0.2])
        axes[0].set_ylim(0, 0.2)
        axes[1].pcolormesh(np.ones((2, 2)), norm=LogNorm(0.5, 2), cmap=LIFT_MAP)

    def second(axes):
        axes[0].plot([0, 1], [0.1, 0.9])
        axes[0].set_ylim(0, 1)
        axes[1].pcolormesh(np.ones((9, 2)), norm=LogNorm(0.1, 10), cmap=LIFT_MAP)

    both = two(first, second)
    heights = [figure.axes[1].get_ylim() for figure in both]
    share_scales(both)
    assert [figure.axes[0].get_ylim() for figure in both] == [(0, 1), (0, 1)]
    assert [figure.axes[1].collections[0].get_clim() for figure in both] == [(0.1, 10)] * 2
    assert [figure.axes[1].get_ylim() for figure in both] == heights  # other numbers of heads


def test_panels_that_do_not_correspond_keep_their_scales():
    both = two(
        lambda axes: axes[0].set_ylim(0, 1), lambda axes: axes[0].set(yscale="log", ylim=(1, 9))
    )
    share_scales(both)
    assert [figure.axes[0].get_ylim() for figure in both] == [(0, 1), (1, 9)]
    with panels(1, 1) as (alone, axes):
        axes[0, 0].set_ylim(0, 7)
    share_scales([both[0], alone])
    assert both[0].axes[0].get_ylim() == (0, 1) and alone.axes[0].get_ylim() == (0, 7)


@pytest.mark.parametrize("width", [2.2, 3.3, 6.8])
def test_a_legend_above_a_panel_stays_within_its_width(width):
    with panels(1, 1, width=width) as (figure, axes):
        for name in ("angle share", "key norm rank", "other passages", "template"):
            axes[0, 0].plot([0, 1], label=name)
        legend_above(axes[0, 0])
    figure.draw_without_rendering()
    legend, box = (axes[0, 0].get_legend().get_window_extent(), axes[0, 0].get_window_extent())
    assert legend.x1 <= figure.bbox.x1 and legend.y0 >= box.y1 - 2
    assert box.width > 0.6 * figure.bbox.width  # the legend takes none of the axes' width


def read_of(passages, seed):
    """A trace whose answer of 4 tokens is revealed in 2 steps, with so many passages."""
    rng, size, start = np.random.default_rng(seed), 24, 20
    canvas = np.tile(np.arange(10, 10 + size), (3, 1))
    canvas[0, start:], canvas[1, start + 2 :] = planted.MASK, planted.MASK
    names = sorted(f"passage {i % passages + 1}" for i in range(12))
    return planted.trace_of(
        planted.random_attention(rng, 2, 3, 2, size),
        regions=["question"] * 8 + names + ["answer"] * 4,
        prompt_length=start,
        canvas=canvas,
        tokens=[f" w{i}" for i in range(size)],
        events=[(i // 2, start + i, 10 + start + i) for i in range(4)],
        gold="passage 1",
    )


@pytest.mark.parametrize(("passages", "panels_"), [(1, 1), (3, 3)])
def test_one_passage_leaves_no_empty_panel(passages, panels_):
    figure = RegionFlow()([read_of(passages, seed) for seed in (0, 1)]).plot()
    shown = [axis for axis in figure.axes if axis.get_label() != "<colorbar>"]
    assert len(shown) == panels_ and all(axis.has_data() for axis in shown)


def test_a_narrow_figure_with_many_series_keeps_its_axes_wide():
    figure = RegionFlow()([read_of(3, seed) for seed in (0, 1)]).plot(width=3.3)
    assert not texts_outside(figure)
    assert (
        min(a.get_window_extent().width for a in figure.axes if a.lines) > 0.5 * figure.bbox.width
    )


def test_colour_bars_of_lifts_have_plain_numbers():
    figure = RegionFlow()([read_of(3, seed) for seed in (0, 1)]).plot()
    figure.draw_without_rendering()
    (bar,) = [axis for axis in figure.axes if axis.get_label() == "<colorbar>"]
    assert all(re.fullmatch(r"[\d.]+", t.get_text()) for t in bar.get_yticklabels() if t.get_text())


def test_a_comparison_shows_nothing_below_zero_of_what_cannot_be():
    found = fs.measures.Absorption()([read_of(3, seed) for seed in (0, 1)])
    other = replace(found, model="other")
    figure = fs.compare(found, other).plot("anchors", "top")
    assert [axis.get_ylim()[0] for axis in figure.axes if axis.lines] == [0, 0]


def test_a_figure_of_the_page_follows_the_colour_scheme_and_has_no_ground():
    def draw():
        with panels(1, 1) as (figure, axes):
            axes[0, 0].plot([0, 1], label="lift")
            axes[0, 0].set_xlabel("layer")
            legend_above(axes[0, 0])
        return figure

    drawing = drawing_of(Picture("a", "A figure", "In words", draw))
    svg = base64.b64decode(drawing.source.split(",", 1)[1]).decode()
    assert svg.count("var(--ink)") > 10 and "prefers-color-scheme: dark" in svg
    filled = re.findall(r'fill: (#[0-9a-f]{6})"', svg)
    assert "#ffffff" not in filled and "#1a1f26" not in filled
