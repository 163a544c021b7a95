"""The gallery: the page shows the lines of docs/make_gallery.py, every image exists, every line draws."""

import importlib.util
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import floatscope as fs

DOCS = Path(__file__).parent.parent / "docs"
PAGE = (DOCS / "gallery.md").read_text(encoding="utf-8")
SPEC = importlib.util.spec_from_file_location("make_gallery", DOCS / "make_gallery.py")
gallery = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(gallery)


def small(code):
    """The same code with two prompts, few tokens, and a layer and head of the shallow pair."""
    numbers = {r"\], \d+, seed": "], 2, seed", r'(continuation"), \d+': r"\1, 2"}
    numbers |= {r"length=\d+": "length=8", r"steps=\d+": "steps=4", r"layer=\d+": "layer=1"}
    numbers |= {r"show\(\d+": "show(2"}
    for pattern, text in numbers.items():
        code = re.sub(pattern, text, code)
    return code


@pytest.fixture(scope="module")
def traces(cut_pair):
    """The namespace that the page's first block leaves."""
    from floatscope.models import pair

    names = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pair, "locate", cut_pair.__getitem__)
        exec(small(gallery.SETUP), names)
    return names


def test_page_shows_the_lines_that_the_script_runs():
    blocks = re.findall(r"^```python\n(.*?)\n```", PAGE, re.M | re.S)
    assert blocks == [gallery.SETUP.strip(), *(picture.code for picture in gallery.PICTURES)]


def test_every_image_of_the_page_is_a_figure_of_the_script():
    shown = re.findall(r"!\[.+?\]\(gallery/(.+?)\)", PAGE)
    names = [f"{picture.name}.webp" for picture in gallery.PICTURES]
    assert shown == names
    assert sorted(names) == sorted(path.name for path in gallery.FOLDER.iterdir())


@pytest.mark.parametrize("picture", gallery.PICTURES, ids=lambda picture: picture.name)
def test_image_is_small_and_not_empty(picture):
    path = gallery.FOLDER / f"{picture.name}.webp"
    assert path.stat().st_size <= 40_000
    with Image.open(path) as image:
        assert 480 <= image.width <= 800
        pixels = np.asarray(image.convert("RGB"))
    edges = np.concatenate([*pixels[[0, -1]], *pixels[:, [0, -1]].swapaxes(0, 1)])
    assert (edges == 255).all(), "something is clipped"
    assert (pixels < 128).any(-1).mean() > 0.005


# Two prompts are few, which some measures say.
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("picture", gallery.PICTURES, ids=lambda picture: picture.name)
def test_line_draws_a_figure(picture, traces):
    figure = gallery.draw(small(picture.code), dict(traces))
    drawn = [axis for axis in figure.axes if axis.has_data()]
    assert drawn
    assert isinstance(traces["trace"], fs.Trace)


def test_code_without_a_figure_is_refused():
    with pytest.raises(ValueError, match="no expression"):
        gallery.draw("x = 1", {})
