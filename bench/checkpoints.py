"""Write checkpoints of published sizes with random weights, and questions for a study of them.

    python bench/checkpoints.py OUT [--models LLaDA-8B Llama-8B] [--examples 16] [--tokens 1800]

OUT gets a directory per model (config, tokenizer and safetensors files as published, bfloat16) and
questions.jsonl. The tokenizer knows bytes alone: a prompt of 1,800 tokens has 1,800 characters. What a
study costs does not depend on the weights, so such a checkpoint can be used like the published one.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
from shapes import SHAPES

from floatscope.models import tiny

WORDS = "the harbour was built in spring by people who came from far away and stayed".split()


def write_questions(path: Path, examples: int, characters: int) -> None:
    """Write questions with one gold passage and three others, of about this many characters together."""
    draw, lines = np.random.default_rng(0), []
    for number in range(examples):
        passages = []
        for name in ("Anna", "Ben", "Clara", "David"):
            words: list[str] = []
            while len(" ".join(words)) < characters // 4:
                words.append(str(draw.choice(WORDS)))
            passages.append(
                {"title": name, "text": f"{name} {number} lives in Oslo. {' '.join(words)}."}
            )
        lines.append({
            "id": f"q{number}", "question": f"Where does Anna {number} live?", "answers": ["Oslo"],
            "ctxs": [{**passage, "hasanswer": i == 0} for i, passage in enumerate(passages)],
        })  # fmt: skip
    path.write_text("\n".join(json.dumps(line) for line in lines))


def write_checkpoint(name: str, path: Path, device: str) -> None:
    """Write the checkpoint of a shape in bench/shapes.py; its family is the name's first part."""
    shape = SHAPES[name]
    sizes = tiny.Shape(
        layers=shape["num_hidden_layers"],
        width=shape["hidden_size"],
        heads=shape["num_attention_heads"],
        kv_heads=shape["num_key_value_heads"],
        ffn=shape["intermediate_size"],
        vocab=shape["vocab_size"],
        context=8192,
        spread=0.02,
        dtype="bfloat16",
        device=device,
    )
    tiny.write(name.partition("-")[0], path, sizes, shards=5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--models", nargs="+", default=["LLaDA-8B", "Llama-8B"])
    parser.add_argument("--examples", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=1800, help="of a prompt, about")
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    write_questions(args.out / "questions.jsonl", args.examples, args.tokens - 150)
    for name in args.models:
        start = time.perf_counter()
        write_checkpoint(name, args.out / name, args.device)
        print(f"{name}: {time.perf_counter() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
