"""What a trained model can do: questions answered by decoding, natural text, samples.

    python -m training.evaluate --checkpoint DIR --data DATA --out results.json

Answers are decoded, never scored from the reference: the causal model greedily until <eos>, the
diffusion model from a fixed number of masks, one place a step, the most confident first. Exact
match on the text before <eos>. Intervals are Wilson's at 95 %. This is the training machine's own
check in plain PyTorch; the published measurements are made with the package.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from training.common import BOS, EOS, MASK, PAD, load_world
from training.model import Model
from training.rows import Encoder

SLOTS = 10  # masks given for an answer; the longest answer has 8 tokens
BATCH = 128


def prompt_ids(example: Any, encode: Encoder) -> list[int]:
    """<bos> and the parts, each tokenised by itself."""
    return [BOS] + [i for _, text in example.parts() for i in encode(text)]


def pad_left(rows: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """(ids, visible, positions), each (rows, longest); positions count from the first token."""
    longest = max(map(len, rows))
    ids = torch.tensor([[PAD] * (longest - len(r)) + list(r) for r in rows], device=device)
    lengths = torch.tensor([len(r) for r in rows], device=device)[:, None]
    positions = torch.arange(longest, device=device)[None] - (longest - lengths)
    return ids, positions >= 0, positions.clamp(min=0)


@torch.no_grad()
def answer(model: Model, prompts: Sequence[Sequence[int]], slots: int = SLOTS) -> list[list[int]]:
    """Decoded answer ids (before <eos>) of a batch of prompts."""
    device = model.embed.device
    if model.causal:
        rows = [list(p) for p in prompts]
        for _ in range(slots):
            ids, visible, positions = pad_left(rows, device)
            hidden = model.hidden(ids, visible=visible, positions=positions)
            last = hidden.view(*ids.shape, -1)[:, -1]
            for row, token in zip(rows, _scores(model, last).argmax(-1).tolist(), strict=True):
                row.append(token)
        outs = [row[len(p) :] for row, p in zip(rows, prompts, strict=True)]
    else:
        ids, visible, positions = pad_left([[*p, *[MASK] * slots] for p in prompts], device)
        for _ in range(slots):
            hidden = model.hidden(ids, visible=visible, positions=positions)
            probs = _scores(model, hidden.view(*ids.shape, -1)[:, -slots:]).softmax(-1)
            best, token = probs.max(-1)  # (rows, slots)
            best[ids[:, -slots:] != MASK] = -1
            at = best.argmax(1, keepdim=True)
            ids[:, -slots:].scatter_(1, at, token.gather(1, at))
        outs = ids[:, -slots:].tolist()
    return [o[: o.index(EOS)] if EOS in o else o for o in outs]


def _scores(model: Model, hidden: Tensor) -> Tensor:
    logits = torch.nn.functional.linear(hidden, model.embed.to(hidden.dtype)).float()
    logits[..., MASK] = -math.inf
    return logits


def wilson(hits: int, n: int, z: float = 1.96) -> tuple[float, float]:
    p, d = hits / n, 1 + z * z / n
    centre, half = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return max(0.0, (centre - half) / d), min(1.0, (centre + half) / d)


def exact_match(model: Model, examples: Sequence, encode: Encoder, slots: int = SLOTS) -> dict:
    prompts = [prompt_ids(e, encode) for e in examples]
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))  # little padding
    hits = 0
    wrong: list[dict[str, str]] = []
    for start in range(0, len(order), BATCH):
        batch = order[start : start + BATCH]
        for i, ids in zip(batch, answer(model, [prompts[i] for i in batch], slots), strict=True):
            said = encode.tokenizer.decode(ids).strip()
            hits += said == examples[i].answers[0]
            if said != examples[i].answers[0] and len(wrong) < 3:
                wrong.append(
                    {
                        "question": examples[i].question,
                        "said": said,
                        "right": examples[i].answers[0],
                    }
                )
    low, high = wilson(hits, len(examples))
    return {
        "n": len(examples),
        "exact_match": hits / len(examples),
        "low": low,
        "high": high,
        "tokens": round(float(np.mean([len(p) for p in prompts])), 1),
        "wrong": wrong,
    }


def suites(noise: Sequence[str], n: int) -> dict[str, tuple[list, int]]:
    """Named lists of examples with the number of masks each is decoded from."""
    package = load_world()
    world, levels = package.World(), package.LEVELS
    out: dict[str, tuple[list, int]] = {}
    for gold in range(9):
        level = replace(levels["nine"], gold=gold)
        out[f"unseen, 9 passages, gold {gold}"] = world.examples(level, n, seed=gold + 1), SLOTS
    for name, level in levels.items():
        if name != "nine":
            out[f"unseen, {name}"] = world.examples(level, n, seed=20, noise=noise), SLOTS
    out["unseen, nine, 16 masks"] = world.examples(levels["nine"], n, seed=21), 16
    out["known, nine"] = world.examples(levels["nine"], n, seed=22, known=True), SLOTS
    rng = random.Random("closed book")
    out["known, closed book"] = [world.ask_known(rng) for _ in range(2 * n)], SLOTS
    out["unseen, closed book"] = (
        [e.closed_book() for e in world.examples(levels["nine"], n, seed=23)],
        SLOTS,
    )
    return out


@torch.no_grad()
def natural_loss(
    model: Model,
    held: np.ndarray,
    *,
    length: int = 512,
    rows: int = 96,
    draws: int = 16,
    seed: int = 0,
) -> dict:
    """Nats a token on held-out text: next-token loss, or the masked bound by Monte Carlo.

    The bound draws t evenly spread on (0, 1], masks each token with chance t, and averages
    masked loss / t; its standard error over rows is given.
    """
    device = model.embed.device
    starts = np.linspace(0, len(held) - length, rows).astype(int)
    ids = torch.tensor(
        np.stack([np.concatenate(([BOS], held[s : s + length - 1])) for s in starts]).astype(
            np.int64
        ),
        device=device,
    )
    g = torch.Generator(device=device).manual_seed(seed)
    totals = torch.zeros(rows, device=device, dtype=torch.float64)
    for part in torch.arange(rows, device=device).split(16):
        x = ids[part]
        if model.causal:
            nll = torch.nn.functional.cross_entropy(
                model.logits(x)[:, :-1].transpose(1, 2), x[:, 1:], reduction="none"
            )
            totals[part] += nll.double().mean(1)
            continue
        for draw in range(draws):
            u = torch.rand(len(part), 1, device=device, generator=g)
            t = (draw + u) / draws
            masked = torch.rand(x.shape, device=device, generator=g) < t
            masked[:, 0] = False
            nll = torch.nn.functional.cross_entropy(
                model.logits(torch.where(masked, MASK, x)).transpose(1, 2), x, reduction="none"
            )
            totals[part] += (nll.double() * masked / t).sum(1) / (length - 1) / draws
    values = totals.cpu()
    return {
        "nats_per_token": float(values.mean()),
        "standard_error": float(values.std() / math.sqrt(rows)),
        "rows": rows,
        "length": length,
        "kind": "next token" if model.causal else f"masked bound, {draws} draws a row",
    }


@torch.no_grad()
def sample(
    model: Model, start: Sequence[int], *, length: int = 64, temperature: float = 0.7, seed: int = 0
) -> list[int]:
    """Natural text after `start`: token by token, or masks filled in order of confidence."""
    device = model.embed.device
    g = torch.Generator(device=device).manual_seed(seed)
    ids = torch.tensor([[*start, *([] if model.causal else [MASK] * length)]], device=device)
    for _ in range(length):
        logits = _scores(model, model.hidden(ids))
        probs = (logits / temperature).softmax(-1)
        token = torch.multinomial(probs, 1, generator=g)[:, 0]  # (positions,)
        if model.causal:
            ids = torch.cat((ids, token[-1].view(1, 1)), 1)
        else:
            # Order by entropy with noise: pure confidence would fill in commas first.
            score = (probs * probs.clamp(min=1e-9).log()).sum(-1)
            score = score + torch.rand(score.shape, device=device, generator=g)
            score[ids[0] != MASK] = -math.inf
            at = score.argmax()
            ids[0, at] = token[at]
    return ids[0].tolist()


def evaluate(
    model: Model,
    data: Path,
    *,
    n: int = 300,
    seconds: float = 90.0,
    rows: int = 96,
    samples: int = 3,
) -> dict:
    """All suites, natural loss and samples. Suites left out for time are listed as such."""
    encode, began = Encoder(), time.monotonic()
    noise = json.loads((data / "held_noise.json").read_text())
    held = np.load(data / "held.npy")
    out: dict = {
        "objective": "arm" if model.causal else "mdm",
        "natural": natural_loss(model, held, rows=rows),
        "suites": {},
        "left_out": [],
        "samples": [],
    }
    for i in range(samples):
        at = 1000 + 7000 * i
        ids = sample(model, [BOS, *map(int, held[at : at + 40])], seed=i)
        text = encode.tokenizer.decode(ids[1:41]), encode.tokenizer.decode(ids[41:])
        out["samples"].append({"given": text[0], "written": text[1]})
    for name, (examples, slots) in suites(noise, n).items():
        if time.monotonic() - began > seconds:
            out["left_out"].append(name)
            continue
        out["suites"][name] = result = exact_match(model, examples, encode, slots)
        print(
            f"{name:32s} {100 * result['exact_match']:6.1f} %  "
            f"[{100 * result['low']:.1f}, {100 * result['high']:.1f}]  n {result['n']}"
        )
    print(
        f"natural {out['natural']['nats_per_token']:.3f} nats a token "
        f"({out['natural']['kind']}); {time.monotonic() - began:.0f} s"
    )
    return out


def main() -> None:
    from training.export import load_exported

    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--checkpoint", type=Path, required=True, help="an exported folder")
    parser.add_argument("--data", type=Path, required=True, help="the data folder of the training")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--n", type=int, default=300)
    parser.add_argument("--seconds", type=float, default=240.0)
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = load_exported(args.checkpoint).to(device)
    if device.type == "cuda":
        model.dtype = torch.bfloat16
    results = evaluate(model, args.data, n=args.n, seconds=args.seconds)
    args.out.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
