"""What a branch can do, measured on the training machine: questions by decoding, text loss.

    python -m training.twin.evaluate --run trained/mdm --data DATA --shared shared --tokenizer T --out FILE

Answers are decoded, never scored from the reference: `arm` greedily until its end, `mdm` from 16 masks,
the most confident first, one a step. Every answer is written out; card.py scores them with the package,
with intervals. `--run parent` is the parent as it came. `--int8` rounds the adapter as it is shipped.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer

from training.common import load_world
from training.twin.documents import FEW_WORDS, Builder, ask, begin
from training.twin.export import rounded, weights
from training.twin.model import Twin
from training.twin.parent import END, MASK, installed, read
from training.twin.probes import packed_logits, text_losses

SLOTS = 16
BUDGET = 60_000  # tokens of a forward


def tasks(shared: Path) -> dict[str, list[dict[str, Any]]]:
    """Questions by task; each with passages, an instruction and the answers that count."""
    out: dict[str, list[dict[str, Any]]] = {}
    package = load_world()
    world = package.World()
    for name in ("one", "nine", "hops", "conflict"):
        out[f"world:{name}"] = [
            _task(e.question, [p.text for p in e.passages], e.answers)
            for e in world.examples(package.LEVELS[name], 200, seed=7, noise=("It rained.",))
        ]
    known = world.examples(package.LEVELS["four"], 200, seed=7, known=True)
    out["world, known people"] = [
        _task(e.question, [p.text for p in e.passages], e.answers) for e in known
    ]
    lines = (
        gzip.decompress((shared / "data/nq-open-oracle.jsonl.gz").read_bytes())
        .decode()
        .splitlines()
    )
    nq = []
    for record in map(json.loads, lines[:600]):
        gold = next(c for c in record["ctxs"] if c["isgold"])
        nq.append(
            _task(
                record["question"], [f"(Title: {gold['title']}) {gold['text']}"], record["answers"]
            )
        )
    out["nq"] = nq
    xquad = json.loads((shared / "data/xquad.en.json").read_text("utf-8"))
    out["xquad"] = [
        _task(q["question"], [p["context"]], [a["text"] for a in q["answers"]])
        for article in xquad["data"]
        for p in article["paragraphs"]
        for q in p["qas"]
    ]
    lines = (
        gzip.decompress((shared / "data/hotpot-halueval.1000.jsonl.gz").read_bytes())
        .decode()
        .splitlines()
    )
    out["hotpot"] = [
        _task(r["question"], [r["knowledge"]], [r["right_answer"]]) for r in map(json.loads, lines)
    ]
    multi = (
        gzip.decompress((shared / "data/nq-multidoc.600.jsonl.gz").read_bytes())
        .decode()
        .splitlines()
    )
    out["nq, four passages"] = [_among(json.loads(line), i) for i, line in enumerate(multi[:300])]
    return out


def _task(question: str, passages: Sequence[str], answers: Sequence[str]) -> dict[str, Any]:
    return {"question": question, "passages": list(passages), "answers": list(answers)}


def _among(record: dict[str, Any], index: int) -> dict[str, Any]:
    rng = random.Random(f"among {index}")
    gold = record["gold"]
    others = rng.sample(record["distractors"], 3)
    chosen = [gold, *others]
    rng.shuffle(chosen)
    texts = [
        f"(Title: {c.get('title', '')}) {c['text']}" if c.get("title") else c["text"]
        for c in chosen
    ]
    return _task(record["question"], texts, record["answers"])


class Answering:
    def __init__(self, model: Twin, tokenizer: Tokenizer) -> None:
        self.model, self.tokenizer = model, tokenizer
        dtype = torch.bfloat16 if model.mask.is_cuda else torch.float32
        with torch.no_grad():
            self.table, self.weights = model.table(dtype), model.weights(dtype)

    def prompt(self, task: dict[str, Any], closed: bool) -> list[int]:
        b: Builder = begin(self.tokenizer)
        ask(b, FEW_WORDS, [] if closed else task["passages"], task["question"])
        return b.ids

    @torch.no_grad()
    def answers(self, prompts: Sequence[Sequence[int]]) -> list[str]:
        order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
        out = [""] * len(prompts)
        while order:
            chosen = [order.pop(0)]
            while (
                order
                and (len(chosen) + 1) * (len(prompts[order[0]]) + SLOTS) <= BUDGET
                and len(chosen) < 380
            ):
                chosen.append(order.pop(0))
            decode = self._causal if self.model.causal else self._masked
            for i, row in zip(chosen, decode([list(prompts[i]) for i in chosen]), strict=True):
                row = row[: row.index(END)] if END in row else row
                out[i] = self.tokenizer.decode(row).strip()
        return out

    def _causal(self, rows: list[list[int]]) -> list[list[int]]:
        begins = [len(r) for r in rows]
        for _ in range(SLOTS):
            logits = packed_logits(
                self.model,
                rows,
                [range(len(r), len(r) + 1) for r in rows],
                self.table,
                self.weights,
            )
            for row, token in zip(rows, logits[:, 0].argmax(-1).tolist(), strict=True):
                row.append(token)
        return [r[b:] for r, b in zip(rows, begins, strict=True)]

    def _masked(self, rows: list[list[int]]) -> list[list[int]]:
        begins = [len(r) for r in rows]
        rows = [[*r, *[MASK] * SLOTS] for r in rows]
        for _ in range(SLOTS):
            logits = packed_logits(
                self.model, rows, [range(b, b + SLOTS) for b in begins], self.table, self.weights
            )
            best, token = logits.softmax(-1).max(-1)
            now = torch.tensor(
                [r[b:] for r, b in zip(rows, begins, strict=True)], device=best.device
            )
            best[now != MASK] = -1
            at = best.argmax(1)
            for row, b, i, t in zip(
                rows, begins, at.tolist(), token.gather(1, at[:, None])[:, 0].tolist(), strict=True
            ):
                row[b + i] = t
        return [r[b:] for r, b in zip(rows, begins, strict=True)]


def load(run: str, parent: Path | None, *, int8: bool) -> Twin:
    """The branch of a run's folder, or of its pieces; "parent" is the parent as it came."""
    if Path(run).name not in ("mdm", "arm", "parent"):
        raise SystemExit(f"error: {run}: expected a folder called mdm or arm, or parent")
    tensors = weights(Path(run)) if run != "parent" else {}
    model = Twin(read(parent or installed()), causal=Path(run).name != "mdm")
    for name, p in model.named_parameters():
        if name in tensors:
            value = rounded(name, tensors[name]) if int8 else tensors[name]
            p.data.copy_(value)
    return model.requires_grad_(False)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--run", required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--shared", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--parent", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--int8", action="store_true")
    parser.add_argument("--only", nargs="*", help="tasks (default: all)")
    parser.add_argument("--limit", type=int, help="questions of a task")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    model = load(args.run, args.parent, int8=args.int8).to(args.device)
    tokenizer = Tokenizer.from_file(str(args.tokenizer))
    answering = Answering(model, tokenizer)
    held = np.load(args.data / "held.npy").astype(np.int64)
    out: dict[str, Any] = {
        "run": args.run,
        "int8": args.int8,
        "text_loss": [
            text_losses(model, held, 160 if args.device == "cuda" else 4, seed=s)
            for s in range(3)  # the same texts, other masks
        ],
        "answers": {},
    }
    for name, questions in tasks(args.shared).items():
        if args.only and name not in args.only:
            continue
        questions = questions[: args.limit]
        for closed in (False, True):
            if closed and name in (
                "world:hops",
                "world:conflict",
                "world:one",
                "nq, four passages",
            ):
                continue
            said = answering.answers([answering.prompt(t, closed) for t in questions])
            out["answers"][f"{name}{', closed book' if closed else ''}"] = [
                {"question": t["question"], "answers": t["answers"], "said": s}
                for t, s in zip(questions, said, strict=True)
            ]
            right = sum(
                any(a.casefold() in s.casefold() for a in t["answers"])
                for t, s in zip(questions, said, strict=True)
            )
            print(
                args.run,
                name,
                "closed" if closed else "passages",
                right / len(questions),
                flush=True,
            )
    print("text loss", [float(np.mean(one)) for one in out["text_loss"]])
    args.out.write_text(json.dumps(out, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
