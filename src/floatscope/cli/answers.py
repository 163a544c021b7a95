"""Print answers for `floatscope evaluate`: a table of scores, and what was left out."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

from .app import err

if TYPE_CHECKING:
    from ..tasks import Answers, Bad


_NAMES = {"contains": "contains", "exact_match": "exact", "f1": "F1", "rouge_l": "ROUGE-L"}
_LONG = 160  # characters of a text in a table
_SAID = {
    "contains": "contains: the answer contains a right answer",
    "rouge_l": "ROUGE-L: words in common with the reference text, in order",
}


def table(every: "list[Answers]") -> Table:
    """Return the table of scores."""
    table, name = _named(every, "Answers (%)")
    hiding = any("hidden_share" in answers.table for answers in every)
    main, *others = (s for s in every[0].scores if s in _NAMES)  # one task, so all alike
    columns = [_NAMES[main], "difference", *(_NAMES[score] for score in others)]
    for column in columns + ["hidden"] * hiding:
        table.add_column(column, justify="right", no_wrap=True)
    first: dict[str, Answers] = {}
    for answers in every:
        base = first.setdefault(answers.model, answers)
        table.add_row(
            name(answers),
            _percent(answers.mean(main)),
            "" if base is answers else _percent(answers.minus(base, main), sign=True),
            *(f"{100 * answers.mean(what)[0]:.1f}" for what in others),
            *[_hidden(answers)] * hiding,
        )
    steps = ", ".join(f"{a.table['steps'].mean():.1f}" for a in first.values())
    counts = [answers.n for answers in every]
    ends = sorted({min(counts), max(counts)})
    table.caption = (
        f"{' to '.join(map(str, ends))} questions; {steps} steps on average\n"
        f"{_SAID[main]}, with its 95 % interval over questions\n"
        "difference: from the model's first line, paired by question"
    )
    if hiding:
        table.caption += (
            "\nhidden: share of a masked head's attention, without the mask; and columns per head"
        )
    return table


def likeness(every: "list[Answers]") -> Table | None:
    """Return the table that describes long answers; None for short ones."""
    if "content_tokens" not in every[0].table:
        return None
    table, name = _named(every, "Text of the answers")
    for column in ("distinct (%)", "grounded (%)", "tokens"):
        table.add_column(column, justify="right", no_wrap=True)
    for answers in every:
        table.add_row(
            name(answers),
            *(_percent(answers.mean(score)) for score in ("distinct_4", "grounded")),
            f"{answers.table['content_tokens'].mean():.1f}",
        )
    table.caption = (
        "distinct: share of distinct runs of four words\n"
        "grounded: share of content words from the given text; tokens: content tokens per answer"
    )
    return table


def shown(every: "list[Answers]", most: int) -> Table:
    """Return the first questions with gold answer, answer, whether it was cut off, and why it counts."""
    import pandas as pd

    first = every[0].table.head(most)
    table = Table(title=f"The first {len(first)} questions", title_justify="left")
    _, name = _named(every, "")
    for column in ("question, gold", "model", "answer"):
        table.add_column(column, overflow="fold")
    table.add_column("ended", no_wrap=True)
    table.add_column("right", overflow="fold")
    for id, question, gold in zip(first["id"], first["question"], first["answers"], strict=True):
        table.add_section()
        begin = f"{escape(_clipped(question))}\n[dim]gold:[/] {escape(_clipped(' | '.join(gold)))}"
        for answers in every:
            for row in answers.table[answers.table["id"] == id].itertuples():
                ended = "–" if row.cut is None else "cut off" if row.cut else "yes"
                right = "–" if pd.isna(row.contains) else "no"
                right = f"yes: {escape(_clipped(row.counted))}" if row.counted else right
                who = name(answers).replace("\n  ", ", ")
                table.add_row(begin, who, escape(_clipped(row.prediction.strip())), ended, right)
                begin = ""
    return table


def _clipped(text: str) -> str:
    return text if len(text) <= _LONG else text[: _LONG - 1] + "…"


def _named(every: "list[Answers]", title: str) -> "tuple[Table, Callable[[Answers], str]]":
    """Return a table whose first column names answers, without what is the same in every row."""
    say = {
        "model": lambda a: a.model,
        "condition": lambda a: a.condition.name,
        "intervention": lambda a: a.intervention or "none",
        "sampler": lambda a: a.sampler.partition("(")[0],
    }
    shown = [n for n, of in say.items() if n == "model" or len({of(a) for a in every}) > 1]
    table = Table(title=title, title_justify="left", caption_justify="left")
    table.add_column(", ".join(shown), overflow="fold", min_width=20)
    return table, lambda answers: escape("\n  ".join(say[column](answers) for column in shown))


def _hidden(answers: "Answers") -> str:
    if "hidden_share" not in answers.table:
        return ""
    share, columns = answers.table[["hidden_share", "hidden_columns"]].mean()
    return f"{100 * share:.3g} ({columns:.3g})"


def warn_of_cut(every: "list[Answers]") -> None:
    """Warn if most answers were cut off: their share of right answers then measures the length."""
    from ..tasks.cut import REMEDY

    for answers in every:
        if answers.cut_off:
            edit = f", {answers.intervention}" if answers.intervention else ""
            where = f"{answers.model}, {answers.condition.name}{edit}"
            err.print(escape(f"warning: {where}: {answers.cut_off}. {REMEDY}"), soft_wrap=True)


def _percent(interval: tuple[float, float, float], sign: bool = False) -> str:
    mean, low, high = (100 * x for x in interval)
    return f"{mean:{'+' if sign else ''}.3g} [{low:.3g}, {high:.3g}]".replace("[", "\\[")


def unasked(every: "list[Answers]") -> "Iterator[Bad]":
    """Yield the questions that could not be asked, each once."""
    seen: set[str] = set()
    for answers in every:
        for one in answers.left_out:
            if str(one) not in seen:
                seen.add(str(one))
                yield one


def list_left_out(bad: "list[Bad]", skip_bad: bool) -> None:
    """Print what was left out."""
    if bad:
        err.print(f"left out {len(bad)}:")
        for one in bad:
            err.print(f"  {escape(str(one))}", soft_wrap=True)
    elif skip_bad:
        err.print("nothing was left out")
