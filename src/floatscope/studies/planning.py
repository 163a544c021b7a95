"""From a request to a plan: every piece of work once, whichever studies want it."""

from typing import Any

from ..engine import Plan, Shard
from ..errors import UsageError
from ..measures.base import Measure
from ..tasks.prose import PASSAGES
from .library import STUDIES
from .request import Request
from .setting import PROSE, Setting
from .study import Study

WORKER = "floatscope.studies.worker:make"


def studies_of(request: Request) -> list[Study]:
    return [STUDIES.named(name) for name in dict.fromkeys(request.studies)]


def measures_of(request: Request) -> dict[str, Measure]:
    """All measures by name; one name means one measure in every study."""
    measures: dict[str, Measure] = {}
    for study in studies_of(request):
        for name, measure in study.measures(request).items():
            if measures.setdefault(name, measure) != measure:
                raise UsageError(f"two studies mean different things by {name!r}", "Rename one.")
    return measures


def settings_of(request: Request) -> dict[str, Setting]:
    settings: dict[str, Setting] = {}
    for study in studies_of(request):
        for setting in study.settings(request):
            if settings.setdefault(setting.name, setting) != setting:
                raise UsageError(
                    f"two studies mean different things by {setting.name!r}", "Rename."
                )
    return settings


def plan(request: Request) -> Plan:
    """Shards in an order that changes models seldom."""
    wanted = [d for study in studies_of(request) for d in study.domains(request)]
    domains = list(dict.fromkeys(wanted)) if measures_of(request) or request.view else []
    settings = settings_of(request)
    shards: list[Shard] = []
    for m, model in enumerate(request.models):
        for domain in domains:
            total = min(request.limit, PASSAGES) if domain == PROSE else request.limit
            for start in range(0, total, request.shard):
                stop = min(start + request.shard, total)
                # Another text is another question: what was traced on one is not kept for the other.
                text = {"text": "books"} if domain == PROSE else {}
                spec = _spec("trace", model, start, stop, domain=domain, **text)
                shards.append(Shard(f"trace-{m}-{domain}-{start:05d}", spec))
        for s, (name, setting) in enumerate(settings.items()):
            how = {} if setting.early_stop else {"early_stop": False}
            step = request.shard * 4
            for start in range(0, request.questions, step):
                stop = min(start + step, request.questions)
                spec = _spec("ask", model, start, stop, setting=name, **how)
                shards.append(Shard(f"ask-{m}-{s:03d}-{start:05d}", spec))
    if shards:  # one of them lists what could not be read of the data
        shards[0] = Shard(shards[0].id, {**shards[0].spec, "first": True})
    return Plan(request.as_json(), WORKER, tuple(shards))


def _spec(kind: str, model: str, start: int, stop: int, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "model": model, "start": start, "stop": stop, **more}
