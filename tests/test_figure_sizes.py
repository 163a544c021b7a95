"""Figures for paper: as wide as asked, with the letters asked for, in one's own axes and style."""

import re

import matplotlib
import numpy as np
import pytest
from figure_sizes import texts_outside, words
from matplotlib.figure import Figure
from planted import random_attention, trace_of

import floatscope as fs
from floatscope.cli.report import inches
from floatscope.plots.drawing import figure_size, panels, save, two_lines


@pytest.fixture(scope="module")
def found():
    """Absorption, two panels, of three planted traces."""
    rng = np.random.default_rng(0)
    traces = [trace_of(random_attention(rng, 2, 4, 2, 24, spread=2.0)) for _ in range(3)]
    return fs.measures.Absorption()(traces)


@pytest.mark.parametrize("width", [3.3, 6.8])
def test_saved_figure_has_the_requested_width_and_font_size(found, width, tmp_path):
    """In PDF and SVG, in points of 1/72 in; smaller letters for small print, and none larger."""
    for size in (8, 10):
        figure = found.plot(width=width, font_size=size)
        svg = save(figure, tmp_path / "f.svg").read_text()
        assert float(re.search(r'<svg [^>]*width="([\d.]+)pt"', svg)[1]) == pytest.approx(
            72 * width
        )
        sizes = {float(x) for x in re.findall(r"font(?:-size)?: ([\d.]+)px", svg)}
        assert sizes == {float(size)}
        pdf = save(figure, tmp_path / "f.pdf").read_bytes()
        assert re.search(rb"MediaBox \[ 0 0 ([\d.]+)", pdf)[1] == f"{72 * width:g}".encode()


def test_panels_that_do_not_fit_are_stacked(found):
    def places(width):
        axes = found.plot(width=width).axes
        return len({round(a.get_subplotspec().colspan.start) for a in axes})

    assert places(3.3) == 1 and places(6.8) == 2
    assert found.plot().get_size_inches().tolist() == [6.6, 2.3]  # nobody asked: as on a page
    assert found.plot(width=3.3, height=5).get_size_inches().tolist() == [3.3, 5]
    with figure_size(width=3.3), panels(2, 3, count=4) as (figure, axes):
        assert axes.shape == (2, 3) and axes[1, 1] is None and len(figure.axes) == 4


def test_user_rcparams_take_precedence(found):
    def letters(figure):
        return {text.get_fontsize() for text in words(figure)}

    with matplotlib.rc_context({"font.size": 11, "lines.linewidth": 3}):
        figure = found.plot()
        assert letters(figure) == {11}
        assert figure.axes[0].lines[0].get_linewidth() == 3
        assert letters(found.plot(font_size=7)) == {7}  # said in the call: before everything
    assert letters(found.plot()) == {8}
    assert not found.plot().axes[0].spines["top"].get_visible()


def test_figure_is_drawn_into_given_axes(found):
    figure = Figure(figsize=(5, 2))
    both = figure.subplots(1, 2)
    assert found.plot(ax=both) is figure
    assert all(axis.lines for axis in both) and not figure.get_suptitle()
    one = Figure().subplots()
    found.plot(ax=one, panel=1)
    assert one.get_ylabel() == "anchors" and len(one.figure.axes) == 1
    with pytest.raises(fs.UsageError, match="has 2 panels, and 1 axes were given.*panel="):
        found.plot(ax=one)
    with pytest.raises(fs.UsageError, match="no panel 2 in this figure. It has 2"):
        found.plot(ax=one, panel=2)
    with pytest.raises(fs.UsageError, match="ax="):
        found.plot(panel=0)
    with pytest.raises(fs.UsageError, match="font_size = 0"):
        found.plot(font_size=0)


def test_comparison_figure_has_the_requested_size(found):
    figure = fs.compare(found, found).plot(width=3.3, font_size=8)
    assert figure.get_figwidth() == 3.3 and not texts_outside(figure)


def test_a_long_name_is_broken_and_stays_inside(found):
    from dataclasses import replace

    long = replace(found, model="a model with quite a long name, such as people have, $x_1$")
    assert not texts_outside(long.plot(width=3.3))


@pytest.mark.parametrize(
    ("text", "broken"),
    [
        ("share of attention on anchors", "share of attention\non anchors"),
        ("semi-autoregressive", "semi-\nautoregressive"),
        ("word", "word"),
        ("two\nlines already", "two\nlines already"),
    ],
)
def test_a_line_is_broken_in_the_middle(text, broken):
    assert two_lines(text) == broken


@pytest.mark.parametrize(
    ("text", "inches_"), [("3.3in", 3.3), ("84 mm", 3.307), ("8.4cm", 3.307), ("240pt", 3.321), ("5", 5)]
)  # fmt: skip
def test_width_is_parsed_in_any_unit(text, inches_):
    assert inches(text) == pytest.approx(inches_, abs=1e-3)


@pytest.mark.parametrize("text", ["huge", "0in", "-3in", "3.3ft", "1e9in", "inf", ""])
def test_invalid_width_is_refused(text):
    with pytest.raises(fs.UsageError, match="such as 3.3in"):
        inches(text)
