"""The command `floatscope trace`: decode a prompt and record where every head attends."""

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from ..errors import UsageError
from .app import Plugins, Weights, app, err, out, output_option
from .progress import Display


@app.command()
def trace(
    model: Annotated[
        str,
        typer.Option(
            help="pair/mdm, twin/mdm, a directory, a .gguf file or a hub id; with settings: "
            "DIR,family=Llama,mask_id=4,dtype=bfloat16,adapter=DIR."
        ),
    ],
    prompt: Annotated[str | None, typer.Option(help="The text to start from.")] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="A JSONL file instead: one object per line with a `prompt` field."),
    ] = None,
    sampler: Annotated[
        str | None,
        typer.Option(
            help="As confidence,block_length=8,temperature=0.7: see `floatscope models`. Without a name, "
            "settings are for the default, which fits the model."
        ),
    ] = None,
    length: Annotated[int | None, typer.Option(help="Tokens to generate. Default: 32.")] = None,
    steps: Annotated[
        int | None, typer.Option(help="Denoising steps. Default: one per token.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of all random choices.")] = 0,
    intervene: Annotated[
        str | None,
        typer.Option(
            help="As `floatscope interventions` shows; several joined by ' + ' act together."
        ),
    ] = None,
    keep: Annotated[
        str | None,
        typer.Option(
            help="Statistics to keep, with commas: mass,entropy,flow,… Default: all that cost little."
        ),
    ] = None,
    groups: Annotated[
        str, typer.Option(help="Query groups: coarse (prompt, masked, revealed) or regions.")
    ] = "coarse",
    layers: Annotated[str | None, typer.Option(help="`3`, `0,5,11` or `0:4`.")] = None,
    heads: Annotated[str | None, typer.Option(help="As for --layers.")] = None,
    keep_steps: Annotated[
        str | None, typer.Option(help="Which steps to keep, from 0; as for --layers.")
    ] = None,
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
        Path | None,
        output_option("--figures", help="Draw each measure into this folder, as SVG."),
    ] = None,
    save: Annotated[
        Path | None,
        output_option(
            "--out", help="Save here as zarr: one store, or one per line in a directory."
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an existing trace.")
    ] = False,
    batch_size: Annotated[int, typer.Option(min=1, help="Prompts decoded together.")] = 8,
    limit: Annotated[
        int | None, typer.Option(min=1, help="At most this many lines of the data.")
    ] = None,
    cache: Annotated[
        str,
        typer.Option(
            help="Cache of keys and values: auto, exact, none; approximate: prefix, dual, dkv."
        ),
    ] = "auto",
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1 …")] = None,
    weights: Weights = "trained",
    check: Annotated[bool, typer.Option(help="Self-check the model after loading.")] = True,
    plugin: Plugins = None,
) -> None:
    """Decode a prompt and record where each head attends.

    \b
    Examples:
      floatscope trace --model ./LLaDA-8B-Instruct --prompt "Who wrote Emma?" \\
          --length 32 --steps 16
      floatscope trace --model ./smollm2.gguf --prompt "Once upon a time" \\
          --out t.zarr
      floatscope trace --model M --data prompts.jsonl --keep mass,entropy \\
          --out traces/
    """
    from ..atomic import make_folder
    from ..measures.base import keep_for
    from ..models.select import choice_of
    from .early import require_interventions, require_sampler, require_texts, spec_of
    from .inputs import common_settings, measures_of, paths_for, texts_of

    texts = texts_of(prompt, data, limit)
    chosen_measures = measures_of(measure)
    if figures is not None and not chosen_measures:
        raise UsageError("--figures draws measures", "Name some with --measure.")
    paths = paths_for(save, len(texts), single=data is None, overwrite=overwrite)
    if figures is not None:
        make_folder(figures)
    spec = spec_of(model)
    typed, shared = common_settings([sampler or ""], {"length": length})
    common = {**shared, "length": shared["length"] or 32, "steps": steps, "seed": seed}
    require_interventions([intervene] if intervene else [])
    if typed[0]:
        require_sampler(typed[0], common)
    from .. import instrument  # the heavy part begins here
    from ..decode.blocks import max_steps
    from ..decode.presets import named_for, sampler_of
    from ..interventions.parse import intervention_of
    from ..models.outline import outlined
    from ..plots.summary import summary
    from ..sequences.prompt import Prompt

    prompts = [Prompt.plain(text, chat=chat) for text in texts]
    change = intervention_of(intervene) if intervene else None
    if (outline := outlined(spec)) is not None:
        chosen = sampler_of(named_for(outline, typed[0]), common)
        require_texts(outline, chosen, prompts, change.adds if change else 0)
    with Display(f"loading {model}"):
        loaded = instrument.load(model, device=device, weights=weights, seed=seed, check=check)
    chosen = sampler_of(named_for(loaded, typed[0]), common)
    out.print(escape(repr(loaded)))
    batches, all_traces = range(0, len(texts), batch_size), []
    total = max_steps(loaded, chosen)
    display = Display("tracing", "steps", len(batches) * total)
    with display, change(loaded) if change else nullcontext():
        for number, start in enumerate(batches):
            before = number * total
            traces = loaded.trace(
                prompts[start : start + batch_size],
                chosen,
                keep=[n.strip() for n in keep.split(",")]
                if keep
                else keep_for(chosen_measures.values()) or None,
                layers=choice_of(layers, "--layers"),
                heads=choice_of(heads, "--heads"),
                steps=choice_of(keep_steps, "--keep-steps"),
                groups=groups,
                dtype=store_dtype,
                batch_size=batch_size,
                cache=None if cache == "none" else cache,
                progress=lambda completed, total, before=before: display.update(
                    completed=before + completed
                ),
            )
            all_traces += traces if chosen_measures else []
            for i, recorded in enumerate(traces, start):
                if paths:
                    recorded.save(paths[i], overwrite=overwrite)
                if data is not None:
                    where = f"  {paths[i]}" if paths else ""
                    out.print(
                        f"{i:>5}  {recorded.n_steps} steps  {escape(repr(recorded.text))}{escape(where)}"
                    )
    if data is None:
        out.print(summary(traces[0]))
        if paths:
            err.print(f"saved {escape(str(paths[0]))}")
    for name, one_measure in chosen_measures.items():
        result = one_measure(all_traces)
        out.print(escape(repr(result)))
        if figures is not None:
            err.print(f"drew {escape(str(result.save_figure(figures / f'{name}.svg')))}")
