"""Answers for a reader to judge: question, gold answer, answer, whether it was cut off, why it counts.

They are the first questions of the settings that decide, or of the first few settings if none decides; the
table on disk has all of them. Nothing is scored here.
"""

import math
from dataclasses import dataclass
from typing import Any

from ..studies.findings import ANSWERS, Findings
from ..studies.planning import settings_of
from ..studies.results import file_of
from ..studies.study import Study

_QUESTIONS = 12  # of each study
_SETTINGS = 3  # where none decides
_LONG = 400  # characters of a text


@dataclass(frozen=True)
class Answer:
    """What a model answered in one setting. None: not known, or not applicable."""

    model: str
    setting: str
    text: str
    cut: bool | None  # off by its length
    right: bool | None
    counted: str  # which gold answer


@dataclass(frozen=True)
class Asked:
    """A question, its gold answers in one text, and the models' answers."""

    question: str
    gold: str
    answers: list[Answer]


@dataclass(frozen=True)
class Examples:
    """Some questions of a study; `file` has all of them, with its path relative to the page."""

    asked: tuple[Asked, ...]
    total: int
    file: str


def examples_of(study: Study, findings: Findings) -> Examples | None:
    """Return a study's examples; None if it asks nothing, or if an older run stored no gold answers."""
    own = {s.name for s in study.settings(findings.request)}
    known = {name: one for name, one in settings_of(findings.request).items() if name in own}
    deciding = [name for name, one in known.items() if one.decides] or list(known)[:_SETTINGS]
    asked: dict[str, Asked] = {}
    everyone: set[str] = set()
    for setting in deciding:
        for model in findings.models:
            answers = findings.answers(setting, model)
            if answers is None or "gold" not in answers:
                continue
            everyone.update(map(str, answers["id"]))
            for i, name in enumerate(map(str, answers["id"])):
                if name not in asked and len(asked) == _QUESTIONS:
                    continue
                question, gold = (_short(str(answers[key][i])) for key in ("question", "gold"))
                asked.setdefault(name, Asked(question, gold, [])).answers.append(
                    Answer(
                        model=model,
                        setting=setting,
                        text=_short(str(answers["prediction"][i])),
                        cut=_known(answers["cut"][i]) if "cut" in answers else None,
                        right=_known(answers["contains"][i]),
                        counted=_short(str(answers["counted"][i])),
                    )
                )
    if not asked:
        return None
    return Examples(tuple(asked.values()), len(everyone), f"results/{file_of(findings, ANSWERS)}")


def _known(value: Any) -> bool | None:
    return None if value is None or math.isnan(value) else bool(value)


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _LONG else text[: _LONG - 1] + "…"
