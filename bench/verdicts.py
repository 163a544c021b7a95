"""Do verdicts come out right where the truth is known, and at the demo's number of examples?

    python bench/verdicts.py [--draws 100] [--claim 9 …]

For each claim, evidence is planted in which it is true, and in which it is false; the studies judge it
as they judge a run. To add a claim: a function in `verdict_parts`, a line in PLANTED.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable

import numpy as np
from verdict_parts.attention import attention_claim
from verdict_parts.causal import ablation, lens, tracing
from verdict_parts.dormancy import dormancy
from verdict_parts.knowledge import knowledge
from verdict_parts.order import order
from verdict_parts.robustness import robustness

from floatscope.studies.claim import VERDICTS, Claim
from floatscope.studies.demo import DEMO

# claim → how it is planted (true or false, generator, examples), and the demo's number of examples
PLANTED: dict[int, tuple[Callable[[bool, np.random.Generator, int], Claim], int]] = {
    **{number: (attention_claim(number), DEMO["limit"]) for number in range(1, 7)},
    7: (knowledge, DEMO["gain_questions"]),
    8: (robustness, DEMO["questions"]),
    9: (order, DEMO["questions"]),
    10: (dormancy, DEMO["limit"]),
    11: (ablation, DEMO["questions"]),
    12: (tracing, DEMO["questions"]),
    13: (lens, DEMO["limit"]),
}


def planted(number: int, true: bool, rng: np.random.Generator, n: int | None = None) -> str:
    """The verdict on one draw."""
    plant, examples = PLANTED[number]
    return plant(true, rng, n or examples).verdict


def counted(number: int, true: bool, draws: int, seed: int = 0) -> Counter[str]:
    """How often each verdict came out."""
    rng = np.random.default_rng([seed, number, true])
    return Counter(planted(number, true, rng) for _ in range(draws))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=100)
    parser.add_argument("--claim", type=int, action="append", choices=sorted(PLANTED))
    given = parser.parse_args()
    print("| claim | truth | n | " + " | ".join(VERDICTS) + " |")
    print("|---" * (3 + len(VERDICTS)) + "|")
    for number in given.claim or sorted(PLANTED):
        for true in (True, False):
            found = counted(number, true, given.draws)
            shares = " | ".join(f"{found[v] / given.draws:.0%}" for v in VERDICTS)
            print(f"| {number} | {true} | {PLANTED[number][1]} | {shares} |", flush=True)


if __name__ == "__main__":
    main()
