"""Trains the pair's tokenizer: byte-level BPE, 8192 tokens, on natural text and the world.

    python -m training.tokenizer --corpus CORPUS --out training/tokenizer.json

The result is shipped, so this runs once. Bytes are the alphabet and nothing is normalised: every
text comes back exactly. Held-out names of the world are not in the text it is trained on.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from training.common import BOS, CONTEXT, SPECIALS, TOKENIZER, VOCAB, load_world
from training.corpus import documents


def world_text(n: int, seed: int = 0) -> Iterator[str]:
    """Training-split passages and questions of the world."""
    package = load_world()
    world, rng = package.World(), random.Random(seed)
    for _ in range(n):
        context = world.context(package.Level(passages=8, questions=8), rng, split="train")
        for passage in context.passages:
            yield package.LEAD + passage.text
        for question in context.questions:
            yield "".join(text for _, text in package.question_parts(question.text))
        yield world.biography(rng)


def train(corpus: Path, *, share: float = 0.25, contexts: int = 4000) -> Tokenizer:
    natural, _ = documents(corpus)
    rng = random.Random(0)
    pieces = [doc[i : i + 20_000] for doc in natural for i in range(0, len(doc), 20_000)]
    pieces = [p for p in pieces if rng.random() < share]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=list(SPECIALS),
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )

    def text() -> Iterator[str]:
        yield from pieces
        yield from world_text(contexts)

    tokenizer.train_from_iterator(text(), trainer)
    if tokenizer.get_vocab_size() != VOCAB:
        raise RuntimeError(
            f"{tokenizer.get_vocab_size()} tokens learned, {VOCAB} wanted: give more text"
        )
    return with_beginning(tokenizer)


def with_beginning(tokenizer: Tokenizer) -> Tokenizer:
    """Whoever encodes a text gets the fixed token at position 0 without having to think of it."""
    special = [(SPECIALS[BOS], BOS)]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{SPECIALS[BOS]} $A", special_tokens=special
    )
    return tokenizer


def hf_config() -> dict[str, object]:
    """tokenizer_config.json for PreTrainedTokenizerFast."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<bos>",
        "eos_token": "<eos>",
        "pad_token": "<pad>",
        "mask_token": "<mask>",
        "model_max_length": CONTEXT,
        "padding_side": "left",
        "clean_up_tokenization_spaces": False,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=TOKENIZER)
    args = parser.parse_args()
    tokenizer = train(args.corpus)
    tokenizer.save(str(args.out), pretty=False)
    print(json.dumps({"out": str(args.out), "vocab": tokenizer.get_vocab_size()}))


if __name__ == "__main__":
    main()
