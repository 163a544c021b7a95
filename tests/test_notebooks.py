"""The notebooks of the documentation run, and give what is stored in them.

Words must be the same; a number may differ in its last digits, as it does between machines, and seconds may
be any. Of a picture only its size is compared: letters are drawn otherwise by other versions of a library.
"""

import base64
import importlib.util
import json
import re
import struct
from pathlib import Path

import pytest

import floatscope as fs

ROOT = Path(__file__).parent.parent


def script(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


notebooks = script("run_notebooks")


@pytest.mark.parametrize("path", notebooks.NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_gives_what_is_stored_in_it(path, load, pair_kept, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(fs, "load", load)
    notebook = notebooks.read(path)
    stored = [cell["outputs"] for cell in notebook["cells"] if cell["cell_type"] == "code"]
    made = json.loads(json.dumps(notebooks.outputs(notebook)))
    assert len(made) == len(stored)
    for number, (now, before) in enumerate(zip(made, stored, strict=True), 1):
        remedy = f"cell {number} gives something else: python docs/run_notebooks.py {path.stem}"
        assert [kinds(one) for one in now] == [kinds(one) for one in before], remedy
        for one, other in zip(now, before, strict=True):
            assert same(text(one), text(other)), f"{remedy}\n{text(one)}\n{text(other)}"
            assert size(one) == pytest.approx(size(other), abs=2), remedy


def kinds(output):
    return output["output_type"], sorted(output.get("data", ()))


def text(output):
    return "".join(output["text"] if "text" in output else output["data"]["text/plain"])


def size(output):
    """Width and height, which stand at the beginning of a PNG."""
    picture = output.get("data", {}).get("image/png")
    return struct.unpack(">II", base64.b64decode(picture)[16:24]) if picture else ()


NUMBER = r"\d+(?:\.\d+)?"


def same(now, before):
    """But for digits, seconds, and the width of a table that digits make wider."""
    words = [re.sub(rf"{NUMBER} s\b", "… s", re.sub(r"[\s─━]+", " ", t)) for t in (now, before)]
    if re.sub(NUMBER, "#", words[0]) != re.sub(NUMBER, "#", words[1]):
        return False
    numbers = [[float(n) for n in re.findall(NUMBER, t)] for t in words]
    return numbers[0] == pytest.approx(numbers[1], rel=0.02, abs=0.02)


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        ("mean 0.124 of 8 in 31 s", True),
        ("mean  0.123 of ── 8 in 4 s", True),
        ("mean 0.123 of 8 or 9 in 4 s", False),
        ("mean 0.323 of 8 in 4 s", False),
        ("mode 0.123 of 8 in 4 s", False),
    ],
)
def test_what_counts_as_the_same(other, expected):
    assert same(other, "mean 0.123 of 8 in 4 s") is expected


@pytest.mark.parametrize("path", notebooks.NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_a_page(path):
    """With everything that it shows; and it is one that Jupyter opens."""
    notebook = notebooks.read(path)
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    page, pictures = script("show_notebooks").page(notebook, path.stem)
    assert page.startswith("# ") and "What to read next" in page
    assert pictures and all(name in page for name in pictures)
    outputs = [one for cell in notebook["cells"] for one in cell.get("outputs", ())]
    assert len(pictures) == sum("image/png" in one.get("data", ()) for one in outputs)


def test_a_figure_and_its_axes_are_pictures(llada):
    """Without pyplot, which a notebook asks for its open figures."""
    trace = llada.trace("Hello, who is it?", fs.Confidence(length=4, steps=2))
    axes = trace.heatmap(width=6, tokens=False)
    # Drawn a second time, the layout may move by a hair: bytes are not the same, what is shown is.
    for png in (axes._repr_png_(), axes.figure._repr_png_()):
        assert png.startswith(b"\x89PNG") and struct.unpack(">I", png[16:20]) == (900,)
    figure = fs.measures.Absorption()(trace).plot()
    assert figure._repr_png_().startswith(b"\x89PNG")
    with pytest.raises(fs.UsageError, match="no value 'frist'.*absorption, first"):
        fs.compare(
            fs.measures.Absorption()(trace), fs.measures.Absorption()(trace), labels=["a", "b"]
        ).plot("frist")


def test_what_is_no_plain_python_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def run(source):
        return notebooks.outputs({"cells": [{"cell_type": "code", "source": [source]}]})

    with pytest.raises(SyntaxError):
        run("%matplotlib inline")
    with pytest.raises(ValueError, match="the one command"):
        run("!ls")
    with pytest.raises(RuntimeError, match="no such model: ./nowhere"):
        run("!floatscope evaluate --model ./nowhere --data world:one --limit 2")
    [[out]] = run("1 + 1")
    assert out["data"] == {"text/plain": ["2"]}
