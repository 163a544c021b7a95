"""Collect the BibTeX entries of a run: the papers of its models, samplers, measures and data.

The docstring of a method's class or file has the arXiv number of the method's paper, and
`assets/references.bib` has one entry per number. Docstrings of modules that need torch are read from the
source, without importing the modules. Papers without an entry are listed in comments.
"""

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from .._lazy import listed
from ..decode.presets import presets
from ..errors import FloatscopeError
from ..models import twin
from ..registry import dashed
from ..stats.anchors import RULES, Rule
from ..studies.findings import Findings
from ..studies.planning import settings_of
from ..studies.provenance import FOLDER
from ..studies.setting import Setting
from ..tasks import long_texts, schemas
from ..tasks.named import is_named
from ..tasks.readers import read_records

NUMBER = re.compile(r"\b\d{4}\.\d{5}\b")
_OWN = "floatscope"  # the entry of this package
_ROOT = Path(__file__).parents[1]


@cache
def entries() -> dict[str, str]:
    """Return all BibTeX entries by arXiv number; the key of Floatscope's own entry is "floatscope"."""
    text = files(__package__).joinpath("assets", "references.bib").read_text(encoding="utf-8")
    made = {}
    for entry in text.strip().split("\n\n"):
        number = re.search(r"eprint = \{(.+?)\}", entry)
        made[number[1] if number else _OWN] = entry
    return made


def bibtex(findings: Findings) -> tuple[str, int]:
    """Return a run's .bib file as text, and the number of entries; comments say what each entry is for."""
    known = entries()
    used: dict[str, list[str]] = {_OWN: []}
    left: list[str] = []
    for what, text in used_by(findings):
        numbers = NUMBER.findall(text)
        for number in numbers:
            used.setdefault(number, [])
            if what not in used[number]:
                used[number].append(what)
        if not numbers and text.startswith("!"):
            left.append(text.removeprefix("!"))
    blocks = ["% Methods of this run. Comments say what each entry is there for."]
    for number, whose in used.items():
        if number in known:
            reason = "".join(f"% {what}\n" for what in whose)
            blocks.append(f"{reason}{known[number]}")
        else:
            left.append(f"{', '.join(whose)}: arXiv {number} has no entry here: add it.")
    blocks += [f"% Not cited: {one}" for one in left]
    return "\n\n".join(blocks) + "\n", sum(number in known for number in used)


def used_by(findings: Findings) -> Iterator[tuple[str, str]]:
    """Yield a description of each method and data set of a run, and a text with its arXiv numbers.

    A text that begins with "!" is instead a note on a paper that could not be determined.
    """
    for one in (findings, *findings.extra_runs):
        for name, about in one.models.items():
            family = str(about["family"])
            yield f"model {name}: {family}", _library("models.families").get(_bare(family), "")
            if one.asked_for[name].startswith("twin/"):
                yield f"model {name}", str(twin.__doc__)
        for name in dict.fromkeys(_samplers(one)):
            yield f"sampler {name}", _sampler(name, one)
        for measure in one.measures.values():
            yield f"measure {type(measure).__name__}", _of_object(measure)
        for study in one.studies:
            yield f"study {study.name}", f"{_of_object(study)} {study.method}"
        for setting in _asked(one):
            yield from _interventions(setting.intervention)
        yield f"data {one.request.data}", _data(one)


def _asked(one: Findings) -> list[Setting]:
    """Return the settings of a run in which at least one model was asked."""
    settings = settings_of(one.request)
    there = [n for n in settings if any(one.answers(n, model) is not None for model in one.models)]
    return [settings[name] for name in there]


def _samplers(one: Findings) -> Iterator[str]:
    diffuse = any(about["direction"] != "causal" for about in one.models.values())
    causal = any(about["direction"] == "causal" for about in one.models.values())
    if diffuse:
        yield one.request.sampler.partition(",")[0].strip()
        yield from (setting.sampler for setting in _asked(one) if setting.sampler)
    if causal:
        yield "autoregressive"


def _sampler(name: str, one: Findings) -> str:
    preset = presets(one.request.length, one.request.steps).get(name)
    library = _library("decode.samplers")
    if preset is None:
        return library.get(_bare(name), "")
    return f"{preset.source} {library.get(_bare(preset.sampler), '')}"


def _interventions(text: str) -> Iterator[tuple[str, str]]:
    """Yield the interventions and anchor rules in a text such as "mask-columns,k=5,rule=excess(3)".

    Each item is a description and a docstring. The docstring names the papers.
    """
    for part in filter(None, text.split(" + ")):
        name = part.partition(",")[0].strip()
        yield f"intervention {name}", _library("interventions.library").get(_bare(name), "")
        for rule in re.findall(r"rule=(\w+)", part):
            for cls in RULES:
                if cls.__name__.lower() == rule.lower():
                    yield f"rule {cls.__name__}", str(cls.__doc__)


def _data(one: Findings) -> str:
    """Return a text that names the paper of a run's data format, because the records' origin is unknown.

    Return "" for generated data. Return a note that begins with "!" if the file cannot be read.
    """
    data = one.request.data
    if is_named(data):
        return str(long_texts.__doc__) if data == "long:answer" else ""
    about = (one.run.read_request() or {}).get("about", {})
    for folder in (Path(), Path(str(about.get(FOLDER, ".")))):
        path = folder / Path(data).expanduser()
        if path.is_file():
            try:
                title = read_records(path, limit=1, skip_bad=True).schema
            except FloatscopeError:
                break
            return " ".join(str(s.__doc__) for s in schemas.ALL if s.title == title)
    return f"!{data}, the data of this run, cannot be read here: cite its source yourself."


def _of_object(thing: Any) -> str:
    """Return the docstrings of an object's class and module, and of the anchor rules among its fields."""
    cls = type(thing)
    words = [cls.__doc__, getattr(sys.modules.get(cls.__module__), "__doc__", "")]
    if is_dataclass(thing):
        values = [getattr(thing, field.name) for field in fields(thing)]
        words += [type(value).__doc__ for value in values if isinstance(value, Rule)]
    return " ".join(filter(None, words))


@cache
def _library(package: str) -> dict[str, str]:
    """Return the docstrings of each method in a library, by the method's bare name, without importing it."""
    names = listed(f"floatscope.{package}")
    return {_bare(name): _docstrings(home, (attribute,)) for name, home, attribute in names}


@cache
def _docstrings(module: str, names: Iterable[str] = ()) -> str:
    path = _ROOT.joinpath(*module.split(".")[1:]).with_suffix(".py")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    words = [ast.get_docstring(tree)]
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name in names:
            words.append(ast.get_docstring(node))
    return " ".join(filter(None, words))


def _bare(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", dashed(name).lower())
