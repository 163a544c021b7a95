"""Runs the notebooks of the documentation, and writes what they print and draw into them.

    python docs/run_notebooks.py           # after a change to a notebook, or to what one shows
    python docs/run_notebooks.py my_own    # those with this in their name

The tests run them too and compare. No Jupyter is needed: a notebook is JSON, and its cells are Python in
one namespace. Of what Jupyter adds, this knows what our notebooks use: a last line's value as picture,
table or text, pyplot's open figures, and a cell that is one `!floatscope …` command, which runs in this
process. Anything else (magics, `await`, widgets) is an error here.
"""

import ast
import base64
import io
import json
import shlex
import sys
import tempfile
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
_WIDTH = 80  # of what `!` prints in Jupyter
_LONGEST = 20_000  # of HTML that is stored: a table, and not the viewer, which has hundreds of kB

Output = dict[str, Any]


def outputs(notebook: dict[str, Any]) -> list[list[Output]]:
    """Of every code cell, run one after the other in the working directory."""
    import matplotlib

    matplotlib.use("agg")
    names: dict[str, Any] = {"__name__": "__main__"}
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    with matplotlib.rc_context():  # what a notebook sets is its own
        return [_run("".join(cell["source"]), names, i) for i, cell in enumerate(code, 1)]


def _run(source: str, names: dict[str, Any], number: int) -> list[Output]:
    printed = io.StringIO()
    with redirect_stdout(printed):
        if source.startswith("!"):
            _command(shlex.split(source.removeprefix("!").replace("\\\n", " ")))
            value = None
        else:
            value = _executed(source, names, f"cell {number}")
    made = [_stream(printed.getvalue())] if printed.getvalue() else []
    made += [_display({"image/png": png, "text/plain": "<Figure>"}) for png in _open_figures()]
    if value is not None:
        made.append(_display(_shown(value)) | {"output_type": "execute_result"})
        made[-1]["execution_count"] = number
    return made


def _executed(source: str, names: dict[str, Any], where: str) -> Any:
    """The value of the last line, if it is an expression that does not end in a semicolon."""
    body = ast.parse(source, where).body
    last = body.pop() if body and isinstance(body[-1], ast.Expr) and source[-1] != ";" else None
    exec(compile(ast.Module(body, []), where, "exec"), names)
    return eval(compile(ast.Expression(last.value), where, "eval"), names) if last else None


def _command(words: list[str]) -> None:
    """As typed; progress, which goes to the terminal, is not kept."""
    from floatscope import cli
    from floatscope.cli.app import out

    if words[0] != "floatscope":
        raise ValueError(f"!{words[0]}: the one command of a notebook is floatscope")
    before, wide = sys.argv, out._width
    sys.argv, out.width = words, _WIDTH
    said = io.StringIO()
    try:
        with redirect_stderr(said):
            cli.main()
    except SystemExit as end:
        if end.code:
            raise RuntimeError(f"{shlex.join(words)}: {said.getvalue()}") from None
    finally:
        sys.argv, out._width = before, wide


def _open_figures() -> list[bytes]:
    if "matplotlib.pyplot" not in sys.modules:
        return []
    from matplotlib import pyplot

    made = []
    for number in pyplot.get_fignums():
        buffer = io.BytesIO()
        pyplot.figure(number).savefig(buffer, format="png", dpi=150, metadata={"Software": None})
        made.append(buffer.getvalue())
    pyplot.close("all")
    return made


def _shown(value: Any) -> dict[str, Any]:
    """By media type, the richest first, as Jupyter asks for it."""
    found: dict[str, Any] = {}
    for kind, method in (("image/png", "_repr_png_"), ("text/html", "_repr_html_")):
        data = getattr(value, method, lambda: None)()
        if data is not None and (kind == "image/png" or len(data) <= _LONGEST):
            found[kind] = data
    return found | {"text/plain": repr(value)}


def _display(data: dict[str, Any]) -> Output:
    written = {
        kind: base64.b64encode(value).decode() + "\n" if isinstance(value, bytes) else _lines(value)
        for kind, value in data.items()
    }
    return {"data": written, "metadata": {}, "output_type": "display_data"}


def _stream(text: str) -> Output:
    return {"name": "stdout", "output_type": "stream", "text": _lines(text)}


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def read(path: Path) -> dict[str, Any]:
    notebook: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return notebook


def main() -> None:
    for path in NOTEBOOKS:
        if not any(word in path.name for word in sys.argv[1:] or [""]):
            continue
        notebook = read(path)
        with tempfile.TemporaryDirectory() as folder, chdir(folder):
            made = outputs(notebook)
        code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
        for number, (cell, found) in enumerate(zip(code, made, strict=True), 1):
            cell |= {"outputs": found, "execution_count": number}
        text = json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True)
        path.write_text(text + "\n", encoding="utf-8")
        print(f"wrote {path.name}")


if __name__ == "__main__":
    main()
