"""The order of training data, and the processes that write it ahead of the trainer.

Step s of a run is a pure function of (seed, s): its bucket (rows × length, always the same number
of tokens), its rows and their order. So both objectives see the same data in the same order, and
a resumed run sees what an unbroken one would. Workers write shards of consecutive steps to a
folder; the trainer reads them in order and waits if one is not there yet.

    python -m training.data --corpus CORPUS --folder DATA --worker 0 --workers 8 --steps 30000
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from training.common import ROOT, UsageError
from training.corpus import documents, noise_passages
from training.rows import EASY, Dials, Encoder, RowMaker

SHARD = 32  # steps in a shard


@dataclass(frozen=True)
class Plan:
    """Everything that decides the data; written beside the shards and checked when reused."""

    seed: int = 0
    tokens: int = 49_152  # in every step
    # (length, share of steps) once the easy start is over
    buckets: tuple[tuple[int, float], ...] = (
        (64, 0.06),
        (256, 0.28),
        (384, 0.36),
        (512, 0.18),
        (1024, 0.12),
    )
    easy_buckets: tuple[tuple[int, float], ...] = ((64, 0.08), (256, 0.92))
    easy_steps: int = 4000  # short contexts first: the lookup is found sooner there
    natural: float = 0.30  # shares of rows by kind; the rest are contexts
    closed_book: float = 0.06
    biographies: float = 0.04
    closed_book_64: float = 0.70  # in the shortest bucket, where no context fits

    def length(self, step: int) -> int:
        """The row length of a step."""
        buckets = self.easy_buckets if step < self.easy_steps else self.buckets
        at = random.Random(f"bucket {self.seed} {step}").random()
        for length, share in buckets:
            at -= share
            if at < 0:
                return length
        return buckets[-1][0]

    def batch(self, step: int, make: RowMaker) -> np.ndarray:
        """Packed cells of one step, (rows, length)."""
        length, rng = self.length(step), random.Random(f"rows {self.seed} {step}")
        dials = EASY if step < self.easy_steps else Dials()
        rows = []
        for _ in range(self.tokens // length):
            kind = rng.random()
            if length <= 64:
                closed = kind < self.closed_book_64
                rows.append(make.closed_book(rng, length) if closed else make.text(rng, length))
            elif kind < self.natural:
                rows.append(make.text(rng, length))
            elif kind < self.natural + self.closed_book:
                rows.append(make.closed_book(rng, length))
            elif kind < self.natural + self.closed_book + self.biographies:
                rows.append(make.biographies(rng, length))
            else:
                rows.append(make.context(rng, length, dials))
        return np.stack(rows)


SMOKE = Plan(
    tokens=1024,
    buckets=((64, 0.2), (128, 0.8)),
    easy_buckets=((64, 0.2), (128, 0.8)),
    easy_steps=10_000,
)


def prepare(corpus: Path, folder: Path, plan: Plan) -> None:
    """Tokenise the natural text once, into `folder`; refuse a folder made by another plan."""
    record = {"plan": json.loads(json.dumps(asdict(plan)))}
    known = folder / "plan.json"
    if known.exists():
        if json.loads(known.read_text()) != record:
            raise UsageError(f"{folder} holds data of another plan: give an empty --data folder")
        return
    folder.mkdir(parents=True, exist_ok=True)
    train, held = documents(corpus)
    encoder = Encoder()
    for name, docs in (("natural", train), ("held", held)):
        pieces = [doc[i : i + 50_000] for doc in docs for i in range(0, len(doc), 50_000)]
        # A document ends in an empty line; <eos> is kept for the end of an answer.
        encoded = encoder.tokenizer.encode_batch(
            [p + "\n\n" for p in pieces], add_special_tokens=False
        )
        np.save(
            folder / f"{name}.npy", np.concatenate([np.array(e.ids, np.uint16) for e in encoded])
        )
    for name, docs in (("noise", train), ("held_noise", held)):
        (folder / f"{name}.json").write_text(json.dumps(noise_passages(docs)))
    known.write_text(json.dumps(record))


def row_maker(folder: Path) -> RowMaker:
    natural = np.load(folder / "natural.npy", mmap_mode="r")
    return RowMaker(natural, json.loads((folder / "noise.json").read_text()))


def shard_path(folder: Path, index: int) -> Path:
    return folder / f"shard-{index:05d}.npy"


def write_shard(folder: Path, index: int, plan: Plan, make: RowMaker) -> None:
    """Steps index·SHARD …, each flattened to plan.tokens cells; complete or absent."""
    cells = np.stack([plan.batch(index * SHARD + i, make).reshape(-1) for i in range(SHARD)])
    part = folder / f"part-{os.getpid()}-{index}.npy"
    np.save(part, cells)
    part.rename(shard_path(folder, index))


class Feeder:
    """Worker processes that write shards, and the reader that follows them."""

    def __init__(
        self,
        corpus: Path,
        folder: Path,
        plan: Plan,
        *,
        steps: int,
        workers: int,
        start: int = 0,
        smoke: bool = False,
    ) -> None:
        self.folder, self.plan = folder, plan
        env = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
        prepare(corpus, folder, plan)
        command = [
            sys.executable,
            "-m",
            "training.data",
            "--corpus",
            str(corpus),
            "--folder",
            str(folder),
            "--steps",
            str(steps),
            "--start",
            str(start),
            "--workers",
            str(workers),
            "--seed",
            str(plan.seed),
        ] + (["--smoke"] if smoke else [])
        self.workers = [
            subprocess.Popen([*command, "--worker", str(i)], cwd=ROOT, env=env)
            for i in range(workers)
        ]

    def shard(self, index: int) -> np.ndarray:
        path = shard_path(self.folder, index)
        while not path.exists():
            if any(w.poll() not in (None, 0) for w in self.workers):
                raise RuntimeError("a data worker died; its message is above")
            time.sleep(0.02)
        return np.load(path)

    def close(self) -> None:
        for worker in self.workers:
            worker.terminate()
            worker.wait()

    def __enter__(self) -> Feeder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--worker", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--smoke", action="store_true")
    args = parser.parse_args()
    if hasattr(os, "nice"):
        os.nice(5)  # the trainer's own thread goes first
    plan = replace(SMOKE if args.smoke else Plan(), seed=args.seed)
    prepare(args.corpus, args.folder, plan)
    make = row_maker(args.folder)
    for index in _mine(args):
        if not shard_path(args.folder, index).exists():
            write_shard(args.folder, index, plan, make)


def _mine(args: argparse.Namespace) -> Iterator[int]:
    first = args.start // SHARD
    return iter(range(first + args.worker, (args.steps + SHARD - 1) // SHARD, args.workers))


if __name__ == "__main__":
    main()
