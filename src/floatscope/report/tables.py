"""Write tables for a paper: claims, answers by setting, means of measures; as plain numbers and as LaTeX.

The tables have the same numbers as the page: `studies` computes them for its verdicts and sentences. Every
table has the columns value, low, high, null, n, unit and level. The tables in `results/` are complete, layer
by layer.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from ..measures import latex
from ..measures.result import Result
from ..stats.digits import ABSENT, digits, estimate
from ..studies.claim import SHARES, Number
from ..studies.findings import PERMUTED, TRAINED, Findings
from ..studies.numbers import overall
from ..studies.planning import settings_of

_AVERAGED = ("layer", "head", "step")
_FEW = 12  # regions, classes: each a line of its own


@dataclass(frozen=True)
class PaperTable:
    """A table for a paper, as a frame of plain numbers and as LaTeX."""

    name: str
    frame: pd.DataFrame
    latex: str


def tables_of(findings: Findings) -> list[PaperTable]:
    made = [_claims(findings)] if findings.verdicts else []
    for one in (findings, *findings.extra_runs):
        made += [t for t in (_answers(one), *(_measure(one, key) for key in one.measures)) if t]
    return made


def _claims(findings: Findings) -> PaperTable:
    rows: list[dict[str, Any]] = []
    lines = []
    for claim in findings.verdicts:
        about = {"claim": claim.number, "text": claim.text, "verdict": claim.verdict}
        about["scope"] = claim.scope
        for place, number in enumerate(claim.numbers):
            which = {"quantity": number.label, "primary": place == 0, "study": claim.study}
            rows.append({**about, **which, **_plain(number)})
        shown = [ABSENT] * 3
        if claim.numbers:
            first = claim.numbers[0]
            shown = [_cell(first, unit=True), _null(first), str(first.n or ABSENT)]
        else:
            rows.append({**about, "study": claim.study})
        lines.append([str(claim.number), f"{claim.text} ({claim.scope})", claim.verdict, *shown])
    levels = {claim.numbers[0].level for claim in findings.verdicts if claim.numbers}
    level = f"{100 * levels.pop():.3g} % " if len(levels) == 1 else ""
    text = latex.table(
        ["", "claim (what it was tested on)", "verdict", f"value [{level}interval]", "null", "n"],
        [("", lines)],
        align=("r", "p{2.7in}", "l", "r", "r", "r"),
        caption="Claims of the literature and causal questions, each with its verdict about the models and "
        "data named.",
        label="tab:claims",
    )
    return PaperTable("claims", pd.DataFrame(rows), text)


def _answers(one: Findings) -> PaperTable | None:
    """Return the table of right answers in percent, with a row per setting and a column per model.

    Return None if no answers are scored.
    """
    rows, lines = [], []
    for setting in settings_of(one.request):
        found = {model: one.right(setting, model) for model in one.models}
        there = {model: number for model, number in found.items() if number is not None}
        if not there:
            continue
        for model, number in there.items():
            rows.append({"setting": setting, "model": model, **_plain(number)})
        cells = [_cell(number) if number else ABSENT for number in found.values()]
        counts = ", ".join(str(n) for n in dict.fromkeys(number.n for number in there.values()))
        lines.append([setting, *cells, counts])
    if not rows:
        return None
    header, groups, n = _without_n(
        ["setting", *(f"{model} (%)" for model in one.models), "n"], [("", lines)]
    )
    text = latex.table(
        header,
        groups,
        align="l" + "r" * (len(header) - 1),
        caption=f"Right answers on {one.request.data}, with 95 % intervals over questions{n}.",
        label=f"tab:{_named(one, 'answers')}",
    )
    return PaperTable(_named(one, "answers"), pd.DataFrame(rows), text)


def _measure(one: Findings, key: str) -> PaperTable | None:
    """Return the table of a measure's means over layers, heads and steps, by value, model and control.

    Return None if the measure has no such means.
    """
    found: dict[str, list[tuple[str, str, Number]]] = {}
    for model in one.models:
        for weights in (TRAINED, PERMUTED):
            own = weights == TRAINED
            result = one.result(key, model) if own else one.control(key, model)
            for number in _numbers(result) if result is not None else ():
                found.setdefault(number.label, []).append((model, weights, number))
    if not found:
        return None
    rows: list[dict[str, Any]] = []
    groups: list[latex.Group] = []
    for quantity, numbers in found.items():
        lines = []
        for model, weights, number in numbers:
            about = {"quantity": quantity, "model": model, "weights": weights}
            rows.append({"measure": key, **about, **_plain(number)})
            whose = model if weights == TRAINED else f"{model}, untrained"
            lines.append([whose, _cell(number), _null(number), str(number.n)])
        unit = numbers[0][-1].unit
        groups.append((f"{quantity} ({unit})" if unit else quantity, lines))
    name = type(one.measures[key]).__name__
    header, groups, n = _without_n(["", "mean [95 %]", "null", "n"], groups)
    text = latex.table(
        header,
        groups,
        align="l" + "r" * (len(header) - 1),
        caption=f"{name} ({key}) on {one.request.data}: means over layers, heads and steps, with 95 % "
        f"intervals over examples{n}.",
        label=f"tab:{_named(one, key)}",
    )
    return PaperTable(_named(one, key), pd.DataFrame(rows), text)


def _without_n(
    header: list[str], groups: list[latex.Group]
) -> tuple[list[str], list[latex.Group], str]:
    """Return header, rows and a caption's end; n moves from its column to the caption if it is constant."""
    counts = {row[-1] for _, rows in groups for row in rows}
    if len(counts) > 1:
        return header, groups, ""
    short: list[latex.Group] = [(name, [row[:-1] for row in rows]) for name, rows in groups]
    return header[:-1], short, f"; n = {counts.pop()}"


