"""Collect the content of a report's sections from the findings.

This module does not measure, judge or draw. All text is plain text, and the module `page` decides on the
layout.
"""

from collections.abc import Iterator
from shlex import quote
from typing import Any

from ..registry import STUDIES
from ..studies.demo import is_demo
from ..studies.findings import ANSWERS, ORDER, Findings
from ..studies.planning import settings_of
from ..studies.request import Request
from ..studies.results import file_of
from ..studies.study import Study
from . import numbers

# Fields of a request that `floatscope study` has options for; all others are given by --set.
FLAGS = frozenset(
    """data limit questions asked_as traced_as length steps sampler controls view keep_traces seed skip chat
    device skip_bad split_alternatives""".split()
)
_LINES = 6  # of a table's preview
_WIDE = 10  # columns of it


def sections_of(findings: Findings) -> list[tuple[Findings, Study]]:
    """Return the studies of the main run and of extra runs, each with the findings of its run."""
    return [(part, study) for part in (findings, *findings.extra_runs) for study in part.studies]


def commands(findings: Findings) -> list[str]:
    """Return the commands that repeat a run: `floatscope demo`, or one command per main or extra run."""
    if is_demo(findings.request):
        return ["floatscope demo --out demo"]
    parts = (findings, *findings.extra_runs)
    return [command(part.request, label=part.file_prefix) for part in parts]


def command(request: Request, study: str = "", label: str = "") -> str:
    """Return the command that repeats a run, or one study of it, with all fields that are not defaults.

    The output directory is named after `study` and the `label` of an extra run.
    """
    out = "-".join(filter(None, ("run", study, label)))
    options = {field: key for key, known in STUDIES.items() for field in known.options}
    words = ["floatscope study", study or " ".join(request.studies)]
    words += [f"--model {quote(name)}" for name in request.models]
    for name, field in type(request).model_fields.items():
        value = getattr(request, name)
        if name in ("studies", "models", "extra_runs") or value == field.default:
            continue
        flag = name.replace("_", "-")
        if name == "plugins":
            words += [f"--plugin {quote(plugin)}" for plugin in value]
        elif name not in FLAGS:
            setting = f"{options[name]}.{name}" if name in options else name
            words.append(f"--set {quote(f'{setting}={value}')}")
        elif isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            words.append(f"--{flag} {quote(str(value))}")
    return " ".join([*words, f"--out {out}"])


def size_of(about: dict[str, Any]) -> str:
    """Return a model's numbers of parameters, layers and heads as text."""
    size = about["parameters"]
    scale, unit = (1e9, "B") if size >= 1e9 else (1e6, "M") if size >= 1e6 else (1e3, "k")
    return f"{size / scale:.3g}{unit} parameters, {about['layers']} layers × {about['heads']} heads"


def previews(study: Study, findings: Findings) -> Iterator[dict[str, Any]]:
    """Yield a preview of each table of a study: name, file, number of rows, columns, first rows as text.

    Each column is a pair of its name and whether it contains numbers, which the page aligns to the right.
    """
    request = findings.request
    settings = {setting.name for setting in study.settings(request)}
    names = [*study.makes, *study.measures(request), *study.experiments(request)]
    if settings:
        names.append(ANSWERS)
    if study.orders:
        names.append(ORDER)
    for name in names:
        if name not in findings.tables:
            continue
        frame = findings.tables[name]
        if name == ANSWERS:
            frame = frame[frame["setting"].isin(settings & set(settings_of(request)))]
        wide = range(min(_WIDE, frame.shape[1]))
        columns = [numbers.column(frame.iloc[:_LINES, i]) for i in wide]
        yield {
            "name": name,
            "file": f"results/{file_of(findings, name)}",
            "total": len(frame),
            "columns": [(frame.columns[i], numeric) for i, (_, numeric) in enumerate(columns)],
            "lines": [*zip(*(cells for cells, _ in columns), strict=True)],
        }
