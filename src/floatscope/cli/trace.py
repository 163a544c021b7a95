"""`floatscope trace`: decode a prompt and record what every head attended to."""

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from ..errors import UsageError
from .app import Plugins, Weights, app, err, out, output_option
from .progress import Display

# Flags that are called as what they are handed to calls them.
_LOADING = (
    *("adapter", "device", "dtype", "family", "direction", "block", "grid", "shift", "mask_id"),
    *("override_mask", "weights", "seed", "check"),
)
_SAMPLING = ("length", "steps", "block_length", "temperature", "cfg", "seed")


@app.command()
def trace(
    model: Annotated[
        str,
        typer.Option(
            help="pair/mdm, twin/mdm, a directory, a .gguf file or a hub id; see `study`."
        ),
    ],
    adapter: Annotated[
        Path | None, typer.Option(help="A directory with a LoRA in PEFT's format, merged into it.")
    ] = None,
    prompt: Annotated[str | None, typer.Option(help="The text to start from.")] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="A JSONL file instead: one object per line with a `prompt` field."),
    ] = None,
    sampler: Annotated[
        str | None,
        typer.Option(help="How to decode: see `floatscope models`. Default: what fits the model."),
    ] = None,
    length: Annotated[int, typer.Option(help="Tokens to generate.")] = 32,
    steps: Annotated[
        int | None, typer.Option(help="Denoising steps; by default one per token.")
    ] = None,
    block_length: Annotated[
        int | None, typer.Option(help="Decode block by block (semi-autoregressive).")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(help="0 is greedy. Default: the sampler's own, mostly 0.")
    ] = None,
    cfg: Annotated[float, typer.Option(help="Classifier-free guidance scale; 0 is off.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Of every random draw.")] = 0,
    option: Annotated[
        list[str] | None,
        typer.Option("--set", help="A field of the sampler, as `threshold=0.8`. May repeat."),
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
    heads: Annotated[str | None, typer.Option(help="Likewise.")] = None,
    keep_steps: Annotated[
        str | None, typer.Option(help="Which steps to keep, likewise, from 0.")
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
    overwrite: Annotated[bool, typer.Option(help="Replace what is there.")] = False,
    batch_size: Annotated[int, typer.Option(min=1, help="Prompts decoded together.")] = 8,
    limit: Annotated[
        int | None, typer.Option(min=1, help="At most this many lines of the data.")
    ] = None,
    cache: Annotated[
        str,
        typer.Option(help="Of keys and values: auto, exact, none; approximate: prefix, dual, dkv."),
    ] = "auto",
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1 …")] = None,
    dtype: Annotated[str, typer.Option(help="Of the model: auto, float32, bfloat16.")] = "auto",
    family: Annotated[
        str | None, typer.Option(help="Read the weights as this family's: see `floatscope models`.")
    ] = None,
    direction: Annotated[
        str | None,
        typer.Option(help="Of a derived model: causal, bidirectional, block-causal, active-block."),
    ] = None,
    block: Annotated[int | None, typer.Option(help="Block size of a block-causal model.")] = None,
    grid: Annotated[
        str | None,
        typer.Option(help="Where its blocks begin: start (position 0), padded (answer)."),
    ] = None,
    shift: Annotated[
        int | None, typer.Option(help="Position i is predicted by row i − shift.")
    ] = None,
    mask_id: Annotated[int | None, typer.Option(help="Where a checkpoint does not say.")] = None,
    override_mask: Annotated[
        bool | None,
        typer.Option(
            "--override-mask", help="Take --mask-id although the checkpoint says another."
        ),
    ] = None,
    weights: Weights = "trained",
    check: Annotated[bool, typer.Option(help="Self-check the model after loading.")] = True,
    plugin: Plugins = None,
) -> None:
    """Decode a prompt and record what every head of every layer attended to at every step.

    Examples:

    * `floatscope trace --model ./LLaDA-8B-Instruct --prompt "Who wrote Emma?" --length 32 --steps 16`
    * `floatscope trace --model ./smollm2.gguf --prompt "Once upon a time" --out t.zarr`
    * `floatscope trace --model M --data prompts.jsonl --keep mass,entropy --out traces/`
    """
    given = locals()
    from ..atomic import make_folder
    from ..measures.base import keep_for
    from ..models.select import choice_of
    from .early import require_sampler, require_texts, spec_of
    from .inputs import measures_of, paths_for, texts_of

    texts = texts_of(prompt, data, limit)
    wanted = measures_of(measure)
    if figures is not None and not wanted:
        raise UsageError("--figures draws measures", "Name some with --measure.")
    paths = paths_for(save, len(texts), single=data is None, overwrite=overwrite)
    if figures is not None:
        make_folder(figures)
    spec = spec_of(model, given)
    common, special = {name: given[name] for name in _SAMPLING}, option or []
    if sampler:
        require_sampler(sampler, common, special)
    from .. import instrument  # the heavy part begins here
    from ..decode.blocks import most_steps
    from ..decode.presets import default_name, sampler_of
    from ..models.outline import outlined
    from ..plots.summary import summary
    from ..sequences.prompt import Prompt

    prompts = [Prompt.plain(text, chat=chat) for text in texts]
    if (outline := outlined(spec)) is not None:
        chosen = sampler_of(sampler or default_name(outline), common, special)
        require_texts(outline, chosen, prompts)
    with Display(f"loading {model}"):
        loaded = instrument.load(model, **{name: given[name] for name in _LOADING})
    chosen = sampler_of(sampler or default_name(loaded), common, special)
    out.print(escape(repr(loaded)))
    batches, every = range(0, len(texts), batch_size), []
    total = most_steps(loaded, chosen)
    with Display("tracing", "steps", len(batches) * total) as display:
        for number, start in enumerate(batches):
            before = number * total
            traces = loaded.trace(
                prompts[start : start + batch_size],
                chosen,
                keep=[n.strip() for n in keep.split(",")]
                if keep
                else keep_for(wanted.values()) or None,
                layers=choice_of(layers, "--layers"),
                heads=choice_of(heads, "--heads"),
                steps=choice_of(keep_steps, "--keep-steps"),
                groups=groups,
                dtype=store_dtype,
                batch_size=batch_size,
                cache=None if cache == "none" else cache,
                progress=lambda done, total, before=before: display.update(done=before + done),
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
            err.print(f"drew {escape(str(result.save_figure(figures / f'{name}.svg')))}")
