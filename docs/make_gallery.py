"""Draw the figures of docs/gallery.md, each by the very lines that the page shows above it.

    python docs/make_gallery.py                  # every figure, and the page
    python docs/make_gallery.py heatmap rollout  # these figures

The lines stand here once: `docs/generate.py` writes them into the page, this script runs them and writes
the images into docs/gallery/.
"""

import ast
import runpy
import sys
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).parent / "gallery"
DPI = 110  # a figure of 6.6 inches is 726 pixels wide

SETUP = """
import floatscope as fs
from floatscope.tasks import prompt_of
from floatscope.tasks.world import LEVELS, World

mdm, arm = fs.load("pair/mdm"), fs.load("pair/arm")
prompts = [prompt_of(e) for e in World().examples(LEVELS["three"], 8, seed=3)]
sampler = fs.Confidence(length=12, stop_at_eos=False)
traces = mdm.trace(prompts, sampler)
inside = mdm.trace(prompts, sampler, keep=["lens", "kv_drift"])
causal = arm.trace(prompts, fs.Autoregressive(length=12))
trace = traces[0]

records = fs.tasks.long_records("long:continuation", 8)
texts = [fs.Prompt.plain(record.question, chat=False) for record in records]
writing = fs.Confidence(length=64, steps=16, block_length=8, temperature=0.7)
states = [mdm.read_states(t) for t in mdm.trace(texts, writing, keep=["mass"])]
"""


class Picture(NamedTuple):
    """A figure: the name of its file, a title, what it shows, where to read on, and the code that draws it.

    The code's last line is an expression whose value is a figure or axes.
    """

    name: str
    title: str
    shows: str
    more: str
    code: str


PICTURES = (
    Picture(
        "heatmap",
        "One decoding, step by step",
        "The attention that each position of layer 7 receives at each step. Triangles mark anchors, circles "
        "the positions revealed at that step.",
        "reference/measures/drift.md",
        "fs.heatmap(trace, layer=7)",
    ),
    Picture(
        "layers",
        "One decoding, layer by layer",
        "Attention on each position relative to uniform attention: red is more, blue is less.",
        "reference/traces.md",
        "trace.heatmap(lift=True)",
    ),
    Picture(
        "pattern",
        "The pattern of one head",
        "Queries by keys of head 6 in layer 8 at step 9, computed again from the trace.",
        "reference/traces.md",
        "trace.show(9, layer=8, head=6, model=mdm)",
    ),
    Picture(
        "absorption",
        "Attention on anchors",
        "Left, the share of attention on anchors, on position 0 and on the strongest key, with 95 % "
        "intervals; dotted is chance. Right, the number of anchors.",
        "reference/measures/absorption.md",
        "fs.measures.Absorption()(traces).plot(width=6.6)",
    ),
    Picture(
        "drift",
        "How long anchors last",
        "Whether anchors and the strongest key stay where they are from step to step, how far they move, and "
        "how many steps they last; dotted is chance.",
        "reference/measures/drift.md",
        "fs.measures.Drift()(traces).plot(width=6.6, font_size=7)",
    ),
    Picture(
        "movement",
        "Anchors that move with the text",
        "For each head: the share of attention on its reference key, the share of texts in which that key "
        "changes, and the correlation of its position with the frontier of revealed text (white: none).",
        "reference/measures/movement.md",
        "fs.measures.Movement()(states).plot(width=6.6, font_size=7)",
    ),
    Picture(
        "structure",
        "Which kinds of token receive attention",
        "Left, attention relative to chance by token class and layer. Right, structural against content "
        "tokens.",
        "reference/measures/structure.md",
        "fs.measures.Structure()(traces).plot(width=6.6)",
    ),
    Picture(
        "region_flow",
        "From the answer to the passages",
        "Attention from the rows that reveal the answer to the regions of the prompt, the lift of the gold "
        "passage, and the lift of each passage by its place.",
        "reference/measures/region_flow.md",
        "fs.measures.RegionFlow()(traces).plot(width=6.6, font_size=7)",
    ),
    Picture(
        "rollout",
        "Attention rollout and its null",
        "Attention followed through the layers, beside the rollout of uniform attention.",
        "reference/measures/rollout.md",
        "fs.measures.Rollout()(traces).plot(width=6.6, font_size=7)",
    ),
    Picture(
        "retrieval",
        "Retrieval heads",
        "Left, the share of copied tokens on which a head rests when they are revealed. Right, attention on "
        "the gold passage relative to chance.",
        "reference/measures/retrieval.md",
        "fs.measures.RetrievalHeads()(traces).plot()",
    ),
    Picture(
        "entropy",
        "Attention entropy",
        "Left, the entropy of rows by their kind; 1 is uniform attention. Right, each head.",
        "reference/measures/entropy.md",
        "fs.measures.AttentionEntropy()(traces).plot()",
    ),
    Picture(
        "dormancy",
        "Heads at rest",
        "Left, the share of attention on anchors for each head. Right, the share of examples in which it is "
        "above 0.3.",
        "reference/measures/dormancy.md",
        "fs.measures.Dormancy()(traces).plot()",
    ),
    Picture(
        "lens",
        "Logit lens",
        "The layer in which the final token becomes the most probable one, the layer in which it stays so, "
        "and the entropy of the prediction.",
        "reference/measures/lens.md",
        "fs.measures.LogitLens()(inside).plot(width=6.6, font_size=7)",
    ),
    Picture(
        "kv_drift",
        "Drift of keys and values",
        "How far keys and values turn from one step to the next, which matters to approximate caches.",
        "reference/measures/kv_drift.md",
        "fs.measures.KVDrift()(inside).plot()",
    ),
    Picture(
        "order",
        "Decoding order",
        "Left, which positions are revealed by when. Right, biases of that order with their nulls "
        "(diamonds).",
        "reference/measures/order.md",
        "fs.measures.DecodingOrder()(traces).plot()",
    ),
    Picture(
        "compare",
        "Two models compared",
        "The diffusion model against the autoregressive one, on the same questions: attention on anchors and "
        "on the first position, with 95 % intervals; dotted is chance.",
        "reference/measures/compare.md",
        "mine, other = (fs.measures.Absorption()(t) for t in (traces, causal))\n"
        'fs.compare(mine, other, paired=True).plot("absorption", "first")',
    ),
)


