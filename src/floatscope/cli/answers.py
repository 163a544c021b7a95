"""Print the results of `floatscope evaluate`: tables of scores, example answers, and records left out."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

from .app import err

if TYPE_CHECKING:
    from ..tasks import Answers, InvalidRecord


_NAMES = {"contains": "contains", "exact_match": "exact", "f1": "F1", "rouge_l": "ROUGE-L"}
_LONG = 160  # characters of a text in a table
_SAID = {
    "contains": "contains: the answer contains a right answer",
    "rouge_l": "ROUGE-L: words in common with the reference text, in order",
}


def score_table(all_answers: "list[Answers]") -> Table:
    """Return a table of mean scores, a row per setting, with differences from the model's first row."""
    table, name = _labelled_table(all_answers, "Answers (%)")
    hiding = any("hidden_share" in answers.table for answers in all_answers)
    main, *other_scores = (
        s for s in all_answers[0].scores if s in _NAMES
    )  # the same for all answers to one task
    columns = [_NAMES[main], "difference", *(_NAMES[score] for score in other_scores)]
    for column in columns + ["hidden"] * hiding:
        table.add_column(column, justify="right", no_wrap=True)
    first: dict[str, Answers] = {}
    for answers in all_answers:
        base = first.setdefault(answers.model, answers)
        table.add_row(
            name(answers),
            _percent(answers.mean(main)),
            "" if base is answers else _percent(answers.minus(base, main), sign=True),
            *(f"{100 * answers.mean(score)[0]:.1f}" for score in other_scores),
            *[_hidden(answers)] * hiding,
        )
    steps = ", ".join(f"{a.table['steps'].mean():.1f}" for a in first.values())
    counts = [answers.n for answers in all_answers]
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


def text_table(all_answers: "list[Answers]") -> Table | None:
    """Return the table that describes long answers; None for short answers."""
    if "content_tokens" not in all_answers[0].table:
        return None
    table, name = _labelled_table(all_answers, "Text of the answers")
    for column in ("distinct (%)", "grounded (%)", "tokens"):
        table.add_column(column, justify="right", no_wrap=True)
    for answers in all_answers:
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


def examples_table(all_answers: "list[Answers]", count: int) -> Table:
    """Return a table of the first questions: gold answers, answers, and whether each ended and is right."""
    import pandas as pd

    first = all_answers[0].table.head(count)
    table = Table(title=f"The first {len(first)} questions", title_justify="left")
    _, name = _labelled_table(all_answers, "")
    for column in ("question, gold", "model", "answer"):
        table.add_column(column, overflow="fold")
    table.add_column("ended", no_wrap=True)
    table.add_column("right", overflow="fold")
    for id, question, gold in zip(first["id"], first["question"], first["answers"], strict=True):
        table.add_section()
        begin = f"{escape(_clipped(question))}\n[dim]gold:[/] {escape(_clipped(' | '.join(gold)))}"
        for answers in all_answers:
            for row in answers.table[answers.table["id"] == id].itertuples():
                ended = "–" if row.cut is None else "cut off" if row.cut else "yes"
                right = "–" if pd.isna(row.contains) else "no"
                right = f"yes: {escape(_clipped(row.counted))}" if row.counted else right
                label = name(answers).replace("\n  ", ", ")
                table.add_row(begin, label, escape(_clipped(row.prediction.strip())), ended, right)
                begin = ""
    return table


def _clipped(text: str) -> str:
    return text if len(text) <= _LONG else text[: _LONG - 1] + "…"


def _labelled_table(
    all_answers: "list[Answers]", title: str
) -> "tuple[Table, Callable[[Answers], str]]":
    """Return a table with a first column of settings, and a function that writes the column's cell.

    A cell contains the model, and the settings in which the rows of the table differ.
    """
    describe = {
        "model": lambda a: a.model,
        "condition": lambda a: a.condition.name,
        "intervention": lambda a: a.intervention or "none",
        "sampler": lambda a: a.sampler.partition("(")[0],
    }
    shown = [
        n
        for n, text_of in describe.items()
        if n == "model" or len({text_of(a) for a in all_answers}) > 1
    ]
    table = Table(title=title, title_justify="left", caption_justify="left")
    table.add_column(", ".join(shown), overflow="fold", min_width=20)
    return table, lambda answers: escape("\n  ".join(describe[column](answers) for column in shown))


def _hidden(answers: "Answers") -> str:
    if "hidden_share" not in answers.table:
        return ""
    share, columns = answers.table[["hidden_share", "hidden_columns"]].mean()
    return f"{100 * share:.3g} ({columns:.3g})"


def warn_of_cut(all_answers: "list[Answers]") -> None:
    """Print a warning if most answers were cut off, since the share of right answers is then unreliable."""
    from ..tasks.cut import REMEDY

    for answers in all_answers:
        if answers.cut_off:
            edit = f", {answers.intervention}" if answers.intervention else ""
            where = f"{answers.model}, {answers.condition.name}{edit}"
            err.print(escape(f"warning: {where}: {answers.cut_off}. {REMEDY}"), soft_wrap=True)


def _percent(interval: tuple[float, float, float], sign: bool = False) -> str:
    mean, low, high = (100 * x for x in interval)
    return f"{mean:{'+' if sign else ''}.3g} [{low:.3g}, {high:.3g}]".replace("[", "\\[")


def unaskable(all_answers: "list[Answers]") -> "Iterator[InvalidRecord]":
    """Yield each question that could not be asked, once."""
    listed: set[str] = set()
    for answers in all_answers:
        for record in answers.left_out:
            if str(record) not in listed:
                listed.add(str(record))
                yield record


def list_left_out(bad: "list[InvalidRecord]", skip_bad: bool) -> None:
    """Print the records that were left out, or, with `skip_bad`, a message that no record was left out."""
    if bad:
        err.print(f"left out {len(bad)}:")
        for record in bad:
            err.print(f"  {escape(str(record))}", soft_wrap=True)
    elif skip_bad:
        err.print("nothing was left out")