def _numbers(result: Result) -> Iterator[Number]:
    """Yield the mean of each value of a result and, for values with labels such as regions, one per label."""
    for name in result.values:
        value = result.data[name]
        unit = str(value.attrs.get("units", ""))
        rest = [d for d in value.dims if d not in _AVERAGED]
        if not rest:
            number = overall(result, name, name, unit) or _single(result, name, unit)
            if number is not None:
                yield number
        elif len(rest) == 1 and value[rest[0]].dtype.kind in "UOT" and value[rest[0]].size <= _FEW:
            for place in value[rest[0]].values:
                at = {rest[0]: place}
                part = replace(
                    result,
                    data=result.data[[n for n in (name, f"{name}_null") if n in result.data]].sel(
                        at
                    ),
                    examples=result.examples[[name]].sel(at),
                )
                number = overall(part, name, f"{name}, {place}", unit)
                if number is not None:
                    yield number


def _single(result: Result, name: str, unit: str) -> Number | None:
    """Return a value that is not a mean over examples, such as a count of heads, with its interval.

    Return None if the value is NaN or has dimensions.
    """
    value = result.data[name]
    if value.ndim or not bool(value.notnull()):
        return None
    ends = [result.data.get(f"{name}_{end}") for end in ("low", "high", "null")]
    low, high, null = (None if x is None or x.ndim else float(x) for x in ends)
    return Number(name, float(value), low, high, null, unit, result.n)


def _plain(number: Number) -> dict[str, Any]:
    """Return a number's fields as table cells, with shares and differences of shares times 100."""
    scale = 100 if number.unit in SHARES else 1
    ends = {key: getattr(number, key) for key in ("value", "low", "high", "null")}
    scaled = {key: None if x is None else scale * x for key, x in ends.items()}
    return {**scaled, "n": number.n, "unit": number.unit, "level": number.level}


def _cell(number: Number, *, unit: bool = False) -> str:
    plain = _plain(number)
    text = estimate(plain["value"], plain["low"], plain["high"])
    return f"{text} {number.unit}".rstrip() if unit else text


def _null(number: Number) -> str:
    return digits(_plain(number)["null"])


def _named(one: Findings, name: str) -> str:
    return f"{one.file_prefix}-{name}" if one.label else name
