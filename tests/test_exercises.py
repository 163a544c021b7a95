"""The checks of docs/notebooks/ten_exercises.ipynb accept right answers, and refuse wrong ones."""

import importlib.util
from pathlib import Path

import pytest

import floatscope as fs

ROOT = Path(__file__).parent.parent
SOLUTIONS = {
    "masks": "8 - 3",
    "first": "int(filled.rows['event_position'][0])",
    "rows_that_see": "size - j if causal else size",
    "chance": "np.mean(1 / np.arange(1, 103))",
    "lifts": "[float(t.lift.isel(key=0).mean()) for t in (written, filled)]",
    "anchors": "fs.anchors.ZScore(3)(filled).isel(step=0).sum('key').values",
    "different": "[len(np.unique(t.mean_mass[0].argmax('key'))) for t in (written, filled)]",
    "changing": "int((filled.mean_mass_from('masked').argmax('key').diff('step') != 0).any('step').sum())",
    "random_layers": "12 - 12 / 110**7",
    "still_right": "[True, False]",
}
WRONG = {
    "masks": "8",
    "first": "102",
    "rows_that_see": "j + 1 if causal else size",
    "chance": "1 / 102",
    "lifts": "[float(t.mass.isel(key=0).mean()) for t in (written, filled)]",
    "anchors": "[1] * 12",
    "different": "[1, 1]",
    "changing": "0",
    "random_layers": "12 / 110",
    "still_right": "[False, True]",
}


def printed(answers, load, monkeypatch):
    """Run the notebook with these answers and return what each check prints."""
    spec = importlib.util.spec_from_file_location(
        "run_notebooks", ROOT / "docs" / "run_notebooks.py"
    )
    notebooks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(notebooks)
    monkeypatch.setattr(fs, "load", load)
    notebook = notebooks.read(ROOT / "docs" / "notebooks" / "ten_exercises.ipynb")
    names = iter(answers.values())
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "code" and source.endswith(("= None", "return None")):
            cell["source"] = source.removesuffix("None") + next(names)
    assert next(names, None) is None
    texts = ["".join(o.get("text", "")) for c in notebooks.outputs(notebook) for o in c]
    return [text.strip() for text in texts if text.startswith(("right", "not"))]


@pytest.mark.parametrize(
    ("answers", "expected"),
    [(SOLUTIONS, "right"), (WRONG, "not yet: look again")],
    ids=["right", "wrong"],
)
def test_exercises_are_checked(answers, expected, load, monkeypatch):
    assert printed(answers, load, monkeypatch) == [expected] * 10
