"""How often is claim 7's verdict right? Answers are drawn so that it is true, or false, and judged.

    python bench/verdicts_knowledge.py --questions 200 --draws 400

A quarter of the questions is known to both models, and answered right both ways. Another one is
answered right with passages only, by each model with a chance of its own that gives the gain asked for;
with chance `agree` both models meet the same difficulty, so that their answers go together. Nothing is
decoded here: the verdict is reached as a run's is.
"""

import argparse
from collections import Counter
from dataclasses import dataclass

import numpy as np

from floatscope.studies.gains import Gains
from floatscope.studies.library.knowledge import Knowledge
from floatscope.studies.verdict import outcome

KNOWN = 0.25  # as in world:mixed
AGREE = 0.3


@dataclass(frozen=True)
class Truth:
    """Gains of the two models, and the verdict that is right."""

    mdm: float
    arm: float
    right: str


TRUTHS = {
    "three times": Truth(0.60, 0.20, "holds"),
    "equal": Truth(0.43, 0.43, "refuted"),
    "half": Truth(0.22, 0.44, "refuted"),
    "1.5 times": Truth(0.45, 0.30, "undecided"),  # θ = 0: neither may be said
}


def drawn(truth: Truth, n: int, rng: np.random.Generator) -> Gains:
    """Answers of both models to n questions."""
    known = rng.permutation(n) < round(KNOWN * n)  # as many as the mixture has
    shared, same = rng.random(n), rng.random(n) < AGREE
    scores = []
    for gain in (truth.mdm, truth.arm):
        luck = np.where(same, shared, rng.random(n))
        scores += [known, known | (luck < gain / (1 - KNOWN))]
    return Gains(*(right.astype(float) for right in scores))


def verdicts(truth: Truth, n: int, draws: int, seed: int = 0) -> Counter[str]:
    """How often each verdict was reached."""
    rule, rng = Knowledge.rules[0], np.random.default_rng(seed)
    every = (drawn(truth, n, rng) for _ in range(draws))
    return Counter(outcome(rule, one.theta(), bar=one.bar(), plan=False)[0] for one in every)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--questions", type=int, nargs="+", default=[40, 100, 200, 400])
    parser.add_argument("--draws", type=int, default=400)
    given = parser.parse_args()
    print(
        "| truth: gain MDM, ARM | right | questions | holds | refuted | undecided | not testable |"
    )
    print("|---|---|---|---|---|---|---|")
    for name, truth in TRUTHS.items():
        for n in given.questions:
            counts = verdicts(truth, n, given.draws)
            shares = (
                f"{counts[v] / given.draws:.1%}"
                for v in ("holds", "refuted", "undecided", "not testable")
            )
            line = f"{name}: {truth.mdm:.0%}, {truth.arm:.0%}"
            print(f"| {line} | {truth.right} | {n} | {' | '.join(shares)} |")


if __name__ == "__main__":
    main()
