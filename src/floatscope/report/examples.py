"""Select answers for a reader of the page to judge, each with its question and its gold answer.

Each answer says whether it was cut off and whether it is right. The answers belong to a study's first
questions. They come from the settings on which claims are decided or, without such settings, from the study's
first three settings. The table on disk has all answers. This module scores nothing.
"""

from typing import Any

import pandas as pd

from ..studies.findings import ANSWERS, Findings
from ..studies.planning import settings_of
from ..studies.results import file_of
from ..studies.study import Study

_QUESTIONS = 12  # of each study
_SETTINGS = 3  # where none decides
_LONG = 400  # characters of a text


def examples_of(study: Study, findings: Findings) -> dict[str, Any] | None:
    """Return a study's first questions with answers, the number of questions, and the file with all answers.

    The keys of the result are `asked`, `total` and `file`. The path of the file is relative to the page.
    Return None if the study asks nothing, or if no question has a gold answer.
    """
    own = {s.name for s in study.settings(findings.request)}
    known = {name: one for name, one in settings_of(findings.request).items() if name in own}
    deciding = [name for name, one in known.items() if one.decides] or list(known)[:_SETTINGS]
    lines = findings.tables.get(ANSWERS, pd.DataFrame())
    if not {"gold", "setting"} <= set(lines):
        return None
    lines = lines[lines["setting"].isin(deciding)].dropna(subset="gold")
    if lines.empty:
        return None
    by_question = [rows.to_dict("records") for _, rows in lines.groupby("id", sort=False)]
    asked = [
        {
            "question": _short(rows[0]["question"]),
            "gold": _short(rows[0]["gold"]),
            "answers": [_answer(row) for row in rows],
        }
        for rows in by_question[:_QUESTIONS]
    ]
    file = f"results/{file_of(findings, ANSWERS)}"
    return {"asked": asked, "total": len(by_question), "file": file}


def _answer(row: dict[str, Any]) -> dict[str, Any]:
    """Return a model's answer in one setting, from a row of the table; unknown fields are None."""
    return {
        "model": row["model"],
        "setting": row["setting"],
        "text": _short(row["prediction"]),
        "cut": _known(row.get("cut")),  # off by its length
        "right": _known(row["contains"]),
        "counted": _short(row["counted"]),  # which gold answer
    }


def _known(value: Any) -> bool | None:
    return None if pd.isna(value) else bool(value)


def _short(text: object) -> str:
    words = " ".join(str(text).split())
    return words if len(words) <= _LONG else words[: _LONG - 1] + "…"
