"""Recompute some shards of a finished run, and compare them with the stored shards.

The comparison tests the statements of a run about its models, data and versions. On the same kind of machine,
a recomputed shard is identical byte for byte. On another machine, the last digits of floating-point sums may
differ. A token may then differ too, if its logit is nearly equal to the logit of another token.
"""

import json
import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..engine import Output, Shard
from ..errors import RunError, UsageError
from .findings import Findings
from .kept_models import KeptModels
from .provenance import folder_of
from .request import request_of
from .setting import PAGE, SERVED
from .stored import understood
from .worker import ShardWorker

_ELSEWHERE = ("device", "name")  # of a model: where it ran, and what its place is called there


@dataclass(frozen=True)
class ShardCheck:
    """The comparison of a recomputed and a stored shard; `largest` is NaN if they cannot be compared."""

    shard: str
    work: str  # trace, ask or control; and the model
    largest: float  # difference of any two numbers
    differs: str = ""

    @property
    def exact(self) -> bool:
        return not self.differs and self.largest == 0


def verify(
    directory: Path | str,
    *,
    sample: int = 3,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> Iterator[ShardCheck]:
    """Recompute `sample` shards of a finished run, and yield the comparison of each with the stored shard.

    Shards are drawn at random with `seed`, from each kind of work and model in turn. `progress` is called
    with the id of each shard before it is recomputed.
    """
    if sample < 1:
        raise UsageError(f"sample = {sample}", "Verify at least one shard.")
    findings = Findings(Path(directory))
    description = findings.run.read_request() or {}
    request = request_of(description["request"], str(directory))
    folder = folder_of(description, request, Path(directory))
    models = KeptModels(folder)
    parts = (findings, *findings.extra_runs)
    workers: dict[int, ShardWorker] = {}
    shards = [shard for part in parts for shard in part.plan.shards]
    if not all("stop" in shard.spec for shard in shards):  # see `findings._as_run`
        raise RunError(
            f"{directory} contains other shards than its run.json requests",
            "Verify it with the version that ran it; or run.json was changed: copy it again.",
        )
    for shard in _chosen(shards, sample, seed):
        if progress:
            progress(shard.id)
        number = int(shard.spec.get("run", 0))
        if number not in workers:
            workers[number] = ShardWorker(parts[number].request, models, folder=folder)
        recomputed = workers[number](shard.spec, lambda completed, total: None)
        with understood(Path(directory)):
            verified = _compare_shard(shard, findings.run.read(shard.id), recomputed)
        yield verified


def _kind(shard: Shard) -> str:
    return "control" if shard.spec.get("control") is not None else str(shard.spec["kind"])


def _chosen(shards: list[Shard], sample: int, seed: int) -> list[Shard]:
    """Draw `sample` shards at random, from each kind of work and model in turn.

    Shards are returned in the plan's order, so that each model is loaded only once.
    """
    by_kind: dict[tuple[str, str], list[Shard]] = defaultdict(list)
    for shard in random.Random(seed).sample(shards, len(shards)):
        by_kind[_kind(shard), shard.spec["model"]].append(shard)
    chosen: list[Shard] = []
    while len(chosen) < min(sample, len(shards)):
        for several in by_kind.values():
            if several and len(chosen) < sample:
                chosen.append(several.pop())
    return sorted(chosen, key=shards.index)


def _compare_shard(shard: Shard, stored: Output, recomputed: Output) -> ShardCheck:
    work = f"{_kind(shard)}, {shard.spec['model']}"
    before, after = (_stored_metadata(output.meta) for output in (stored, recomputed))
    if before["model"] != after["model"]:
        changed = [
            key for key in before["model"] if before["model"][key] != after["model"].get(key)
        ]
        key = "fingerprint" if "fingerprint" in changed else changed[0]
        differs = f"another model: {key} was {before['model'][key]}, is {after['model'].get(key)}"
        return ShardCheck(shard.id, work, float("nan"), differs)
    stored_arrays, again_arrays = _measured(stored), _measured(recomputed)
    if stored_arrays.keys() != again_arrays.keys():
        return ShardCheck(shard.id, work, float("nan"), "other arrays: another version?")
    largest, differs = 0.0, ""
    for name, array in stored_arrays.items():
        other = np.asarray(again_arrays[name])
        if array.shape != other.shape or (array.dtype.kind in "SU") != (other.dtype.kind in "SUO"):
            return ShardCheck(shard.id, work, float("nan"), f"{name} has another shape")
        if array.dtype.kind == "f":
            matching = np.isnan(array) == np.isnan(other)
            gap = np.abs(np.nan_to_num(array) - np.nan_to_num(other))
            largest = max(largest, float(gap.max(initial=0)))
            differs = differs or ("" if matching.all() else f"{name}: not a number elsewhere")
        elif not np.array_equal(array, other):
            differs = differs or f"{name} differs"
    texts = [_texts(meta) for meta in (before, after)]
    if texts[0] != texts[1]:
        pairs = [(a, b) for a, b in zip(*texts, strict=False) if a != b]
        differs = "another number of answers"
        if pairs:
            differs = f"{pairs[0][1]!r:.60} instead of {pairs[0][0]!r:.60}"
    return ShardCheck(shard.id, work, largest, differs)


def _measured(output: Output) -> dict[str, np.ndarray]:
    """Return the arrays of a shard by name, without scenes, whose integers may change with a last digit."""
    return {
        f"{name}/{variable}": array.values
        for name, data in output.data.items()
        if name.rpartition("/")[2] not in (PAGE, SERVED)
        for variable, array in data.variables.items()
    }


def _stored_metadata(meta: dict[str, Any]) -> dict[str, Any]:
    """Return metadata as JSON stores them, without the fields that depend on the machine."""
    metadata: dict[str, Any] = json.loads(json.dumps(meta))
    metadata["model"] = {k: v for k, v in metadata["model"].items() if k not in _ELSEWHERE}
    return metadata


def _texts(metadata: dict[str, Any]) -> list[str]:
    lines = metadata.get("rows") or metadata.get("examples") or []
    return [str(line.get("prediction", line.get("text", ""))) for line in lines]
