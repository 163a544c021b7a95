"""Make a small LLaDA-format checkpoint, trace it, and print what was found.

The weights are random: this shows the instrument at work, and nothing about language. With a real
checkpoint the same three calls are `fs.load("GSAI-ML/LLaDA-8B-Instruct")`, `trace`, `save`.
"""

import tempfile
import time
from pathlib import Path

from rich.console import Console

import floatscope as fs
from floatscope import tiny
from floatscope.show import summary

QUESTION = "Where was Ada Lovelace born?"
PASSAGES = [
    "Charles Babbage designed the Analytical Engine in the 1830s.",
    "Ada Lovelace was born in London in 1815, the daughter of Lord Byron.",
    "The Jacquard loom was controlled by punched cards.",
]


def main() -> None:
    console = Console()
    with tempfile.TemporaryDirectory() as folder:
        shape = tiny.Shape(layers=8, width=128, heads=8, ffn=256, context=1024)
        path = tiny.write("LLaDA", Path(folder) / "llada-tiny", shape)
        console.print(f"wrote a random LLaDA-format checkpoint: {path.name}")
        model = fs.load(path)
        console.print(repr(model), markup=False)
        prompt = fs.Prompt.rag(QUESTION, PASSAGES, gold=1)
        start = time.perf_counter()
        trace = model.trace(prompt, fs.Confidence(length=16, steps=8))
        took = time.perf_counter() - start
        saved = trace.save(Path(folder) / "trace.zarr")
        again = fs.Trace.load(saved)
        assert again.mass.equals(trace.mass)
        console.print(summary(trace))
        to_gold = trace.flow.sel(source="masked", target="passage 2").mean()
        console.print(
            f"masked positions give the gold passage {float(to_gold):.1%} of their attention "
            f"(random weights: about its share of the prompt)"
        )
        console.print(f"traced in {took:.1f} s, saved as zarr and read back without the model")


if __name__ == "__main__":
    main()