def page() -> str:
    """Return the Markdown of all figures."""
    parts = [f"```python\n{SETUP.strip()}\n```"]
    for picture in PICTURES:
        parts += [
            f"## {picture.title}",
            f"{picture.shows} [More]({picture.more})",
            f"```python\n{picture.code}\n```",
            f"![{picture.title}](gallery/{picture.name}.webp)",
        ]
    return "\n\n".join(parts)


def draw(code: str, names: dict[str, Any]) -> Any:
    """Run code in the namespace `names` and return the figure that its last line gives."""
    *before, last = ast.parse(code).body
    if not isinstance(last, ast.Expr):
        raise ValueError(f"the last line is no expression: {code}")
    exec(compile(ast.Module(before, []), "gallery", "exec"), names)
    return eval(compile(ast.Expression(last.value), "gallery", "eval"), names).figure


def main(chosen: list[str]) -> None:
    """Draw the chosen figures, or all, and write the page."""
    unknown = set(chosen) - {picture.name for picture in PICTURES}
    if unknown:
        raise SystemExit(f"no figure is called {', '.join(sorted(unknown))}")
    FOLDER.mkdir(exist_ok=True)
    names: dict[str, Any] = {}
    exec(SETUP, names)
    for picture in PICTURES:
        if not chosen or picture.name in chosen:
            path = FOLDER / f"{picture.name}.webp"
            lossless = {"lossless": True, "quality": 100, "method": 6}
            draw(picture.code, names).savefig(path, dpi=DPI, pil_kwargs=lossless)
            print(f"{path.name}: {path.stat().st_size / 1000:.1f} kB")
    runpy.run_path(str(Path(__file__).with_name("generate.py")), run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
