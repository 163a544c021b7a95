"""From a map to a cause: docs/map_to_cause.md, on the twin or on any diffusion model.

    python examples/map_to_cause.py [--model twin/mdm] [--questions 40] [--patched 8]

Questions about people of the synthetic world whom no model has read of. Heads are chosen on eight other
questions than those on which they are ablated. A quarter of an hour on one CPU core.
"""

import argparse
import itertools
from dataclasses import replace

import numpy as np

import floatscope as fs
from floatscope.stats.intervals import mean
from floatscope.tasks.asking import default_template

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--model", default="twin/mdm")
parser.add_argument("--data", default="world:four")
parser.add_argument("--questions", type=int, default=40)
parser.add_argument("--patched", type=int, default=8)
parser.add_argument("--heads", type=int, default=10)
parser.add_argument("--draws", type=int, default=5)
given = parser.parse_args()

OTHERS = 8
model = fs.load(given.model)
every = fs.world_records(given.data, given.questions + OTHERS)
others, records = every[:OTHERS], every[OTHERS:]
template = default_template(every)
sampler = fs.Confidence(length=8, steps=4)


def said(values, unit=""):
    middle, low, high = (float(x) for x in mean(np.asarray(values, float)))
    return f"{middle:.3g} [{low:.3g}, {high:.3g}]{unit}"


def masked_answer(record):
    """The canvas before the first step, rows that predict the answer that was given, and its tokens; None
    where it was not the right one."""
    decoding = model.generate(template.prompt(record), sampler)
    if record.answers[0].lower() not in decoding.text.lower():
        return None
    start = len(decoding.prompt.ids)
    ends = [i in model.end_ids for i in decoding.answer_ids]
    size = ends.index(True) if True in ends else len(ends)
    answer = [int(i) for i in decoding.answer_ids[:size]]
    rows = [i - model.shift for i in range(start, start + size)]
    return [int(i) for i in decoding.canvas[0]], rows, answer


# 1. The map: which heads look at the gold passage while the answer is written?
traces = model.trace([template.prompt(r) for r in others], sampler)
looking = fs.RetrievalHeads()(traces)
evidence = looking["evidence"].transpose("layer", "head").values
order = np.argsort(-evidence, axis=None)[: given.heads]
chosen = [tuple(int(x) for x in np.unravel_index(i, evidence.shape)) for i in order]
print(
    "Heads with most attention on the gold passage:",
    ", ".join(f"{layer}.{head}" for layer, head in chosen),
)
print(
    "Their share of it:",
    f"{evidence.ravel()[order].min():.2f} to {evidence.max():.2f}; mean of all heads",
    f"{np.nanmean(evidence):.2f}, uniform {float(np.nanmean(looking['evidence_null'])):.2f}",
)

# 2. Ablated, against as many random heads of the same layers (fewer where a layer has not so many left).
generator = np.random.default_rng(0)
sets = [(), tuple(chosen)]
for _ in range(given.draws):
    drawn = []
    for layer in sorted({at for at, _ in chosen}):
        free = [h for h in range(model.n_heads) if (layer, h) not in chosen]
        count = min(len(free), sum(at == layer for at, _ in chosen))
        drawn += [(layer, int(h)) for h in generator.choice(free, count, replace=False)]
    sets.append(tuple(drawn))
lost = []  # (question, set): nats a token
for record in records:
    if (asked := masked_answer(record)) is None:
        continue
    canvas, rows, answer = asked
    logits = fs.ablated_each(model, canvas, sets, rows)
    p = logits.float().log_softmax(-1)[:, range(len(answer)), answer].mean(-1)
    lost.append((p[0] - p).tolist())
lost = np.array(lost)
both = lost[:, 1], lost[:, 2:].mean(1)
print(
    f"Log-probability of the right answer lost, nats a token, n = {len(lost)}: "
    f"these {len(chosen)} heads {said(both[0])}, {len(sets[2])} "
    f"random heads of the same layers {said(both[1])}, difference {said(both[0] - both[1])}"
)

# 3. A message or a place? The strongest key hidden, and its value alone.
for name, change in {
    "as it is": None,
    "strongest key of each head hidden": fs.MaskColumns(k=1),
    "another key hidden": fs.MaskColumns(k=1, control="random"),
    "gold passage hidden from the answer": fs.CutEdges(queries="predicting", keys="gold"),
    "values of the gold passage zeroed": fs.MaskValues(regions="gold"),
    "values of as many other tokens zeroed": fs.MaskValues(regions="gold", control="random"),
    "chosen heads ablated": fs.AblateHeads(tuple(chosen)),
    "random heads ablated": fs.AblateHeads(sets[2]),
}.items():
    answers = fs.evaluate(model, records[:20], sampler, template=template, intervention=change)
    middle, low, high = answers.mean()
    print(f"{name}: {100 * middle:.0f} % right [{100 * low:.0f}, {100 * high:.0f}]")

# 4. Where and when: a run with another answer in its passage, patched with the residual of the right one.
table = {}
for record, other in itertools.islice(itertools.pairwise(records), given.patched):
    right, wrong = record.answers[0], other.answers[0]
    passages = tuple(replace(p, text=p.text.replace(right, wrong)) for p in record.passages)
    prompt, corrupted = template.prompt(record), template.prompt(replace(record, passages=passages))
    clean = fs.PatchSource.of(model, prompt, sampler, keep="residual")
    for layer in range(0, model.n_layers, max(1, model.n_layers // 6)):
        for region in ("gold", "question", "answer"):
            for steps in (0, slice(1, None)):
                patch = fs.Patch(
                    "residual", clean, layers=layer, regions=region, steps=steps, align="regions"
                )
                with patch(model):
                    text = model.generate(corrupted, sampler).text
                table.setdefault((layer, region, str(steps)), []).append(
                    right.lower() in text.lower()
                )
print("Right answers brought back by patching a layer's input, by region and steps:")
for (layer, region, steps), hits in table.items():
    when = "first step" if steps == "0" else "later steps"
    print(f"| {layer} | {region} | {when} | {sum(hits)} of {len(hits)} |")
