"""Run the jobs of a worker: decode a run, tokenise a prompt, recompute a step, rank heads, trace a control.

Each job is a function of three arguments: the model, the description of the job (checked by `messages`), and
`tell`. The function `tell` sends an event, and raises an exception if the job is cancelled. A job returns its
last event.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from ..decode import SAMPLERS, decode, default_sampler
from ..decode.loop import AnySampler
from ..decode.presets import default_name
from ..errors import ModelError, UsageError
from ..instrument import Model
from ..models import attention_hook
from ..registry import dashed
from ..sequences.prompt import Encoded
from ..trace import Trace
from . import closer
from .asked import KINDS, LENGTH, ParsedRun, sampler_of
from .control import controlled
from .prompts import prompt_of
from .rank import ranked
from .streaming import StreamingRecorder
from .touches import AppliedEdit

Job = Mapping[str, Any]
# One core is left for the server and the browser. A thread that is kept from its core holds up all others:
# on two cores one thread takes 102 ms a step of the pair, never 150; two take 92, and every twentieth more.
_THREADS = max(1, torch.get_num_threads() - 1)
Tell = Callable[[dict[str, Any]], None]


def share_cores(models: int | None) -> None:
    """Set torch's threads to one model's share of the cores if `models` models run; None changes nothing."""
    if models is not None:
        torch.set_num_threads(max(1, _THREADS // max(1, models)))


def facts(model: Model, layout: str) -> dict[str, Any]:
    """Return the facts of a loaded model for the page; raise ModelError if the viewer cannot show it."""
    if any(reach is not None for reach in model.reaches):
        raise ModelError(
            f"{model.name} has layers that see a window, and the viewer has one level of chance for all",
            "Use floatscope trace with layers= that see everything.",
        )
    default = default_sampler(model)
    generate_once(model)
    fact_names = ("fingerprint", "family", "direction", "layers", "heads", "parameters", "dtype")
    return {
        "name": model.name,
        **{name: model.facts[name] for name in fact_names},
        "diffusion": model.is_diffusion,
        "context": model.context,
        "vocabulary": model.vocab_size,
        "device": str(model.device),
        "mask": model.mask_id,
        "chat": model.chat,
        "layout": layout,
        "samplers": [_sampler(name, model) for name in SAMPLERS if _usable(name, model)],
        "sampler": {
            "name": default_name(model),
            "settings": {"length": LENGTH}
            | ({"steps": LENGTH} if "steps" in vars(default) else {}),
        },
    }


def generate_once(model: Model) -> None:
    """Decode one token, so that the first run does not wait for the set-up of the first forward."""
    sampler = sampler_of(model, {"name": default_name(model), "settings": {"length": 1}})
    prompt = Encoded((0,) * 8, ("prompt",) * 8)
    with (
        attention_hook.lock_network(model.net),
        StreamingRecorder(model, prompt, sampler, lambda event: None) as watcher,
    ):
        decode(model, [prompt], sampler, watcher, None, "auto")


def _usable(name: str, model: Model) -> bool:
    try:
        SAMPLERS[name](length=LENGTH).check(model)
    except UsageError:
        return False
    return True


def _sampler(name: str, model: Model) -> dict[str, Any]:
    cls = SAMPLERS[name]
    offered = []
    for field in fields(cls):
        if field.type in KINDS:
            kind, optional = KINDS[field.type]
            default = LENGTH if field.name == "length" else field.default
            offered.append(
                {"name": field.name, "kind": kind, "default": default, "optional": optional}
            )
    about = (cls.__doc__ or "").strip().splitlines()
    return {
        "name": name,
        "title": cls.__name__,
        "about": about[0] if about else "",
        "fields": offered,
    }


def run(model: Model, job: Job, tell: Tell) -> dict[str, Any]:
    """Decode a prompt, send an event per step, save the trace at the job's path, and return a summary."""
    parsed = ParsedRun(model, job)
    sampler = parsed.sampler
    with parsed.under(model), attention_hook.lock_network(model.net):
        watcher = StreamingRecorder(model, parsed.encoded, sampler, tell)
        described = list(parsed.intervention.describe().split(" + ")) if parsed.intervention else []
        tell(
            {
                "event": "started",
                "sampler": {**_sampler_fields(sampler), "text": sampler.describe()},
                "touches": [edit.text for edit in parsed.touched],
                "code": _code(sampler, parsed.touched),
                "total": watcher.total,
                "size": watcher.size,
                "scene": watcher.header(described),
            }
        )
        watcher.began = time.monotonic()
        with watcher:
            decodings = decode(model, [parsed.encoded], sampler, watcher, None, "auto")
        seconds = time.monotonic() - watcher.began
        (trace,) = watcher.traces(decodings)
    trace.save(job["path"])
    start = len(parsed.encoded.ids)
    answer = [int(i) for i in decodings[0].canvas[-1, start:]]
    return {
        "event": "done",
        "answer": trace.text,
        "raw": trace.raw_text,
        "ended": decodings[0].ended,
        "steps": decodings[0].steps,
        "seconds": round(seconds, 4),
        "result": model.token_texts(answer),
        "result_ids": answer,
        "bytes": _size(job["path"]),
    }


