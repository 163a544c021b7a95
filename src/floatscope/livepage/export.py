"""Runs to take away: a trace as one file, several runs as one offline page, a run as lines of Python."""

import io
import zipfile
from collections.abc import Sequence
from pathlib import Path

from ..report.embed import viewer_page
from ..scenes.pack import scene_of
from ..trace import Trace
from . import prompts
from .limits import KEEP
from .runs import Kept

_BUDGET = 3_000_000  # characters of a run on an exported page


def zipped(store: Path) -> bytes:
    """Return a store as one zip file without further compression, because its arrays are compressed."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for file in sorted(store.rglob("*")):
            if file.is_file():
                archive.write(file, Path(store.name) / file.relative_to(store))
    return buffer.getvalue()


def exported(traces: Sequence[Trace], names: Sequence[str], title: str) -> str:
    """Return one offline page with the viewer; runs of one prompt are shown side by side."""
    scenes = []
    for trace, name in zip(traces, names, strict=True):
        scene = scene_of(trace, budget=_BUDGET)
        scene["model"]["model"] = name
        scenes.append(scene)
    return viewer_page(scenes, title)


def code_of(run: Kept) -> str:
    """The lines that repeat a run: prompt, sampler and touches, as they were.

    They run as given where the package and the model are: `trace` is the run's."""
    options = {key: value for key, value in run.options.items() if key in ("device", "dtype")}
    loading = "".join(f", {key}={value!r}" for key, value in options.items() if value is not None)
    lines = ["import floatscope as fs"]
    if not run.code["own"]:
        lines += ["from floatscope.decode import SAMPLERS  # yours: load_plugin() brings it"]
    lines += [
        "",
        f"model = fs.load({run.spec!r}{loading})",
        f'assert model.fingerprint == "{run.fingerprint}"  # the weights of the page',
        prompts.code_of(run.prompt),
        f"sampler = {run.code['sampler']}",
    ]
    trace = f"trace = model.trace(prompt, sampler, keep={KEEP!r})"
    parts = run.code["interventions"]
    if not parts:
        return "\n".join([*lines, trace, "print(trace.text)", ""])
    if len(parts) == 1:
        lines.append(f"change = {parts[0]}")
    else:
        inside = "\n".join(f"        {part}," for part in parts)
        lines.append(f"change = fs.interventions.Combined(\n    (\n{inside}\n    )\n)")
    return "\n".join([*lines, "with change(model):", f"    {trace}", "print(trace.text)", ""])
