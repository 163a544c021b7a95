"""From a request to a plan: every piece of work once, whichever studies want it."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

from ..engine import Plan, Shard
from ..errors import UsageError
from ..measures.base import Measure
from ..tasks.prose import PASSAGES
from .experiments.base import Experiment
from .library import STUDIES
from .request import Request
from .setting import PROSE, QUESTIONS, Setting
from .study import Study

WORKER = "floatscope.studies.worker:make"
MOST = 200_000  # shards of a run


def studies_of(request: Request) -> list[Study]:
    return [STUDIES.named(name) for name in dict.fromkeys(request.studies)]


def measures_of(
    request: Request, *, controlled: bool = False, domain: str | None = None
) -> dict[str, Measure]:
    """All measures by name; those taken of the untrained control too; or those of one domain.

    One name means one measure in every study.
    """
    measures: dict[str, Measure] = {}
    for study in studies_of(request):
        if controlled and not study.control:
            continue
        if domain is not None and domain not in study.domains(request):
            continue
        own = study.controlled(request) if controlled else ()
        for name, measure in study.measures(request).items():
            if controlled and name not in own:
                continue
            if measures.setdefault(name, measure) != measure:
                raise UsageError(f"two studies mean different things by {name!r}", "Rename one.")
    return measures


def experiments_of(request: Request) -> dict[str, Experiment]:
    """All experiments by name. One name means one experiment in every study."""
    experiments: dict[str, Experiment] = {}
    for study in studies_of(request):
        for name, experiment in study.experiments(request).items():
            if experiments.setdefault(name, experiment) != experiment:
                raise UsageError(f"two studies mean different things by {name!r}", "Rename one.")
    return experiments


def held_out(request: Request) -> int:
    """Questions, behind those that are asked, on which experiments choose what to do."""
    return max((one.others for one in experiments_of(request).values()), default=0)


def settings_of(request: Request) -> dict[str, Setting]:
    settings: dict[str, Setting] = {}
    for study in studies_of(request):
        for setting in study.settings(request):
            other = settings.get(setting.name, setting)
            if replace(other, questions=setting.questions) != setting:
                raise UsageError(
                    f"two studies mean different things by {setting.name!r}", "Rename."
                )
            # Asked once, as often as the one that asks most: pairs are found by a question's id.
            settings[setting.name] = max((other, setting), key=lambda s: questions_of(s, request))
    return settings


def questions_of(setting: Setting, request: Request) -> int:
    """How many questions are asked in a setting."""
    if setting.questions:
        return setting.questions
    side = None if setting.decides else request.side_questions
    return min(side or request.questions, request.questions)


def plan(request: Request, most: int = MOST) -> Plan:
    """The shards of a run, then those of each further run in it; `run` in a shard's spec is its number.

    More than `most` are an error, and are not made: a request from a file may ask for any number.
    """
    shards = list(islice(_every(request), most + 1))
    if len(shards) > most:
        raise UsageError(
            f"more than {most:,} shards",
            "Lower --limit and --questions, or raise it: --set shard=32.",
        )
    return Plan(request.as_json(), WORKER, tuple(shards))


def _every(request: Request) -> Iterator[Shard]:
    yield from _marked(request)
    for number, part in enumerate(request.extra_runs, 1):
        for shard in _marked(part):
            yield Shard(f"extra-{number}-{shard.id}", {**shard.spec, "run": number})


def _marked(request: Request) -> Iterator[Shard]:
    """The shards of one run; the first of them lists what could not be read of the data."""
    shards = _shards(request)
    for first in islice(shards, 1):
        yield Shard(first.id, {**first.spec, "first": True})
    yield from shards


def part_of(whole: Plan, number: int) -> Plan:
    """The shards of the run itself (0), or of one of the further runs in it."""
    own = tuple(shard for shard in whole.shards if shard.spec.get("run", 0) == number)
    return Plan(whole.request, whole.worker, own)


def _shards(request: Request) -> Iterator[Shard]:
    """In an order that changes models seldom."""
    wanted = [d for study in studies_of(request) for d in study.domains(request)]
    domains = list(dict.fromkeys(wanted)) if measures_of(request) or request.view else []
    settings = settings_of(request)
    seeds = request.control_seeds if measures_of(request, controlled=True) else ()
    experiments = experiments_of(request)
    for m, model in enumerate(request.models):
        for domain in domains:
            total = min(request.limit, PASSAGES) if domain == PROSE else request.limit
            for start in range(0, total, request.shard):
                stop = min(start + request.shard, total)
                # Another text is another question: what was traced on one is not kept for the other.
                text = {"text": "books"} if domain == PROSE else {}
                read = {"controls": list(seeds)} if seeds and domain == QUESTIONS else {}
                spec = _spec("trace", model, start, stop, domain=domain, **text, **read)
                yield Shard(f"trace-{m}-{domain}-{start:05d}", spec)
        for s, (name, setting) in enumerate(settings.items()):
            how = {} if setting.early_stop else {"early_stop": False}
            step = request.shard * 4
            total = questions_of(setting, request)
            for start in range(0, total, step):
                stop = min(start + step, total)
                spec = _spec("ask", model, start, stop, setting=name, **how)
                yield Shard(f"ask-{m}-{s:03d}-{start:05d}", spec)
        yield from _experiments(request, m, model, experiments, None)
        for seed in request.control_seeds if experiments else ():
            yield from _experiments(request, m, model, experiments, seed)


def _experiments(
    request: Request, m: int, model: str, experiments: dict[str, Experiment], seed: int | None
) -> Iterator[Shard]:
    """Of the model itself, or of its untrained control with this seed."""
    own = {} if seed is None else {"control": seed}
    named = f"{m}" if seed is None else f"{m}-control-{seed}"
    for name in experiments:
        for start in range(0, request.questions, request.shard):
            stop = min(start + request.shard, request.questions)
            spec = _spec("experiment", model, start, stop, domain=QUESTIONS, experiment=name, **own)
            yield Shard(f"experiment-{named}-{name}-{start:05d}", spec)


def _spec(kind: str, model: str, start: int, stop: int, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "model": model, "start": start, "stop": stop, **more}
