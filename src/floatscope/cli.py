"""The command line: parse, call, print. Everything it does, the library does.

Exit codes: 0 done; 1 a bug or an unexpected failure; 2 wrong usage (option, prompt, sampler);
3 a model that cannot be loaded or fails its self-check; 4 a trace that cannot be written or read;
5 a capture that missed a layer; 6 a run that cannot start, write or go on; 130 interrupted.
"""

import sys
from dataclasses import fields
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from .errors import FloatscopeError, UsageError

app = typer.Typer(
    name="floatscope",
    help="An instrument for attention in masked diffusion language models.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
out, err = Console(), Console(stderr=True)


def _version(wanted: bool) -> bool:
    if wanted:
        from importlib.metadata import version

        out.print(f"floatscope {version('floatscope')}")
        raise typer.Exit
    return wanted


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command()
def trace(
    model: Annotated[
        str, typer.Option(help="pair/mdm, pair/arm, a directory, a .gguf file or a hub id.")
    ],
    prompt: Annotated[str | None, typer.Option(help="The text to start from.")] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="A JSONL file instead: one object a line with a `prompt` field."),
    ] = None,
    sampler: Annotated[
        str | None,
        typer.Option(help="How to decode: see `floatscope models`. Default: what fits the model."),
    ] = None,
    length: Annotated[int, typer.Option(help="Tokens to generate.")] = 32,
    steps: Annotated[
        int | None, typer.Option(help="Denoising steps; by default one a token.")
    ] = None,
    block_length: Annotated[
        int | None, typer.Option(help="Decode block by block (semi-autoregressive).")
    ] = None,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    cfg: Annotated[float, typer.Option(help="Classifier-free guidance scale; 0 is off.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Of every random draw.")] = 0,
    option: Annotated[
        list[str] | None,
        typer.Option("--set", help="A field of the sampler, as `threshold=0.8`. May repeat."),
    ] = None,
    keep: Annotated[
        str | None,
        typer.Option(help="Statistics to keep, with commas: mass,entropy,flow,… All by default."),
    ] = None,
    groups: Annotated[
        str, typer.Option(help="Query groups: coarse (prompt, masked, revealed) or regions.")
    ] = "coarse",
    layers: Annotated[str | None, typer.Option(help="`3`, `0,5,11` or `0:4`.")] = None,
    heads: Annotated[str | None, typer.Option(help="Likewise.")] = None,
    keep_steps: Annotated[str | None, typer.Option(help="Which steps to keep, likewise.")] = None,
    store_dtype: Annotated[
        str, typer.Option(help="float32, or float16 for half the size.")
    ] = "float32",
    chat: Annotated[
        bool | None, typer.Option(help="Use the model's chat template. Default: if it has one.")
    ] = None,
    measure: Annotated[
        str | None,
        typer.Option(help="Measures to print, with commas: see `floatscope measures`."),
    ] = None,
    figures: Annotated[
        Path | None, typer.Option(help="Draw each measure into this folder, as SVG.")
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option("--out", help="Save here as zarr: one store, or one a line in a directory."),
    ] = None,
    overwrite: Annotated[bool, typer.Option(help="Replace what is there.")] = False,
    batch_size: Annotated[int, typer.Option(min=1, help="Prompts decoded together.")] = 8,
    limit: Annotated[
        int | None, typer.Option(min=1, help="At most so many lines of the data.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1 …")] = None,
    dtype: Annotated[str, typer.Option(help="Of the model: auto, float32, bfloat16.")] = "auto",
    family: Annotated[
        str | None, typer.Option(help="Read the weights as this family's: see `floatscope models`.")
    ] = None,
    direction: Annotated[
        str | None, typer.Option(help="Of a derived model: causal, bidirectional, block-causal.")
    ] = None,
    block: Annotated[int | None, typer.Option(help="Block size of a block-causal model.")] = None,
    shift: Annotated[
        int | None, typer.Option(help="Position i is predicted by row i − shift.")
    ] = None,
    mask_id: Annotated[int | None, typer.Option(help="Where a checkpoint does not say.")] = None,
    check: Annotated[bool, typer.Option(help="Self-check the model after loading.")] = True,
) -> None:
    """Decode a prompt and record what every head of every layer attended to at every step.

    Examples:

    * `floatscope trace --model ./LLaDA-8B-Instruct --prompt "Who wrote Emma?" --length 32 --steps 16`
    * `floatscope trace --model ./smollm2.gguf --prompt "Once upon a time" --out t.zarr`
    * `floatscope trace --model M --data prompts.jsonl --keep mass,entropy --out traces/`
    """
    from . import instrument
    from .options import choice_of, measures_of, paths_for, sampler_of, texts_of
    from .prompt import Prompt
    from .show import summary

    texts = texts_of(prompt, data, limit)
    wanted = measures_of(measure)
    if figures is not None and not wanted:
        raise UsageError("--figures draws measures", "Name some with --measure.")
    paths = paths_for(save, len(texts), single=data is None, overwrite=overwrite)
    with err.status(f"Loading {escape(model)} …"):
        loaded = instrument.load(
            model,
            device=device,
            dtype=dtype,
            family=family,
            direction=direction,
            block=block,
            shift=shift,
            mask_id=mask_id,
            check=check,
        )
    chosen = sampler_of(
        sampler or ("confidence" if loaded.is_diffusion else "autoregressive"),
        {
            "length": length,
            "steps": steps,
            "block_length": block_length,
            "temperature": temperature,
            "cfg": cfg,
            "seed": seed,
        },
        option or [],
    )
    out.print(escape(repr(loaded)))
    bar = Progress(
        TextColumn("tracing: step"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=err,
    )
    batches, every = range(0, len(texts), batch_size), []
    with bar:
        task = bar.add_task("tracing", total=len(batches) * chosen.n_steps)
        for number, start in enumerate(batches):
            before = number * chosen.n_steps
            traces = loaded.trace(
                [Prompt.plain(text, chat=chat) for text in texts[start : start + batch_size]],
                chosen,
                keep=[name.strip() for name in keep.split(",")] if keep else None,
                layers=choice_of(layers, "--layers"),
                heads=choice_of(heads, "--heads"),
                steps=choice_of(keep_steps, "--keep-steps"),
                groups=groups,
                dtype=store_dtype,
                batch_size=batch_size,
                progress=lambda done, total, before=before: bar.update(
                    task, completed=before + done
                ),
            )
            every += traces if wanted else []
            for i, one in enumerate(traces, start):
                if paths:
                    one.save(paths[i], overwrite=overwrite)
                if data is not None:
                    where = f"  {paths[i]}" if paths else ""
                    out.print(
                        f"{i:>5}  {one.n_steps} steps  {escape(repr(one.text))}{escape(where)}"
                    )
    if data is None:
        out.print(summary(traces[0]))
        if paths:
            err.print(f"saved {escape(str(paths[0]))}")
    for name, one_measure in wanted.items():
        result = one_measure(every)
        out.print(escape(repr(result)))
        if figures is not None:
            figures.mkdir(parents=True, exist_ok=True)
            err.print(f"drew {escape(str(result.save_figure(figures / f'{name}.svg')))}")


@app.command()
def measures() -> None:
    """List the measures: what each asks of a trace."""
    from .measures import MEASURES

    table = Table(title="Measures", title_justify="left")
    for column in ("measure", "what it says", "options"):
        table.add_column(column)
    for name, cls in MEASURES.items():
        own = [f.name for f in fields(cls)]
        table.add_row(name, escape((cls.__doc__ or "").strip().splitlines()[0]), ", ".join(own))
    out.print(table)


@app.command()
def models() -> None:
    """List the model families that can be loaded, and the samplers that decode them."""
    from .decode import SAMPLERS
    from .models import FAMILIES, PAIR

    table = Table(title="Model families", title_justify="left")
    for name in ("family", "architecture", "attention", "row that predicts i", "for example"):
        table.add_column(name)
    for family in FAMILIES:
        row = "i" if family.shift == 0 else f"i − {family.shift}"
        names = ", ".join(family.architectures)
        table.add_row(family.name, names, str(family.direction), row, family.examples)
    out.print(table)
    table = Table(title="Embedded models: no GPU, no download", title_justify="left")
    table.add_column("name")
    table.add_column("what")
    for name, what in PAIR.items():
        table.add_row(name, what)
    out.print(table)
    table = Table(title="Samplers", title_justify="left")
    for name in ("sampler", "rule", "options beside the common ones"):
        table.add_column(name)
    common = {"length", "steps", "block_length", "temperature", "cfg", "seed", "stop_at_eos"}
    for name, cls in SAMPLERS.items():
        own = [f"{f.name}={f.default}" for f in fields(cls) if f.name not in common]
        rule = (cls.__doc__ or "").strip().splitlines()[0]
        table.add_row(name, escape(rule), escape(", ".join(own)))
    out.print(table)


def main() -> None:
    """Run the command line; errors a user can mend are one line and an exit code."""
    try:
        app()
    except FloatscopeError as error:
        err.print(f"[bold red]error:[/] {escape(str(error))}", soft_wrap=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt as stopped:
        err.print(escape(str(stopped)) or "interrupted; nothing was left half-written")
        sys.exit(130)


if __name__ == "__main__":
    main()
