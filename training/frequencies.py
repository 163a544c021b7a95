"""Token frequencies for the embedded pair: natural text and the world's questions, in equal parts.

    python -m training.frequencies --corpus DIR

The same corpus and generator as in training; held-out documents and unseen people are left out. Writes
frequencies.npy beside the weights. It trains nothing.
"""

import argparse
import hashlib
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from floatscope.stats.frequencies import PAIR, count
from floatscope.tasks import prompt_of
from floatscope.tasks.world import LEVELS, World
from training.common import UsageError
from training.corpus import documents

_QUESTIONS = 4000
HERE = Path(__file__).parent


def world_texts(n: int = _QUESTIONS, seed: int = 4242) -> list[str]:
    """Questions with nine passages and their answers, about known people."""
    examples = World().examples(LEVELS["nine"], n, seed=seed, known=True)
    return [f"{prompt_of(e).text} {e.answers[0]}" for e in examples]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", required=True, help="folder with the books and the articles")
    parser.add_argument("--out", type=Path, default=PAIR)
    given = parser.parse_args()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_file(str(HERE / "tokenizer.json"))
    )
    size = len(tokenizer)
    train, _ = documents(given.corpus)
    if not train:
        raise UsageError(f"{given.corpus} holds no documents")
    natural = count(tokenizer, train, size, lambda n, t: print(f"\r{n} texts, {t} tokens", end=""))
    world = count(tokenizer, world_texts(), size)
    print()
    np.save(given.out, ((natural + world) / 2).astype(np.float32))
    digest = hashlib.sha256(given.out.read_bytes()).hexdigest()
    print(f"sha256 {digest}: DIGEST of floatscope/stats/frequencies.py, if it is shipped")
    print(f"wrote {given.out}: {size} tokens, {np.count_nonzero(natural + world)} of them seen")


if __name__ == "__main__":
    main()
