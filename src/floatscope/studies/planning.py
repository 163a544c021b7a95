"""Turn a request into a plan of shards. Work that several studies need is planned only once."""

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
    """Return the studies that a request names, each once."""
    return [STUDIES.named(name) for name in dict.fromkeys(request.studies)]


def measures_of(
    request: Request, *, controlled: bool = False, domain: str | None = None
) -> dict[str, Measure]:
    """Return the measures of a request by name; refuse studies that use one name for different measures.

    With `controlled`, return only the measures that are also computed on untrained controls; with `domain`,
    only the measures of studies that trace this domain.
    """
    measures: dict[str, Measure] = {}
    for study in studies_of(request):
        if controlled and not study.control:
            continue
        if domain is not None and domain not in study.domains(request):
            continue
        controlled_names = study.controlled(request) if controlled else ()
        for name, measure in study.measures(request).items():
            if controlled and name not in controlled_names:
                continue
            if measures.setdefault(name, measure) != measure:
                raise UsageError(f"two studies define {name!r} differently", "Rename one.")
    return measures


def experiments_of(request: Request) -> dict[str, Experiment]:
    """Return the experiments of a request by name; refuse one name for different experiments."""
    experiments: dict[str, Experiment] = {}
    for study in studies_of(request):
        for name, experiment in study.experiments(request).items():
            if experiments.setdefault(name, experiment) != experiment:
                raise UsageError(f"two studies define {name!r} differently", "Rename one.")
    return experiments


def held_out(request: Request) -> int:
    """Return how many questions are reserved for choices of experiments, after the questions to ask."""
    return max(
        (experiment.choice_questions for experiment in experiments_of(request).values()), default=0
    )


def settings_of(request: Request) -> dict[str, Setting]:
    """Return the settings of a request by name, each with its largest number of questions in any study."""
    settings: dict[str, Setting] = {}
    for study in studies_of(request):
        for setting in study.settings(request):
            other = settings.get(setting.name, setting)
            if replace(other, questions=setting.questions) != setting:
                raise UsageError(f"two studies define {setting.name!r} differently", "Rename one.")
            # Asked once, with the largest number of questions: answers are paired by the question's id.
            settings[setting.name] = max((other, setting), key=lambda s: questions_of(s, request))
    return settings


def questions_of(setting: Setting, request: Request) -> int:
    """Return the number of questions that a run asks in a setting."""
    if setting.questions:
        return setting.questions
    side = None if setting.decides else request.side_questions
    return min(side or request.questions, request.questions)


def plan(request: Request, limit: int = MOST) -> Plan:
    """Return the plan of a request: the shards of the main run, then the shards of its extra runs.

    Extra runs are numbered from 1, and the spec of a shard has the number of its extra run in `run`. Raise an
    error for more than `limit` shards before they are created, because a request from a file may ask for any
    number.
    """
    shards = list(islice(_all_shards(request), limit + 1))
    if len(shards) > limit:
        raise UsageError(
            f"more than {limit:,} shards",
            "Lower --limit and --questions, or use larger shards: --set shard=32.",
        )
    return Plan(request.as_json(), WORKER, tuple(shards))


def _all_shards(request: Request) -> Iterator[Shard]:
    yield from _marked(request)
    for number, part in enumerate(request.extra_runs, 1):
        for shard in _marked(part):
            yield Shard(f"extra-{number}-{shard.id}", {**shard.spec, "run": number})


def _marked(request: Request) -> Iterator[Shard]:
    """Yield the shards of one run; the spec of the first says that it lists records that cannot be read."""
    shards = _shards(request)
    for first in islice(shards, 1):
        yield Shard(first.id, {**first.spec, "first": True})
    yield from shards


def part_of(full_plan: Plan, number: int) -> Plan:
    """Return the part of a plan with the shards of the main run (`number` 0) or of an extra run."""
    shards = tuple(shard for shard in full_plan.shards if shard.spec.get("run", 0) == number)
    return Plan(full_plan.request, full_plan.worker, shards)


def _shards(request: Request) -> Iterator[Shard]:
    """Yield the shards of one run, model by model, so that each model is loaded once."""
    all_domains = [d for study in studies_of(request) for d in study.domains(request)]
    domains = list(dict.fromkeys(all_domains)) if measures_of(request) or request.view else []
    settings = settings_of(request)
    seeds = request.control_seeds if measures_of(request, controlled=True) else ()
    experiments = experiments_of(request)
    for m, model in enumerate(request.models):
        for domain in domains:
            total = min(request.limit, PASSAGES) if domain == PROSE else request.limit
            for start in range(0, total, request.shard):
                stop = min(start + request.shard, total)
                # Another text is another question: traces on one text do not serve for another.
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
    """Yield the shards of experiments on a model or, with `seed`, on its untrained control."""
    control = {} if seed is None else {"control": seed}
    named = f"{m}" if seed is None else f"{m}-control-{seed}"
    for name in experiments:
        for start in range(0, request.questions, request.shard):
            stop = min(start + request.shard, request.questions)
            spec = _spec(
                "experiment", model, start, stop, domain=QUESTIONS, experiment=name, **control
            )
            yield Shard(f"experiment-{named}-{name}-{start:05d}", spec)


def _spec(kind: str, model: str, start: int, stop: int, **fields: Any) -> dict[str, Any]:
    return {"kind": kind, "model": model, "start": start, "stop": stop, **fields}
