"""Every head of the twin ablated in turn: together (`ablated_each`) against one by one, in one run.

    python bench/ablation.py [--model twin/mdm] [--questions 4] [--rounds 3] [--threads 1] [--json FILE]

One by one is what a user writes: `with fs.interventions.AblateHeads([head])(model)` around the forwards
of all questions, each giving the logits of the rows that predict the answer. The proof on entering the
`with`, two short forwards for all questions of a head, is not counted. What a head costs there does not
depend on the head, so some of them stand for all. Both ways take turns; of each, the best round counts.
CPU seconds of all threads, which other work on the machine hardly changes, and seconds of the clock,
which it does.

Beside it the arithmetic: multiplications and additions that each way needs for a head, on average.
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

import floatscope as fs
from floatscope.decode.state import State, notify_edits
from floatscope.models import Model
from floatscope.sequences.prompt import Encoded
from floatscope.tasks.asking import default_template

Text = tuple[list[int], list[int]]  # ids, and rows


def asked(model: Any, questions: int, length: int) -> list[Text]:
    """Questions as the model sees them before the first step, and the rows that predict the answer."""
    records = fs.tasks.world_records("world:four", questions)
    template = default_template(records)
    texts = []
    for record in records:
        ids = list(model.encode(template.prompt(record)).ids)
        rows = [len(ids) - model.shift + place for place in range(length)]
        texts.append((ids + [model.mask_id] * length, rows))
    return texts


def one_by_one(model: Model, texts: Sequence[Text], heads: Sequence[tuple[int, int]]) -> None:
    for head in heads:
        with fs.interventions.AblateHeads([head]).in_force(model):
            for ids, rows in texts:
                prompt = Encoded(tuple(ids), ("prompt",) * len(ids))
                canvas, size = torch.tensor([ids]), len(ids)
                state = State.build(model, [prompt], canvas, (size, size), prompt_end=size)
                with notify_edits(model, state):
                    model.forward(canvas, torch.tensor(rows), state.visible)


def together(model: Model, texts: Sequence[Text], heads: Sequence[tuple[int, int]]) -> None:
    for ids, rows in texts:
        fs.interventions.ablated_each(model, ids, [[head] for head in heads], rows)


def timed(act: Callable[[], None]) -> tuple[float, float]:
    cpu, clock = time.process_time(), time.perf_counter()
    act()
    return time.process_time() - cpu, time.perf_counter() - clock


def arithmetic(config: Any, size: int, rows: int) -> dict[str, float]:
    """Of a head, on average over layers: in forwards over the text. The output layer at the rows alone."""
    width, ffn, layers = config.hidden_size, config.intermediate_size, config.num_hidden_layers
    kv = width * config.num_key_value_heads // config.num_attention_heads
    projections, attention = 2 * width * (width + kv), 2 * size * width
    mlp, head = 3 * width * ffn, config.vocab_size * width * rows / size
    layer = projections + attention + mlp
    forward = layers * layer + head
    # From the ablated layer on; and if that one began after its attention, and the last one were computed at
    # the rows alone but for its keys and values.
    mean = sum(range(1, layers + 1)) / layers
    begun = layers - 1  # layers above which there is another
    least = sum(begun - 1 - at for at in range(begun)) * layer
    least += begun * (mlp + width * width // config.num_attention_heads + 2 * width * kv)
    return {
        "one by one": 1.0,
        "together": (mean * layer + head) / forward,
        "least": (least / layers + layer * rows / size + head) / forward,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="twin/mdm")
    parser.add_argument("--questions", type=int, default=4)
    parser.add_argument("--length", type=int, default=4)
    parser.add_argument("--alone", type=int, default=9, help="heads ablated one by one")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    model = fs.load(args.model)
    texts = asked(model, args.questions, args.length)
    every = [(layer, head) for layer in range(model.n_layers) for head in range(model.n_heads)]
    some = every[:: max(1, len(every) // args.alone)][: args.alone]
    ways = {"one by one": (one_by_one, some), "together": (together, every)}
    best: dict[str, dict[str, float]] = {}
    for number in range(args.rounds):
        for name, (act, heads) in ways.items():
            cpu, clock = timed(partial(act, model, texts, heads))
            each = len(heads) * len(texts)
            row = best.setdefault(name, {"cpu_ms": float("inf"), "clock_ms": float("inf")})
            row["cpu_ms"] = min(row["cpu_ms"], 1000 * cpu / each)
            row["clock_ms"] = min(row["clock_ms"], 1000 * clock / each)
            print(
                f"round {number + 1}, {name}: {1000 * cpu / each:.1f} ms of CPU a head", flush=True
            )
    tokens = sum(len(ids) for ids, _ in texts) // len(texts)
    found: dict[str, Any] = {
        "model": args.model, "heads": len(every), "questions": len(texts), "tokens": tokens,
        "threads": args.threads, "rounds": args.rounds, "torch": torch.__version__, "ways": best,
        "arithmetic": arithmetic(model.net.config, tokens, args.length),
    }  # fmt: skip
    alone, several = best["one by one"], best["together"]
    found["ratio"] = {key: alone[key] / several[key] for key in alone}
    print(json.dumps(found, indent=1))
    if args.json:
        known = json.loads(args.json.read_text()) if args.json.exists() else {}
        known[f"{args.threads}"] = found
        args.json.write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    main()
