"""A run from beginning to end: plan, execute, tables. The report is made by whoever asks for it."""

from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ..engine import Progress, Summary, execute
from .findings import Findings
from .planning import plan
from .request import Request
from .tables import write_results


def run(
    request: Request,
    out: Path | str,
    *,
    engine: str = "local",
    workers: int = 1,
    address: str | None = None,
    gpus: float | None = 0,
    resume: bool = True,
    overwrite: bool = False,
    progress: Callable[[Progress], None] | None = None,
) -> tuple[Summary, Findings]:
    """Do what is not done yet, then write results/ and summary.json."""
    summary = execute(
        plan(request),
        out,
        engine=engine,
        workers=workers,
        address=address,
        gpus=gpus,
        resume=resume,
        overwrite=overwrite,
        about=_versions(),
        progress=progress,
    )
    found = Findings(out)
    write_results(found)
    return summary, found


def _versions() -> dict[str, Any]:
    names = ("floatscope", "torch", "transformers", "numpy", "xarray")
    return {name: version(name) for name in names}


DEMO: dict[str, Any] = {
    "models": ("pair/mdm", "pair/arm"),
    "data": "world:hops",  # two hops: neither model is at the ceiling, so that claims can be tested
    "limit": 16,
    "questions": 40,
    "asked_as": "passages=3",  # a third of the cost of nine
    "length": 10,
    "steps": 5,
    "frequencies": "pair",
    "view": 6,
    "shard": 4,
}
