"""Ask the embedded pair one question, trace both models, and print where attention rests.

No GPU, no download: the two models are inside the package. One question over nine passages about
people neither model has read of; the same prompt, the same ten positions to fill.
"""

import time

from rich.console import Console
from rich.markup import escape

import floatscope as fs
from floatscope.show import summary
from floatscope.tasks import prompt_of
from floatscope.tasks.world import LEVELS, World


def main() -> None:
    console = Console()
    example = World().examples(LEVELS["nine"], 1, seed=3)[0]
    prompt = prompt_of(example)
    console.print(escape(prompt.text), style="dim")
    console.print(f"[bold]right answer[/] {example.answers[0]!r}, in {prompt.gold}\n")
    for name, sampler in (
        ("pair/mdm", fs.Confidence(length=10, steps=10)),
        ("pair/arm", fs.Autoregressive(length=10)),
    ):
        model = fs.load(name)
        console.print(escape(repr(model)), style="bold")
        start = time.perf_counter()
        trace = model.trace(prompt, sampler)
        took = time.perf_counter() - start
        console.print(summary(trace))
        reading = trace.flow.isel(step=0).mean("head")
        source = "masked" if model.is_diffusion else "template"
        to_gold = reading.sel(source=source, target=prompt.gold).isel(layer=slice(-4, None)).mean()
        share = float((trace.data["region"] == prompt.gold).mean())
        console.print(
            f"in its last four layers, {source} positions give the gold passage {float(to_gold):.1%} "
            f"of their attention at the first step; it is {share:.1%} of the positions"
        )
        console.print(f"traced in {took:.1f} s: every head, layer and step\n")


if __name__ == "__main__":
    main()
