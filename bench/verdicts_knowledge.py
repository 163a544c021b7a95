"""How often is claim 7's verdict right? Answers are drawn so that it is true, or false, and judged.

    python bench/verdicts_knowledge.py --questions 200 --draws 400

A quarter of the questions is known to both models, and answered right both ways. Another one is
answered right with passages only, by each model with a chance of its own that gives the gain asked for;
with chance `agree` both models meet the same difficulty, so that their answers go together. Nothing is
decoded here: the study judges these answers as it judges a run's.
"""

import argparse
from collections import Counter
from dataclasses import dataclass

import numpy as np

from floatscope.studies.evidence import Evidence
from floatscope.studies.gains import Columns
from floatscope.studies.library.knowledge import CLOSED, WITH, Knowledge

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


class Planted(Evidence):
    """Evidence whose answers are given: by setting and model, "mdm" or "arm"."""

    mdm, arm = "mdm", "arm"

    def __init__(self, tables: dict[tuple[str, str], Columns]) -> None:
        self.tables = tables

    def answers(self, setting, model):  # type: ignore[no-untyped-def]  # as Evidence has it
        return self.tables.get((setting, model))


def table(right: np.ndarray, **more: np.ndarray) -> Columns:
    """Columns of answers as a run has them."""
    ids = np.array([f"q{i}" for i in range(len(right))])
    scores = {key: right.astype(float) for key in ("contains", "exact_match", "f1")}
    return {"id": ids, "question": ids, **scores, **more}


def drawn(truth: Truth, n: int, rng: np.random.Generator) -> Planted:
    """Answers of both models to n questions."""
    known = rng.permutation(n) < round(KNOWN * n)  # as many as the mixture has
    shared, same = rng.random(n), rng.random(n) < AGREE
    tables = {}
    for model, gain in (("mdm", truth.mdm), ("arm", truth.arm)):
        luck = np.where(same, shared, rng.random(n))
        tables[CLOSED, model] = table(known)
        tables[WITH, model] = table(known | (luck < gain / (1 - KNOWN)))
    return Planted(tables)


def verdicts(truth: Truth, n: int, draws: int, seed: int = 0) -> Counter[str]:
    """How often each verdict was reached."""
    rng = np.random.default_rng(seed)
    return Counter(Knowledge().claims(drawn(truth, n, rng))[0].verdict for _ in range(draws))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--questions", type=int, nargs="+", default=[40, 100, 200, 400])
    parser.add_argument("--draws", type=int, default=400)
    given = parser.parse_args()
    print("| truth: gain MDM, ARM | right | questions | holds | refuted | undecided | not testable |")
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
