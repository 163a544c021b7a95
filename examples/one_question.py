"""Ask the embedded pair one question, trace both models, and print where attention rests.

No GPU, no download: the two models are inside the package. One question over nine passages about
people neither model has read of; the same prompt, the same ten positions to fill.
"""

import time

from rich.console import Console
from rich.markup import escape

import floatscope as fs
from floatscope.plots.summary import summary
from floatscope.tasks import prompt_of
from floatscope.tasks.world import LEVELS, World


def who_read(trace: fs.Trace, gold: str) -> str:
    """The head that looked most at the gold passage when the answer's first token was revealed."""
    start = int(trace.info["prompt_length"])
    first = trace.rows.sel(event=(trace.data["event_position"] == start)).isel(event=-1)
    looked = first["row_flow"].sel(target=gold)  # (layer, head)
    strongest = looked.argmax(["layer", "head"])
    layer, head = int(strongest["layer"]), int(strongest["head"])
    share = float((trace.data["region"] == gold).mean())
    return (
        f"when it revealed the first word, layer {layer}, head {head} gave the gold passage "
        f"{float(looked.max()):.0%} of its attention; it is {share:.0%} of the positions"
    )


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
        console.print(who_read(trace, prompt.gold))
        console.print(f"traced in {took:.1f} s: every head, layer and step\n")


if __name__ == "__main__":
    main()
