"""Writes the pair's card from the tables that training and measuring left: no number is typed in.

python -m training.card --tables src/floatscope/models/embedded --out src/floatscope/models/embedded/CARD.md
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

NAMES = {"mdm": "diffusion (`pair/mdm`)", "arm": "autoregressive (`pair/arm`)"}

HEAD = """# The embedded pair
Two small language models made for one comparison. They share the architecture, the tokenizer, the
first weights, the data and its order, the optimizer and the number of tokens; they differ in the
objective and in the attention mask. They run on a CPU, with no download. They are instruments for
studying attention, not assistants: they know an invented world and some old books.

Nothing about them was selected for what attention does: one run each, one seed, evaluated as it ended.
"""

DATA = """## Data
| part | share of rows | source, licence |
|---|---|---|
| natural English | 30 % | 155 public-domain books; openings of about 10,000 Wikipedia articles (CC BY-SA 4.0) |
| contexts with questions | 60 % | the synthetic world (`floatscope.tasks.world`), made-up people, places and things |
| closed-book questions | 6 % (70 % of the 64-token rows) | 300 known people of the world |
| biographies of known people | 4 % | the world |

The first 4,000 steps hold short, easy contexts. Unseen people are named from words that occur in no
training text of the world. One book in eighty and one article in fifty are held out.
"""

OBJECTIVES = """## Objectives
**Autoregressive**: next token, causal mask. **Diffusion**: as LLaDA: t uniform, tokens masked with chance t,
loss over masked tokens / t, no mask; in four fifths of the rows with questions the answers alone are masked,
each answer with a t of its own, half of them entirely. Weights by role for both: natural text 1, text of
contexts 0.2, answers and their end 8, fill after the end 0.5. A fixed `<bos>` stands at position 0; no row is
padded. An answer ends in `<eos>`; the diffusion model fills the places after it with `<eos>`.
"""

LIMITS = """## Limits
- 12M parameters and 812M tokens: samples are grammatical and make no sense over more than a clause.
- Natural losses are not comparable with each other: one is a bound by Monte Carlo, the other exact.
- The natural text was seen about 14 times over; world facts are random and unlimited.
- One seed is shipped. Two others were trained (docs/explanation/pair.md): what is said of the sink holds for all three, scores on hard suites differ widely. Differences between the two models on single suites should not be read as differences between objectives.
- Many of the recorded errors on unseen names are half-copied spellings: a name is two to six tokens.
- The diffusion model looks at position 0 too, in its first layers, above all on natural text.
"""


def read(folder: Path, name: str) -> Any:
    return json.loads((folder / name).read_text())


def percent(one: dict[str, float], mean: str = "mean") -> str:
    return f"{100 * one[mean]:.1f} % [{100 * one['low']:.1f}, {100 * one['high']:.1f}]"


def budget(folder: Path) -> str:
    runs = {m: read(folder, f"{m}-run.json") for m in NAMES}
    a, b = runs["mdm"], runs["arm"]
    c, r = a["config"], a["recipe"]
    equal = {
        "architecture": f"Llama, {c['layers']} layers × {c['width']}, {c['heads']} heads, "
        f"MLP {c['hidden']}, RoPE {c['theta']:g}, tied embeddings",
        "parameters": f"{a['parameters']:,}",
        "vocabulary": f"{c['vocab']} (byte-level BPE)",
        "context": f"{c['context']} tokens",
        "first weights": f"seed {r['seed']}",
        "data order": f"seed {a['plan']['seed']}; step s is a function of (seed, s)",
        "steps": f"{a['step']:,}",
        "tokens": f"{a['tokens']:,}",
        "optimizer": f"AdamW, peak rate {r['lr']:g}, {r['warmup']} steps of warm-up, decay over the "
        f"last {r['decay']:.0%}, weight decay {r['weight_decay']:g}, clip {r['clip']:g}",
        "precision": "bfloat16 products, float32 weights; released as bfloat16",
        "device": f"one {a['device']}, torch {a['torch']}",
    }
    for key in ("parameters", "tokens", "step", "config", "plan", "recipe"):
        assert a[key] == b[key], f"the runs differ in {key}"
    lines = ["## What was equal", "| | both |", "|---|---|"]
    lines += [f"| {k} | {v} |" for k, v in equal.items()]
    lines += [
        "",
        "## What differed",
        "| | diffusion | autoregressive |",
        "|---|---|---|",
        "| attention mask | none | causal |",
        "| objective | masked tokens / t | next token |",
        "| format | LLaDA | Llama |",
        f"| seconds of training | {a['seconds']:.0f} | {b['seconds']:.0f} |",
    ]
    return "\n".join(lines) + "\n"


def answers(folder: Path) -> str:
    found = {m: read(folder, f"{m}-evaluation.json") for m in NAMES}
    lines = [
        "## Answers",
        "Exact match of decoded answers on the training machine, bfloat16, 10 masks or tokens, greedy; Wilson "
        "95 % intervals, n = 300 (closed book, known: 600). `hops`: two-hop questions; `names`: eight distractors "
        "share a name with the subject; `many`: 24 passages; `hard`: 24 passages, two hops, names and conflicts.",
        "",
        "| suite | diffusion | autoregressive |",
        "|---|---|---|",
    ]
    for suite, one in found["mdm"]["suites"].items():
        other = found["arm"]["suites"][suite]
        lines.append(
            f"| {suite} | {percent(one, 'exact_match')} | {percent(other, 'exact_match')} |"
        )
    low = [
        f"{NAMES[m].split(' ')[0]}, {suite} ({100 * one['exact_match']:.1f} %)"
        for m in NAMES
        for suite, one in found[m]["suites"].items()
        if "9 passages" in suite and one["exact_match"] < 0.95
    ]
    lines += ["", f"Below 95 % among nine passages: {'; '.join(low) or 'none'}."]
    lines += positions(folder)
    results = read(folder, "results.json")
    lines += [
        "",
        "With the package, float32 on a CPU, n = 100, bootstrap intervals:",
        "",
        "| suite | diffusion | autoregressive |",
        "|---|---|---|",
    ]
    for suite, one in results["pair/mdm"]["answers"].items():
        lines.append(
            f"| {suite} | {percent(one)} | {percent(results['pair/arm']['answers'][suite])} |"
        )
    natural = {m: found[m]["natural"] for m in NAMES}
    lines += [
        "",
        "## Natural text",
        "Held-out text, nats a token: "
        + "; ".join(
            f"{NAMES[m].split(' ')[0]} {n['nats_per_token']:.3f} ± {n['standard_error']:.3f} ({n['kind']})"
            for m, n in natural.items()
        )
        + ".",
        "",
    ]
    for m in NAMES:
        sample = found[m]["samples"][1]
        given, written = sample["given"].split("\n")[-1], sample["written"].split("\n")[0]
        lines.append(f"> {NAMES[m].split(' ')[0]}: *{given.strip()}* {written.strip()}")
        lines.append(">")
    return "\n".join(lines[:-1]) + "\n"


def positions(folder: Path) -> list[str]:
    """The nine gold positions again, on fresh questions, with narrow intervals."""
    found = read(folder, "positions.json")
    lines = [
        "",
        f"The same nine positions on fresh questions, n = {found['mdm'][0]['n']:,} each:",
        "",
        "| gold | diffusion | autoregressive |",
        "|---|---|---|",
    ]
    for one, other in zip(found["mdm"], found["arm"], strict=True):
        lines.append(
            f"| {one['gold']} | {percent(one, 'exact_match')} | {percent(other, 'exact_match')} |"
        )
    return lines


def attention(folder: Path) -> str:
    results = read(folder, "results.json")
    n = results["pair/mdm"]["attention"]["n"]
    lines = [
        "## What attention does",
        f"Traced with the package on {n} questions about unseen people over nine passages, the same for both; head "
        "mean; means over steps and layers with bootstrap intervals over examples. Reported as found.",
        "",
        "| | diffusion | autoregressive |",
        "|---|---|---|",
    ]
    for what, one in results["pair/mdm"]["attention"]["overall"].items():
        other = results["pair/arm"]["attention"]["overall"][what]
        show = times if "lift" in what else percent
        lines.append(f"| {what} | {show(one)} | {show(other)} |")
    lines += ["", "By layer, position 0 share and how often the strongest key is position 0:", ""]
    lines += ["| layer | diffusion | | autoregressive | |", "|---|---|---|---|---|"]
    by = {m: results[f"pair/{m}"]["attention"]["by_layer"] for m in NAMES}
    for layer in range(len(by["mdm"]["position 0 share"])):
        cells = [
            f"{100 * by[m][w][layer]['mean']:.1f} %"
            for m in NAMES
            for w in ("position 0 share", "strongest is position 0")
        ]
        lines.append(f"| {layer} | {' | '.join(cells)} |")
    clock = {m: results[f"pair/{m}"]["time"] for m in NAMES}
    lines += [
        "",
        "## Time",
        f"A prompt of {clock['mdm']['tokens']} tokens and {clock['mdm']['steps']} steps on two CPU cores, every "
        "statistic of every head and layer: "
        + "; ".join(
            f"{NAMES[m].split(' ')[0]} {t['plain_s']:.2f} s plain, {t['traced_s']:.2f} s traced"
            for m, t in clock.items()
        )
        + ".",
    ]
    return "\n".join(lines) + "\n"


def times(one: dict[str, float]) -> str:
    return f"{one['mean']:.2f}× [{one['low']:.2f}, {one['high']:.2f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tables", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    parts = [HEAD, budget(args.tables), DATA, OBJECTIVES, answers(args.tables)]
    parts += [attention(args.tables), LIMITS]
    args.out.write_text("\n".join(parts))


if __name__ == "__main__":
    main()
