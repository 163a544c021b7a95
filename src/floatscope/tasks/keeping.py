"""Store answers batch by batch in a run directory, so that an interruption loses at most one batch.

`engine` provides the directory, its lock, its shards and their checksums. The driver of the engine is not
used, because the model is already loaded and determines which questions form a batch. Only decodings are
stored; scores are computed from the stored decodings.
"""

import hashlib
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from .. import atomic
from ..decode import AnySampler
from ..engine import Output, Plan, Run
from ..engine.plan import as_json, differences, fingerprint, listed
from ..engine.shards import Damaged, encode
from ..errors import RunError, UsageError
from ..models import Model
from ..sequences.decoding import Change, Decoding
from ..sequences.prompt import Encoded

_ASKER = "floatscope evaluate"  # in the place of the worker of a run of the engine
_VERSIONS = ("floatscope", "torch", "transformers")


@dataclass(frozen=True)
class AnswerStore:
    """A locked directory of answers; `part` names the setting whose batches are read and written."""

    run: Run
    question: str
    replace: bool = False  # replace answers to another question; otherwise they are an error
    part: str = "answers"
    counts: dict[str, int] = field(default_factory=dict)  # answers stored, by batch
    redone: dict[str, str] = field(default_factory=dict)  # batch → why its answers were rejected

    def for_part(self, part: str) -> "AnswerStore":
        """Return a store of the answers to another setting, in the same directory."""
        return replace(self, part=part)

    @property
    def answers(self) -> int:
        """Number of stored answers."""
        return sum(self.counts.values())

    def batch(
        self,
        number: int,
        request: dict[str, Any],
        prompts: Sequence[Encoded],
        decode: Callable[[], list[Decoding]],
    ) -> list[Decoding]:
        """Return a batch's stored decodings; if no intact decodings are stored, decode and store the batch.

        If the stored decodings answer another request, RunError is raised; if `replace` is set, the stored
        decodings are replaced instead.
        """
        shard = f"{self.part}-{number:05d}"
        tokens = [[prompt.ids, prompt.regions, prompt.gold] for prompt in prompts]
        request = as_json({**request, "prompts": fingerprint(tokens)}, "what is asked")
        if self.run.shards.path(shard).exists():
            try:
                return self._stored(shard, request, prompts)
            except Damaged as damage:
                self.redone[shard] = str(damage)
                self.counts.pop(shard, None)
        decodings = decode()
        key = fingerprint([self.question, shard, request])
        try:
            self.run.shards.write(shard, encode(shard, key, _output(request, decodings)))
        except OSError as error:
            raise atomic.unwritable(self.run.shards.path(shard), error) from error
        self.counts[shard] = len(decodings)
        return decodings

    def _stored(
        self, shard: str, request: dict[str, Any], prompts: Sequence[Encoded]
    ) -> list[Decoding]:
        self.run.shards.verify(shard)
        output = self.run.read(shard)
        differing = list(differences(output.meta["asked"], request, "asked"))
        if differing and self.replace:
            raise Damaged(listed(differing))
        if differing:
            raise RunError(
                f"{self.run.directory} contains answers to another question: {listed(differing)}",
                "Repeat the earlier request, choose another place, or replace them (--overwrite; "
                "from Python, remove the directory).",
            )
        return [_decoding(output, i, prompt) for i, prompt in enumerate(prompts)]

    def count(self) -> None:
        """Verify the stored batches, and enter the number of answers of each intact batch in `counts`."""
        for shard in self.run.shards.ids():
            try:
                self.run.shards.verify(shard)
                self.counts[shard] = len(self.run.read(shard, ()).meta["answers"])
            except (Damaged, RunError, OSError, KeyError):
                continue  # asked again, and then listed in `redone`

    def remove(self) -> None:
        """Remove the directory with all stored answers."""
        self.counts.clear()
        shutil.rmtree(self.run.directory, ignore_errors=True)


@contextmanager
def open_answers(
    directory: Path | str,
    request: dict[str, Any] | None = None,
    *,
    resume: bool = True,
    overwrite: bool = False,
) -> Iterator[AnswerStore]:
    """Lock a directory for the answers to a request, and yield its store.

    If the directory contains answers to another request, an error is raised, or the directory is moved aside
    if `overwrite` is set. Stored answers to the same request are used if `resume` is set.
    """
    run, plan = Run(directory), Plan(request or {}, _ASKER, ())
    start_over = overwrite and not (resume and _asks(run, plan))
    about = {name: version(name) for name in _VERSIONS}
    with run.claim(plan, resume=resume, overwrite=start_over, about=about):
        answers = AnswerStore(run, plan.question, replace=overwrite)
        answers.count()
        yield answers


def _asks(run: Run, plan: Plan) -> bool:
    try:
        stored = run.read_request()
    except RunError:
        return False
    return stored is None or stored.get("fingerprint") == plan.fingerprint


def asked_of(
    model: Model, sampler: AnySampler, condition: str, intervention: str, batch_size: int
) -> dict[str, Any]:
    """Return all settings that an answer depends on, except the tokens of the prompts."""
    if model.edits:
        raise UsageError(
            "an intervention is active, which stored answers would not record",
            "Pass it as intervention=.",
        )
    facts = {
        **{
            name: model.facts[name]
            for name in ("fingerprint", "family", "direction", "dtype", "device")
        },
        "settings": model.settings_fingerprint,
        **{name: getattr(model, name) for name in ("block", "shift", "mask_id", "end_ids")},
    }
    return {
        "model": facts,
        "sampler": sampler.describe(),
        "files": _files(sampler),
        "condition": condition,
        "intervention": intervention,
        "batch_size": batch_size,
    }


def _files(sampler: AnySampler) -> dict[str, str]:
    """Return the SHA-256 checksum of each file that a sampler reads, by the sampler's field."""
    settings = {field.name: getattr(sampler, field.name) for field in fields(sampler)}
    return {
        name: hashlib.sha256(Path(value).read_bytes()).hexdigest()
        for name, value in settings.items()
        if isinstance(value, str | Path) and Path(value).is_file()
    }


def _output(request: dict[str, Any], decodings: list[Decoding]) -> Output:
    """Pack the decodings of a batch into one output, without the prompt's columns, which are constant."""
    data, answers = {}, []
    for i, decoding in enumerate(decodings):
        start, cells = len(decoding.prompt.ids), ("step", "position")
        data[str(i)] = xr.Dataset(
            {
                "canvas": (("state", "position"), decoding.canvas[:, start:]),
                "change": (cells, decoding.change[:, start:]),
                "confidence": (cells, decoding.confidence[:, start:]),
                "block": (("step", "end"), decoding.block),
            }
        )
        answers.append({"text": decoding.text, "ended": decoding.ended, "info": decoding.info})
    return Output(data, {"asked": request, "answers": answers})


def _decoding(output: Output, i: int, prompt: Encoded) -> Decoding:
    answer, data = output.meta["answers"][i], output.data[str(i)]

    def with_prompt(name: str, before: Any) -> np.ndarray:
        part = data[name].values
        front = np.full((len(part), len(prompt.ids)), before, dtype=part.dtype)
        return np.concatenate([front, part], axis=1)

    return Decoding(
        prompt=prompt,
        canvas=with_prompt("canvas", prompt.ids),
        change=with_prompt("change", Change.NONE),
        confidence=with_prompt("confidence", np.nan),
        block=data["block"].values,
        ended=answer["ended"],
        text=answer["text"],
        info=answer["info"],
    )