def _size(path: str) -> int:
    """Return the size of a store on disk, in bytes."""
    return sum(file.stat().st_size for file in Path(path).rglob("*") if file.is_file())


def _sampler_fields(sampler: AnySampler) -> dict[str, Any]:
    """Return the sampler's name and its settings, as values for the page's input fields."""
    settings = {f.name: getattr(sampler, f.name) for f in fields(sampler) if f.type in KINDS}
    return {"name": dashed(type(sampler).__name__), "settings": settings}


def _code(sampler: AnySampler, edits: list[AppliedEdit]) -> dict[str, Any]:
    is_builtin = type(sampler).__module__.startswith("floatscope.decode.")
    name = dashed(type(sampler).__name__)
    call = sampler.describe()
    if not is_builtin:
        call = f'SAMPLERS["{name}"]{call.removeprefix(type(sampler).__name__)}'
    return {
        "sampler": f"fs.samplers.{call}" if is_builtin else call,
        "own": is_builtin,
        "interventions": [line for edit in edits for line in edit.code],
    }


def tokens(model: Model, job: Job, tell: Tell) -> dict[str, Any]:
    """Return the tokens of a prompt with their regions, and whether it fits into the context."""
    encoded = model.encode(prompt_of(job["prompt"]))
    size = len(encoded.ids)
    return {
        "event": "answer",
        "tokens": model.token_texts(encoded.ids),
        "ids": list(encoded.ids),
        "regions": list(encoded.regions),
        "length": size,
        "context": model.context,
        "fits": size + int(job.get("length", 0)) <= model.context,
    }


def candidates(model: Model, job: Job, tell: Tell) -> dict[str, Any]:
    """Return the most likely tokens for a position at a step of a run."""
    step = closer.Step(model, ParsedRun(model, job), job["path"], job["step"])
    return {"event": "answer", **closer.candidates(step, job["position"], job["top"])}


def pattern(model: Model, job: Job, tell: Tell) -> dict[str, Any]:
    """Return a head's attention pattern at a step of a run."""
    step = closer.Step(model, ParsedRun(model, job), job["path"], job["step"])
    return {"event": "answer", **closer.pattern(step, job["layer"], job["head"], job.get("row"))}


def rank(model: Model, job: Job, tell: Tell) -> dict[str, Any]:
    """Return layers and heads, sorted by their effect on a token; send an event per layer."""
    ParsedRun(model, job)

    def progress(done: int, of: int) -> None:
        tell({"event": "progress", "done": done, "of": of})

    trace = Trace.load(job["path"], lazy=True)
    where = (job["step"], job["position"], progress)
    with attention_hook.lock_network(model.net):
        return {"event": "answer", **ranked(model, trace, job.get("touches", ()), *where)}


def control(model: Model, job: Job, tell: Tell) -> dict[str, Any]:
    """Trace the untrained control for a run, save the trace at path `to`, and return a summary."""
    parsed = ParsedRun(model, job)
    if parsed.touched:
        raise UsageError(
            "the control reads runs without edits", "Show the run that this branch left."
        )
    tell({"event": "progress", "done": 0, "of": 1})
    origin = Trace.load(job["path"], lazy=True)
    started = time.monotonic()
    trace = controlled(model, origin, parsed.encoded, parsed.sampler)
    trace.save(job["to"])
    return {
        "event": "done",
        "answer": trace.text,
        "steps": trace.n_steps,
        "seconds": round(time.monotonic() - started, 4),
        "bytes": _size(job["to"]),
        "name": str(trace.info["model"]),
        "fingerprint": str(trace.info["fingerprint"]),
    }


JOBS: dict[str, Callable[[Model, Job, Tell], dict[str, Any]]] = {
    "run": run,
    "tokens": tokens,
    "candidates": candidates,
    "pattern": pattern,
    "rank": rank,
    "control": control,
}
