"""From a map to a cause: docs/tutorials/map_to_cause.md, on the twin or on any diffusion model.

    python examples/map_to_cause.py [--model twin/mdm] [--questions 40] [--patched 8]

Questions about people of the synthetic world whom no model has read of. What the studies `ablation` and
`tracing` do in a run is done here by hand, with their own experiments. Heads are chosen on eight other
questions than those on which they are ablated. A quarter of an hour on one CPU core.
"""

import argparse

import numpy as np

import floatscope as fs
from floatscope.stats.intervals import mean
from floatscope.studies.experiments.answer_tracing import AnswerTracing, shares
from floatscope.studies.experiments.base import ExperimentContext, Unusable
from floatscope.studies.experiments.head_ablation import EVIDENCE, HeadAblation
from floatscope.tasks.asking import default_template
from floatscope.tasks.pool import Pool

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--model", default="twin/mdm")
parser.add_argument("--data", default="world:four")
parser.add_argument("--questions", type=int, default=40)
parser.add_argument("--patched", type=int, default=8)
parser.add_argument("--heads", type=int, default=10)
parser.add_argument("--draws", type=int, default=5)
given = parser.parse_args()

model = fs.load(given.model)
every = fs.tasks.world_records(given.data, given.questions + HeadAblation.choice_questions)
template = default_template(every)
sampler = fs.Confidence(length=8, steps=8)
context = ExperimentContext(
    model, sampler, template, fs.tasks.Condition(), every, Pool(every), given.questions
)


def said(values, unit=""):
    middle, low, high = (float(x) for x in mean(np.asarray(values, float)))
    return f"{middle:.3g} [{low:.3g}, {high:.3g}]{unit}"


# 1. The map: which heads look at the gold passage while the answer is written?
ablation = HeadAblation(heads=given.heads, draws=given.draws, ranked=2)
prepared = ablation.prepare(context)
chosen, random, *_ = prepared.sets[EVIDENCE]
print(
    "Heads with most attention on the gold passage:",
    ", ".join(f"{layer}.{head}" for layer, head in chosen),
)

# 2. Ablated, against as many random heads of the same layers.
each = [ablation.ask(context, index, prepared) for index in range(given.questions)]
found = ablation.summarise(each, model.name)
lost = {name: found.examples[name].sel(choice=EVIDENCE).values for name in ("chosen", "random")}
print(
    f"Log-probability of the right answer lost, nats a token, n = {len(each)}: these {len(chosen)} heads "
    f"{said(lost['chosen'])}, as many random heads of the same layers {said(lost['random'])}, "
    f"difference {said(lost['chosen'] - lost['random'])}"
)

# 3. A message or a place? The strongest key hidden, and its value alone.
for name, change in {
    "as it is": None,
    "strongest key of each head hidden": fs.interventions.MaskColumns(k=1),
    "another key hidden": fs.interventions.MaskColumns(k=1, control="random"),
    "gold passage hidden from the answer": fs.interventions.CutEdges(
        queries="predicting", keys="gold"
    ),
    "values of the gold passage zeroed": fs.interventions.MaskValues(regions="gold"),
    "values of as many other tokens zeroed": fs.interventions.MaskValues(
        regions="gold", control="random"
    ),
    "chosen heads ablated": fs.interventions.AblateHeads(chosen),
    "random heads ablated": fs.interventions.AblateHeads(random),
}.items():
    answers = fs.evaluate(
        model, every[: min(20, given.questions)], sampler, template=template, intervention=change
    )
    middle, low, high = answers.mean()
    print(f"{name}: {100 * middle:.0f} % right [{100 * low:.0f}, {100 * high:.0f}]")

# 4. Where and when: a run with another answer in its passage, patched with the residual of the right one.
tracing, traced = AnswerTracing(), []
for index in range(given.patched):
    try:
        traced.append(tracing.ask(context, index, None))
    except Unusable as error:
        print(f"question {index}: {error.problem}")
result = tracing.summarise(traced, model.name)
restored = shares(result)
print("Share of the gap that patching a layer's input brings back, all steps together:")
for layer in restored["layer"].values:
    cells = [f"{float(x):.2f}" for x in restored.sel(layer=layer).sum("step")]
    print(f"| {layer} | {' | '.join(cells)} |")
direct = float(result["direct"] / result["gap"].sum())
print(f"Straight from the passage's tokens to the answer's rows: {direct:.1%}")
