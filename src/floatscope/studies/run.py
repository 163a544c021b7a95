"""Run a request: plan its shards, compute the shards, and write tables. The caller builds the report."""

import os
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ..engine import Summary, execute
from .early import require_possible
from .findings import Findings
from .planning import plan
from .provenance import FOLDER, file_digests
from .registration import NAME, registration_for
from .request import Request
from .results import write_results
from .stored import understood

_VERSIONS = ("floatscope", "torch", "transformers", "numpy", "xarray")


def run(
    request: Request,
    out: Path | str,
    *,
    folder: Path = Path(),
    registration: Path | None = None,
    **options: Any,
) -> tuple[Summary, Findings]:
    """Compute the missing shards of a run, write results/ and summary.json, and return summary and findings.

    Paths of the request are relative to `folder`, by default the working directory. If the models, sampler,
    data or prompts of the request cannot work, an error is raised before anything is written or any worker
    starts (`early`). The claims of the run and their rules are registered before its first shard is computed.
    `registration` is the file of an earlier registration. `options` are passed to `engine.execute`.
    """
    overwrite = bool(options.get("overwrite"))
    registered = registration_for(request, out, overwrite=overwrite, registration_path=registration)
    options["files"] = {} if registered is None else {NAME: registered}
    if overwrite or not (Path(out) / "manifest.json").exists():
        elsewhere = options.get("engine", "local") != "local"
        require_possible(request, elsewhere=elsewhere, folder=folder)
    if options.get("engine", "local") == "local" and options.get("workers", 1) > 1:
        options.setdefault("devices", _gpus(request))
    about = {**{name: version(name) for name in _VERSIONS}, FOLDER: os.path.abspath(folder)}
    work = replace(plan(request), context={FOLDER: "" if folder == Path() else about[FOLDER]})
    summary = execute(work, out, about=about, sources=file_digests(request, folder), **options)
    with understood(Path(out)):
        findings = Findings(out)
        write_results(findings)
    return summary, findings


def _gpus(request: Request) -> int:
    """Return how many GPUs the local workers share; 0 on CPUs, or if the request names a GPU by number."""
    devices = {part.device for part in (request, *request.extra_runs)}
    if devices == {"cpu"} or any(":" in (device or "") for device in devices):
        return 0
    import torch

    return torch.cuda.device_count()
