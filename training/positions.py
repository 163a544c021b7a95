"""Exact match at every gold position, with enough questions for a narrow interval.

    python -m training.positions --out src/floatscope/models/embedded/positions.json

Fresh questions for every position, the same for both models, on seeds no other evaluation uses.
Needs a GPU to be quick; runs anywhere.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from training.common import ROOT, load_world
from training.evaluate import exact_match
from training.export import load_exported
from training.rows import Encoder
from training.sdpa import any_shape

MODELS = ROOT / "src" / "floatscope" / "models" / "embedded"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--n", type=int, default=2000, help="questions a position")
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    package, encode = load_world(), Encoder()
    world, found = package.World(), {}
    for name in ("mdm", "arm"):
        model = load_exported(MODELS / name).to(device)
        model.dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        rows: list[dict[str, Any]] = []
        for gold in range(9):
            level = replace(package.LEVELS["nine"], gold=gold)
            examples = world.examples(level, args.n, seed=1000 + gold)
            with any_shape():
                one = exact_match(model, examples, encode)
            rows.append({"gold": gold, **{k: one[k] for k in ("n", "exact_match", "low", "high")}})
            print(name, rows[-1], flush=True)
        found[name] = rows
    args.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
