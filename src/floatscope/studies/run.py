"""A run from beginning to end: plan, execute, tables. The report is made by whoever asks for it."""

from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ..engine import Run, Summary, execute
from ..engine.directory import Unreadable
from .early import require_possible
from .findings import Findings
from .planning import plan
from .provenance import read_by, require_same_data
from .request import Request
from .results import write_results

_VERSIONS = ("floatscope", "torch", "transformers", "numpy", "xarray")


def run(request: Request, out: Path | str, **options: Any) -> tuple[Summary, Findings]:
    """Do what is not done yet, then write results/ and summary.json; `options` are `execute`'s.

    What cannot work is an error before anything is written or any worker starts (`early`).
    """
    if options.get("overwrite") or not (Path(out) / "manifest.json").exists():
        require_possible(request, elsewhere=options.get("engine", "local") != "local")
    if options.get("engine", "local") == "local" and options.get("workers", 1) > 1:
        options.setdefault("devices", _gpus(request))
    about = {**{name: version(name) for name in _VERSIONS}, **read_by(request)}
    with suppress(Unreadable):  # the engine writes a damaged one anew, where the shards allow it
        there = None if options.get("overwrite") else Run(out).asked()
        require_same_data((there or {}).get("about", {}), about, Path(out))
    summary = execute(plan(request), out, about=about, **options)
    findings = Findings(out)
    write_results(findings)
    return summary, findings


def _gpus(request: Request) -> int:
    """How many GPUs several local workers share out: none on CPUs, or where one is named by number."""
    devices = {part.device for part in (request, *request.also)}
    if devices == {"cpu"} or any(":" in (device or "") for device in devices):
        return 0
    import torch

    return torch.cuda.device_count()
