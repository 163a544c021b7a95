"""Do verdicts come out right where the truth is known, and at the demo's number of examples?

    python bench/verdicts.py [--draws 100] [--claim 9a …]

For each claim, evidence is planted in which it is true, and in which it is false; the studies judge it
as they judge a run. To add a claim: a function in `verdict_parts`, a line in PLANTED.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
from verdict_parts.attention import attention_claim
from verdict_parts.causal import ablation, lens, tracing
from verdict_parts.dormancy import draining, switching
from verdict_parts.knowledge import knowledge
from verdict_parts.movement import KINDS, movement
from verdict_parts.order import order_claim
from verdict_parts.robustness import robustness

from floatscope.studies.claim import VERDICTS, Claim
from floatscope.studies.demo import DEMO, MOVEMENT

# claim → how it is planted (true or false, generator, examples), and the demo's number of examples
Truth = bool | str
PLANTED: dict[str, tuple[Callable[[Any, np.random.Generator, int], Claim], int]] = {
    **{
        number: (attention_claim(number), DEMO["limit"])
        for number in ("1", "2", "4", "5", "6a", "6b")
    },
    "3": (movement, MOVEMENT["limit"]),
    "7": (knowledge, DEMO["gain_questions"]),
    "8": (robustness, DEMO["questions"]),
    # Long answers are decided in a run of their own, of as many examples as are traced.
    "9a": (order_claim("9a"), DEMO["limit"]),
    "9b": (order_claim("9b"), DEMO["limit"]),
    "9c": (order_claim("9c"), DEMO["questions"]),
    "10a": (switching, DEMO["limit"]),
    "10b": (draining, DEMO["limit"]),
    "11": (ablation, DEMO["questions"]),
    "12": (tracing, DEMO["questions"]),
    "13": (lens, DEMO["questions"]),  # 11 to 13 are no part of the demo: --limit 40
}
EQUAL = "equal"  # no effect: it must not hold
NO_EFFECT = ("8", "9a", "9b", "9c", "10b", "11", "13")  # claims of which that is planted too


def truths_of(number: str) -> list[Truth]:
    """What is planted for a claim."""
    if number == "3":
        return list(KINDS)
    return [True, False, *([EQUAL] if number in NO_EFFECT else [])]


def planted(number: str, true: Truth, rng: np.random.Generator, n: int | None = None) -> str:
    """The verdict on one draw."""
    plant, examples = PLANTED[number]
    return plant(true, rng, n or examples).verdict


def counted(number: str, true: Truth, draws: int, seed: int = 0) -> Counter[str]:
    """How often each verdict came out."""
    rng = np.random.default_rng([seed, *number.encode(), *str(true).encode()])
    return Counter(planted(number, true, rng) for _ in range(draws))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=100)
    parser.add_argument("--claim", action="append", choices=PLANTED)
    given = parser.parse_args()
    print("| claim | truth | n | " + " | ".join(VERDICTS) + " |")
    print("|---" * (3 + len(VERDICTS)) + "|")
    for number in given.claim or PLANTED:
        for true in truths_of(number):
            found = counted(number, true, given.draws)
            shares = " | ".join(f"{found[v] / given.draws:.0%}" for v in VERDICTS)
            print(f"| {number} | {true} | {PLANTED[number][1]} | {shares} |", flush=True)


if __name__ == "__main__":
    main()
