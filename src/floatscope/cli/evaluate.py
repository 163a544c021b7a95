"""The command `floatscope evaluate`: ask models questions under conditions, interventions and samplers."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from ..errors import UsageError
from .answers import examples_table, list_left_out, score_table, text_table, unaskable, warn_of_cut
from .app import Plugins, Weights, app, err, out, output_option
from .keeping import keeping
from .progress import Display

if TYPE_CHECKING:
    from ..decode import AnySampler
    from ..interventions import Intervention
    from ..sequences.vocabulary import ModelFacts
    from ..tasks import Answers, Condition, InvalidRecord, Record

# Flags that do not change the answers; the others are part of the request.
_NO_EFFECT_ON_ANSWERS = ("save", "resume", "overwrite", "examples", "format")


@app.command()
def evaluate(
    model: Annotated[
        list[str],
        typer.Option(
            help="A name, directory or hub id, or ours=DIR,family=Llama,mask_id=4; may be repeated."
        ),
    ],
    data: Annotated[
        str,
        typer.Option(
            help="A JSONL or SQuAD file; world:nine, known:nine (the synthetic world); or "
            "long:continuation, long:summary, long:answer."
        ),
    ],
    condition: Annotated[
        list[str] | None,
        typer.Option(help="closed-book, passages=5,gold=0, noise=0.5 …; may be repeated."),
    ] = None,
    intervene: Annotated[
        list[str] | None,
        typer.Option(
            help="Written as in `floatscope interventions`, compared with none; may be repeated."
        ),
    ] = None,
    sampler: Annotated[
        list[str] | None,
        typer.Option(
            help="For diffusion models, as confidence,temperature=0.7: see `floatscope models`; may be "
            "repeated."
        ),
    ] = None,
    length: Annotated[
        int | None, typer.Option(min=1, help="Masks, or tokens to generate. Default: 16.")
    ] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Default: one per token.")] = None,
    seed: Annotated[
        int, typer.Option(help="Seed of samplers, drawn passages and permuted weights.")
    ] = 0,
    limit: Annotated[int | None, typer.Option(min=1, help="At most this many questions.")] = None,
    template: Annotated[str, typer.Option(help="auto, plain, or world.")] = "auto",
    chat: Annotated[
        bool | None, typer.Option(help="Use chat templates. Default: where a model has one.")
    ] = None,
    skip_bad: Annotated[
        bool, typer.Option(help="Leave out what cannot be read or asked; list it at the end.")
    ] = False,
    split_alternatives: Annotated[
        bool,
        typer.Option(help="Accept each part of a file's gold answers like `a or b` as right too."),
    ] = False,
    examples: Annotated[
        int, typer.Option(min=0, help="Questions to print with gold answers and answers.")
    ] = 3,
    save: Annotated[
        Path | None,
        output_option("--out", help="A directory for all answers; created if it does not exist."),
    ] = None,
    format: Annotated[
        str, typer.Option(help="Format of the file of answers in it: csv, parquet or jsonl.")
    ] = "csv",
    resume: Annotated[
        bool, typer.Option(help="Continue with the answers of a stopped command.")
    ] = True,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace existing answers.")
    ] = False,
    batch_size: Annotated[int, typer.Option(min=1, help="Questions decoded together.")] = 8,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1 …")] = None,
    weights: Weights = "trained",
    plugin: Plugins = None,
) -> None:
    """Ask models the same questions under several conditions.

    Interventions and samplers count as conditions; differences are paired by question.

    \b
    Examples:
      floatscope evaluate --model pair/mdm --model pair/arm --data world:nine \\
          --limit 50 --length 10 --condition closed-book --condition as-is
      floatscope evaluate --model M --data nq.jsonl.gz --condition passages=5 \\
          --intervene mask-columns,k=5 --intervene mask-columns,k=5,control=random
    """
    options = {name: value for name, value in locals().items() if name not in _NO_EFFECT_ON_ANSWERS}
    if save is not None and save.suffix in (".csv", ".parquet", ".jsonl"):
        raise UsageError(
            f"--out takes a directory, and {save} names a file",
            f"Give --out {save.with_suffix('')} --format {save.suffix[1:]}.",
        )
    from ..tasks.conditions import condition_of
    from ..tasks.templates import template_of
    from .early import require_interventions, require_records, require_sampler, spec_of
    from .inputs import common_settings

    form = template_of(template, chat)
    conditions = [condition_of(text, seed) for text in condition or ["as-is"]]
    records, bad, note = records_of(data, limit, seed, skip_bad, split_alternatives)
    samplers, shared = common_settings(sampler or [], {"length": length})
    length = shared["length"] or 16
    for kind in samplers:
        require_sampler(kind, {"length": length, "steps": steps, "seed": seed})
    require_interventions(intervene or [])
    from .. import instrument, tasks  # the heavy part begins here
    from ..decode.presets import default_name, named_for, sampler_of
    from ..interventions import DoesNotFit
    from ..interventions.parse import intervention_of
    from ..models.outline import outlined
    from ..tasks import answer_files

    file = save and save / f"answers.{format}"
    edits = [None, *(intervention_of(text) for text in intervene or [])]

    def settings_of(
        model: "ModelFacts",
    ) -> "list[tuple[Condition, Intervention | None, AnySampler]]":
        """Return every combination of condition, intervention and sampler for a model."""
        common: dict[str, Any] = {"length": length, "steps": steps, "seed": seed}
        if not model.is_diffusion:
            common.pop("steps")
        names = (model.is_diffusion and samplers) or [default_name(model)]
        return [
            (condition, change, sampler_of(named_for(model, kind), common))
            for kind in names
            for condition in conditions
            for change in edits
        ]

    all_answers: list[Answers] = []
    unfit: list[InvalidRecord] = []
    with keeping(file, options, records, resume, overwrite) as keep:
        specs = [spec_of(name) for name in model]  # all of them, before the first is loaded
        for outline in map(outlined, [] if skip_bad else specs):
            if outline is not None:
                for chosen_condition, change, chosen_sampler in settings_of(outline):
                    require_records(
                        outline, records, chosen_sampler, chosen_condition, form, change
                    )
        for place, name in enumerate(model):
            with Display(f"loading {name}"):
                loaded = instrument.load(name, device=device, weights=weights, seed=seed)
            settings = settings_of(loaded)
            with Display(name, "questions", len(settings) * len(records)) as display:
                for number, (chosen_condition, change, chosen_sampler) in enumerate(settings):
                    try:
                        answers = tasks.evaluate(
                            loaded,
                            records,
                            chosen_sampler,
                            condition=chosen_condition,
                            template=form,
                            intervention=change,
                            batch_size=batch_size,
                            skip_bad=skip_bad,
                            progress=_ticker(display, number * len(records)),
                            keep=keep and keep.for_part(f"{place}-{number:03d}"),
                        )
                    except DoesNotFit as error:  # only this setting is left out
                        where = (
                            f"{chosen_condition.name}, {change.describe() if change else 'none'}"
                        )
                        unfit.append(tasks.InvalidRecord(where, "", str(error), ""))
                        continue
                    all_answers.append(answers)
        if not all_answers:
            raise UsageError(f"nothing could be asked: {unfit[0]}", "Hide fewer columns.")
        if file and keep:  # saved before anything is printed, in case the terminal is gone
            answer_files.write(all_answers, file)
            keep.remove()
            keep.run.forget_replaced()
    out.print(score_table(all_answers))
    if texts := text_table(all_answers):
        out.print(texts)
    if examples:
        out.print(examples_table(all_answers, examples))
    warn_of_cut(all_answers)
    if note:
        err.print(f"note: {escape(note)}", soft_wrap=True)
    list_left_out([*bad, *unfit, *unaskable(all_answers)], skip_bad)
    if file:
        err.print(f"saved {escape(str(file))}")


def _ticker(display: Display, before: int) -> Callable[[int, int], None]:
    return lambda completed, total: display.update(completed=before + completed)


def records_of(
    data: str, limit: int | None, seed: int, skip_bad: bool, split_alternatives: bool = False
) -> "tuple[tuple[Record, ...], tuple[InvalidRecord, ...], str]":
    """Return the records of a file or named task, its invalid records, and a notice about gold answers.

    The notice counts gold answers that seem to contain several alternatives in one text; it is "" if there
    are no such answers.
    """
    from .. import tasks

    if tasks.is_named(data):
        return tasks.named_records(data, limit, seed), (), ""
    read = tasks.read_records(
        data, limit=limit, skip_bad=skip_bad, split_alternatives=split_alternatives
    )
    return read.records, read.bad, read.alternatives
