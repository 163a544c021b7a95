"""`floatscope evaluate`: ask models questions, with and without passages, interventions, samplers."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.progress import Progress, TaskID
from rich.table import Table

from ..errors import UsageError
from .app import Plugins, app, err, out, progress_bar

if TYPE_CHECKING:
    from ..tasks import Answers, Bad, Record

_ENDINGS = (".csv", ".parquet", ".jsonl")


@app.command()
def evaluate(
    model: Annotated[list[str], typer.Option(help="A name, directory or hub id; may be repeated.")],
    data: Annotated[
        str,
        typer.Option(
            help="A JSONL or SQuAD file; or world:nine, known:nine (the synthetic world)."
        ),
    ],
    condition: Annotated[
        list[str] | None,
        typer.Option(help="closed-book, passages=5,gold=0, noise=0.5 …; may be repeated."),
    ] = None,
    intervene: Annotated[
        list[str] | None,
        typer.Option(help="As `floatscope interventions` shows; beside none; may be repeated."),
    ] = None,
    sampler: Annotated[
        list[str] | None, typer.Option(help="For diffusion models; may be repeated.")
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option("--set", help="A sampler's own field: name=value.")
    ] = None,
    length: Annotated[int, typer.Option(min=1, help="Masks, or tokens to generate.")] = 16,
    steps: Annotated[int | None, typer.Option(min=1, help="Default: one per token.")] = None,
    seed: Annotated[int, typer.Option(help="Of samplers, and of drawn passages.")] = 0,
    limit: Annotated[int | None, typer.Option(min=1, help="At most this many questions.")] = None,
    template: Annotated[str, typer.Option(help="auto, plain, or world.")] = "auto",
    chat: Annotated[
        bool | None, typer.Option(help="Use chat templates. Default: where a model has one.")
    ] = None,
    skip_bad: Annotated[
        bool, typer.Option(help="Leave out what cannot be read or asked; list it at the end.")
    ] = False,
    save: Annotated[
        Path | None, typer.Option("--out", help="Every answer, as .csv, .parquet or .jsonl.")
    ] = None,
    overwrite: Annotated[bool, typer.Option(help="Replace what is there.")] = False,
    batch_size: Annotated[int, typer.Option(min=1, help="Questions decoded together.")] = 8,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1 …")] = None,
    dtype: Annotated[str, typer.Option(help="Of the models: auto, float32, bfloat16.")] = "auto",
    plugin: Plugins = None,
) -> None:
    """Ask the same questions of models, conditions, interventions and samplers; differences are paired.

    Examples:

    * `floatscope evaluate --model pair/mdm --model pair/arm --data world:nine --limit 50
      --length 10 --condition closed-book --condition as-is`
    * `floatscope evaluate --model M --data nq.jsonl.gz --condition passages=5
      --intervene mask-columns:k=5 --intervene mask-columns:k=5,control=random`
    """
    from .. import instrument, tasks
    from ..decode.presets import default_name, sampler_of
    from ..interventions import DoesNotFit
    from ..interventions.parse import intervention_of
    from ..tasks.conditions import condition_of
    from ..tasks.templates import template_of

    _check_file(save, overwrite)
    records, bad = records_of(data, limit, seed, skip_bad)
    form = template_of(template, chat)
    conditions = [condition_of(text, seed) for text in condition or ["as-is"]]
    edits = [None, *(intervention_of(text) for text in intervene or [])]
    every: list[Answers] = []
    unfit: list[Bad] = []
    for name in model:
        with err.status(f"Loading {escape(name)} …"):
            loaded = instrument.load(name, device=device, dtype=dtype)
        common: dict[str, Any] = {"length": length, "steps": steps, "seed": seed}
        names = (loaded.is_diffusion and sampler) or [default_name(loaded)]
        if not loaded.is_diffusion:
            common.pop("steps")
        settings = [
            (one, change, sampler_of(kind, common, (option or []) if loaded.is_diffusion else []))
            for kind in names
            for one in conditions
            for change in edits
        ]
        with progress_bar(f"{name}: questions") as bar:
            task = bar.add_task("asking", total=len(settings) * len(records))
            for number, (one, change, how) in enumerate(settings):
                try:
                    answers = tasks.evaluate(
                        loaded,
                        records,
                        how,
                        condition=one,
                        template=form,
                        intervention=change,
                        batch_size=batch_size,
                        skip_bad=skip_bad,
                        progress=_ticker(bar, task, number * len(records)),
                    )
                except DoesNotFit as error:  # this setting; the others stand
                    where = f"{one.name}, {change.describe() if change else 'none'}"
                    unfit.append(tasks.Bad(where, "", str(error), ""))
                    continue
                every.append(answers)
    if not every:
        raise UsageError(f"nothing could be asked: {unfit[0]}", "Hide fewer columns.")
    out.print(_table(every))
    _list_left_out([*bad, *unfit, *_unasked(every)], skip_bad)
    if save:
        _save(every, save)
        err.print(f"saved {escape(str(save))}")


def _ticker(bar: Progress, task: TaskID, before: int) -> Callable[[int, int], None]:
    return lambda done, of: bar.update(task, completed=before + done)


def records_of(
    data: str, limit: int | None, seed: int, skip_bad: bool
) -> "tuple[tuple[Record, ...], tuple[Bad, ...]]":
    """A file's records, or the world's."""
    from .. import tasks

    kind, _, level = data.partition(":")
    if kind in ("world", "known") and not Path(data).exists():
        known = kind == "known"
        return tasks.world_records(f"world:{level}", limit or 200, seed=seed, known=known), ()
    read = tasks.read_records(data, limit=limit, skip_bad=skip_bad)
    return read.records, read.bad


def _check_file(path: Path | None, overwrite: bool) -> None:
    if path is None:
        return
    if path.suffix not in _ENDINGS:
        raise UsageError(f"{path} ends in none of {', '.join(_ENDINGS)}", "Choose one.")
    if path.exists() and not overwrite:
        raise UsageError(f"{path} exists", "Choose another --out, or pass --overwrite.")


def _table(every: "list[Answers]") -> Table:
    table = Table(title="Answers (%)", title_justify="left", caption_justify="left")
    say = {
        "model": lambda a: a.model,
        "condition": lambda a: a.condition.name,
        "intervention": lambda a: a.intervention or "none",
        "sampler": lambda a: a.sampler.partition("(")[0],
    }
    # What is the same in every line needs no column.
    shown = [n for n, of in say.items() if n == "model" or len({of(a) for a in every}) > 1]
    table.add_column(", ".join(shown), overflow="fold", min_width=20)
    for column in ("contains", "difference", "exact", "F1"):
        table.add_column(column, justify="right", no_wrap=True)
    first: dict[str, Answers] = {}
    for answers in every:
        base = first.setdefault(answers.model, answers)
        table.add_row(
            escape("\n  ".join(say[column](answers) for column in shown)),
            _percent(answers.mean()),
            "" if base is answers else _percent(answers.minus(base), sign=True),
            *(f"{100 * answers.mean(what)[0]:.1f}" for what in ("exact_match", "f1")),
        )
    steps = ", ".join(f"{a.table['steps'].mean():.1f}" for a in first.values())
    table.caption = (
        f"{_counts(every)} questions; {steps} steps on average\n"
        "contains: a right answer is in what was said, with its 95 % interval over questions\n"
        "difference: from the model's first line, paired by question"
    )
    return table


def _counts(every: "list[Answers]") -> str:
    counts = sorted({answers.n for answers in every})
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"


def _percent(interval: tuple[float, float, float], sign: bool = False) -> str:
    mean, low, high = (100 * x for x in interval)
    return f"{mean:{'+' if sign else ''}.3g} [{low:.3g}, {high:.3g}]".replace("[", "\\[")


def _unasked(every: "list[Answers]") -> "Iterator[Bad]":
    seen: set[str] = set()
    for answers in every:
        for one in answers.left_out:
            if str(one) not in seen:
                seen.add(str(one))
                yield one


def _list_left_out(bad: "list[Bad]", skip_bad: bool) -> None:
    if bad:
        err.print(f"left out {len(bad)}:")
        for one in bad:
            err.print(f"  {escape(str(one))}", soft_wrap=True)
    elif skip_bad:
        err.print("nothing was left out")


def _save(every: "list[Answers]", path: Path) -> None:
    import pandas as pd

    frames = []
    for answers in every:
        frame = answers.table.copy()
        for place, key in enumerate(("model", "intervention", "sampler", "template")):
            frame.insert(place, key, getattr(answers, key))
        frame.insert(1, "condition", answers.condition.name)
        frames.append(frame)
    whole = pd.concat(frames, ignore_index=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".csv":
        whole.to_csv(path, index=False)
    elif path.suffix == ".jsonl":
        whole.to_json(path, orient="records", lines=True, force_ascii=False)
    else:
        whole.to_parquet(path, index=False)
