"""What do untrained models earn? Random pairs as sharp as the trained one go through the attention studies.

    python bench/untrained.py [--pairs 20] [--workers 2] [--json bench/untrained.json]

The demo's prompts and long texts are read by the embedded pair and by 25 controls of each model: permuted
weights, each head's queries scaled to the trained head's entropy. Then each of 20 controls takes the trained
model's place, and five others are its controls. Such models know nothing: a claim about attention that
"holds" for them is an error. Claims for which controls read nothing (7 to 10a) are left out.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import Counter
from pathlib import Path

from floatscope.measures.result import Result
from floatscope.studies import STUDIES, request_of
from floatscope.studies.claim import VERDICTS
from floatscope.studies.demo import DEMO, MOVEMENT
from floatscope.studies.evidence import Evidence
from floatscope.studies.findings import Findings
from floatscope.studies.run import run
from floatscope.studies.setting import QUESTIONS

CONTROLS = 5
NUMBERS = ("1", "2", "3", "4", "5", "6a", "6b", "10b")


class Disguised(Evidence):
    """A run in which untrained networks take the trained models' place."""

    def __init__(self, found: Findings, network: int, others: tuple[int, ...]) -> None:
        self.found, self.network, self.others = found, network, others
        self.request = found.request.model_copy(update={"controls": len(others), "seed": 0})
        self.models, self.asked_for = found.models, found.asked_for
        self.plan, self.run, self.measures = found.plan, found.run, found.measures

    def result(
        self, key: str, model: str | None, domain: str = QUESTIONS, control: int | None = None
    ) -> Result | None:
        seed = self.network if control is None else self.others[control]
        return self.found.result(key, model, domain, control=seed)

    def control(self, key: str, model: str | None) -> Result | None:
        return self.found._result(key, model, QUESTIONS, self.others)

    def accuracy_difference(
        self, *args: object, **kwargs: object
    ) -> None:  # answers: untrained networks give none
        return None


def verdicts(found: Findings, network: int, of: int) -> dict[str, str]:
    """The verdicts that one untrained pair earns, by the claim's number."""
    others = tuple((network + 1 + i) % of for i in range(CONTROLS))
    earned: dict[str, str] = {}
    for part in (found, *found.extra_runs):
        evidence = Disguised(part, network, others)
        for name in part.request.studies:
            earned |= {c.number: c.verdict for c in STUDIES[name].claims(evidence)}
    return {number: earned[number] for number in NUMBERS}


def table(pairs: list[dict[str, str]]) -> str:
    lines = ["| claim | " + " | ".join(VERDICTS) + " |", "|---" * (1 + len(VERDICTS)) + "|"]
    for number in NUMBERS:
        count = Counter(pair[number] for pair in pairs)
        lines.append(f"| {number} | " + " | ".join(str(count[v]) for v in VERDICTS) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--limit", type=int, default=DEMO["limit"], help="prompts, and long texts")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", type=Path, help="where to write the verdicts of every pair")
    given = parser.parse_args()
    own = {"limit": given.limit, "controls": given.pairs + CONTROLS, "view": 0, "shard": 4}
    studies = ("floating", "geometry", "structure", "dormancy")
    request = request_of({**DEMO, **own, "studies": studies, "extra_runs": [{**MOVEMENT, **own}]})
    # Only what is traced counts here; questions that are asked take the least time there is.
    request = request.model_copy(update={"questions": 2, "side_questions": 2})
    with tempfile.TemporaryDirectory() as folder:
        found = run(request, folder, workers=given.workers)[1]
        pairs = [verdicts(found, network, own["controls"]) for network in range(given.pairs)]
    if given.json:
        given.json.write_text(json.dumps(pairs, indent=1) + "\n")
    print(table(pairs))


if __name__ == "__main__":
    main()
