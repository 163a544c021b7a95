"""Export a trace as a zip file, several runs as one offline page, or a run as Python code."""

import html
import io
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..report.embed import fragment, page
from ..scenes.pack import scene_of
from ..trace import Trace
from . import prompts
from .changed import changed
from .limits import KEEP
from .runs import RunInfo

_BUDGET = 3_000_000  # characters of a run on an exported page


def zipped(store: Path) -> bytes:
    """Return a trace's store as a zip file, without compression, because its arrays are compressed."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for file in sorted(store.rglob("*")):
            if file.is_file():
                archive.write(file, Path(store.name) / file.relative_to(store))
    return buffer.getvalue()


def exported(
    traces: Sequence[Trace], names: Sequence[str], edits: Sequence[Sequence[str]], title: str
) -> str:
    """Return the HTML of an offline page with the viewer; runs of one prompt are shown side by side.

    Below the viewer, the page lists the edits of every run and the differences between the first two runs.
    """
    scenes = []
    for trace, name in zip(traces, names, strict=True):
        scene = scene_of(trace, budget=_BUDGET)
        scene["model"]["model"] = name
        scenes.append(scene)
    listed = _listed_edits(names, edits)
    compared = _what_changed(traces, names) if len(traces) > 1 else ""
    return page(title, fragment(scenes, name="viewer", keys=True) + listed + compared)


def _listed_edits(names: Sequence[str], edits: Sequence[Sequence[str]]) -> str:
    pairs = [
        (name, edit) for name, run_edits in zip(names, edits, strict=True) for edit in run_edits
    ]
    if not pairs:
        return ""
    items = "".join(f"<li>{html.escape(name)}: {html.escape(edit)}</li>" for name, edit in pairs)
    return f"<h2>Edits</h2>\n<ul>{items}</ul>\n"


def _what_changed(traces: Sequence[Trace], names: Sequence[str]) -> str:
    """Return a comparison of the first two runs as HTML; "" if they have different prompts."""
    try:
        comparison = changed(traces[0], traces[1], names[0], 0)
    except UsageError:
        return ""
    lines = [f"{names[1]} against {names[0]}."]
    if comparison["same"]:
        lines += ["No change: the same tokens in the same order, and the same attention."]
    else:
        answer = comparison["answer"]
        was, text_after = (repr(answer[key].strip()) for key in ("was", "is"))
        lines += [
            f"Answer: the same, {text_after}."
            if answer["same"]
            else f"Answer: {was} → {text_after}."
        ]
        tokens = [
            f"position {t['position']}: {t['was']!r} → {t['is']!r}" for t in comparison["tokens"]
        ]
        lines += [f"Tokens: {'; '.join(tokens) or 'the same at every position'}."]
        lines += [f"Order: {len(comparison['order'])} positions revealed at another step."]
    title = "".join(f"<p>{html.escape(line)}</p>" for line in lines)
    return f"<h2>What changed</h2>\n{title}{_attention_table(comparison['attention'])}\n"


def _attention_table(attention: Mapping[str, Any] | None) -> str:
    if attention is None:
        return ""
    resolution = attention["resolution"]
    rows = "".join(
        f"<tr><td>{step}</td><td>{_percent(distance, resolution)}</td></tr>"
        for step, distance in zip(attention["steps"], attention["distance"], strict=True)
    )
    about = "Attention that moved: ½ Σ |share − share′| over keys, mean over layers and heads."
    head = '<tr><th scope="col">step</th><th scope="col">moved</th></tr>'
    return f"<p>{about}</p><table><thead>{head}</thead><tbody>{rows}</tbody></table>"


def _percent(distance: float, resolution: float) -> str:
    return "no change" if distance <= resolution else f"{100 * distance:.3g} %"


def code_of(run: RunInfo) -> str:
    """Return Python code that repeats a run with the same prompt, sampler and edits.

    The code needs the package and the model. The variable `trace` of the code equals the trace of the run.
    """
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
