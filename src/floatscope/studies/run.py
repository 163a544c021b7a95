"""A run from beginning to end: plan, execute, tables. The report is made by whoever asks for it."""

from importlib.metadata import version
from pathlib import Path
from typing import Any

from ..engine import Summary, execute
from .findings import Findings
from .planning import plan
from .request import Request
from .results import write_results

_VERSIONS = ("floatscope", "torch", "transformers", "numpy", "xarray")


def run(request: Request, out: Path | str, **options: Any) -> tuple[Summary, Findings]:
    """Do what is not done yet, then write results/ and summary.json; `options` are `execute`'s."""
    about = {name: version(name) for name in _VERSIONS}
    summary = execute(plan(request), out, about=about, **options)
    findings = Findings(out)
    write_results(findings)
    return summary, findings


DEMO: dict[str, Any] = {
    "models": ("pair/mdm", "pair/arm"),
    "data": "world:mixed",  # off floor and ceiling in both models, so that claims can be tested
    "traced_as": "passages=9",  # four are asked with: two are needed, and two are rivals
    "limit": 24,
    "questions": 40,
    "gain_questions": 128,  # claim 7 tells half the gain from 1.5 times as much in 9 of 10 runs
    "side_questions": 8,
    "columns": (5,),  # each number is asked four ways of both models
    "length": 10,
    "steps": 5,
    "frequencies": "pair",
    "view": 6,
    "shard": 4,
}
