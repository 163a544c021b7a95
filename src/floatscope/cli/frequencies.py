"""The command `floatscope frequencies`: count tokens of a corpus for the position-calibrated sampler."""

import io
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from ..errors import UsageError
from .app import Plugins, app, out, output_option
from .progress import Display


@app.command()
def frequencies(
    corpus: Annotated[
        list[Path], typer.Argument(help="Text files, or JSONL with a `text` field; .gz, .xz too.")
    ],
    model: Annotated[
        str, typer.Option(help="The model whose tokenizer is used: a name, directory or hub id.")
    ],
    save: Annotated[
        Path,
        output_option("--out", help="The .npy file to write."),
    ],
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an existing file.")
    ] = False,
    plugin: Plugins = None,
) -> None:
    """Count how frequent each token is in a corpus.

    The sampler position-calibrated and the measure decoding-order use the counts.

    \b
    Examples:
      floatscope frequencies --model ./LLaDA-8B-Instruct --out f.npy wiki.txt.gz
      floatscope evaluate … --sampler position-calibrated,frequencies=f.npy
    """
    import numpy as np

    from .. import atomic, instrument
    from ..stats.frequencies import corpus_texts, count

    if save.suffix != ".npy":
        raise UsageError(f"{save} does not end in .npy", "Choose a name that ends in .npy.")
    if save.exists() and not overwrite:
        raise UsageError(f"{save} exists", "Choose another --out, or pass --overwrite.")
    atomic.rehearse(save)
    with Display(f"loading {model}") as display:
        loaded = instrument.load(model, device="cpu", check=False)
        if loaded.tokenizer is None:
            raise UsageError(f"{model} has no tokenizer", "Count with a model that has one.")

        def tick(texts: int, tokens: int) -> None:
            display.update(f"counting: {texts:,} texts, {tokens:,} tokens")

        shares = count(loaded.tokenizer, corpus_texts(corpus), loaded.vocab_size, tick)
    buffer = io.BytesIO()
    np.save(buffer, shares.astype(np.float32))
    atomic.write(save, buffer.getvalue())
    n_seen = int((shares > 0).sum())
    out.print(f"{escape(str(save))}: {n_seen:,} of {loaded.vocab_size:,} tokens seen")
