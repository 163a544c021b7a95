"""What do untrained models earn? Pairs with permuted weights go through the attention studies.

    python bench/untrained.py [--pairs 20] [--at-once 2] [--json bench/untrained.json]

Each pair is the embedded one with every matrix's entries permuted by seeds of its own; its control is
permuted by another seed, as in any run; prompts, sampler and number of examples are the demo's. Such
models know nothing: a claim about attention that "holds" for them is an error. About 2.5 minutes a pair
on one core.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from floatscope.engine import execute
from floatscope.instrument import Model
from floatscope.studies import Findings, Request, request_of
from floatscope.studies import worker as studies_worker
from floatscope.studies.claim import VERDICTS
from floatscope.studies.demo import DEMO
from floatscope.studies.kept_models import KeptModels
from floatscope.studies.planning import plan

STUDIES = ("floating", "geometry", "structure", "dormancy")
APART = 1000  # between the seed of a pair and that of its control


class Untrained(KeptModels):
    """The models of a study, which are untrained themselves."""

    seed = 0

    def get(self, name: str, device: str | None, dtype: str, control: int | None) -> Model:
        return super().get(name, device, dtype, self.seed + APART if control is None else control)


def make(request: dict[str, Any], context: dict[str, Any]) -> studies_worker.ShardWorker:
    models, asked = Untrained(), Request(**request)
    models.seed = asked.seed
    return studies_worker.ShardWorker(asked, models)


def verdicts(pair: int, device: str | None = None) -> dict[str, str]:
    """The verdict on each claim, by its number."""
    fields = {**DEMO, "studies": STUDIES, "seed": pair, "view": 0, "device": device}
    request = request_of(fields)
    with tempfile.TemporaryDirectory() as folder:
        execute(replace(plan(request), worker="untrained:make"), folder)
        found = Findings(folder)
        return {str(c.number): c.verdict for claims in found.claims.values() for c in claims}


def table(pairs: list[dict[str, str]]) -> str:
    lines = ["| claim | " + " | ".join(VERDICTS) + " |", "|---" * (1 + len(VERDICTS)) + "|"]
    for number in pairs[0]:
        count = Counter(pair[number] for pair in pairs)
        lines.append(f"| {number} | " + " | ".join(str(count[v]) for v in VERDICTS) + " |")
    wrong = sum("holds" in pair.values() for pair in pairs)
    return "\n".join([*lines, "", f"{wrong} of {len(pairs)} pairs have a claim that holds."])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--first", type=int, default=0, help="number of the first pair")
    parser.add_argument("--at-once", type=int, default=2, help="processes")
    parser.add_argument("--device", help="of the models; a GPU if there is one, by default")
    parser.add_argument("--json", type=Path, help="where to write the verdicts of every pair")
    given = parser.parse_args()
    with ProcessPoolExecutor(given.at_once, mp_context=get_context("spawn")) as several:
        seeds = range(given.first, given.first + given.pairs)
        every = several.map(verdicts, seeds, [given.device] * given.pairs)
        pairs = []
        for one in every:
            pairs.append(one)
            print(len(pairs), one, flush=True)
    if given.json:
        given.json.write_text(json.dumps(pairs, indent=1) + "\n")
    print(table(pairs))


if __name__ == "__main__":
    main()
