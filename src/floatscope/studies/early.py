"""Check models, sampler, data and prompts before a worker starts, the cheapest check first.

The checks use the same code as workers: samplers, outlines of models, readers of data, and prompts. Workers
repeat the checks. A model that only a worker can read (on another machine, in a GGUF file, on a hub) is
checked by the worker alone.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ..decode.presets import all_samplers, sampler_of
from ..errors import UsageError
from ..models.registry import require_loadable
from ..models.spec import ModelSpec, located
from ..registry import load_plugin
from ..sequences.vocabulary import ModelFacts
from ..tasks.conditions import Condition, condition_of
from ..tasks.named import is_named
from ..tasks.pool import Pool
from ..tasks.record import Record
from ..untrusted import exists
from .data import Read, gold_is_missing, read_data, too_few
from .long_answers import no_answers, no_passages
from .planning import experiments_of, held_out, measures_of, questions_of, settings_of
from .request import Request

if TYPE_CHECKING:
    from .worker import ShardWorker


def require_possible(
    request: Request,
    *,
    elsewhere: bool = False,
    folder: Path = Path(),
) -> None:
    """Refuse a request whose models, sampler, data or prompts cannot work.

    With `elsewhere`, files may be on other machines, and data that are not on this machine are not checked.
    Paths in the request are relative to `folder`.
    """
    parts = (request, *request.extra_runs)
    specs = require_models(request, elsewhere=elsewhere, folder=folder)
    for part in parts:
        _something(part)
        _samplers(part)  # torch is imported here
    readable_parts = [
        part
        for part in parts
        if not elsewhere or is_named(part.data) or exists(located(part.data, folder))
    ]
    for part, read in [(part, _read(part, folder)) for part in readable_parts]:
        _prompts(part, read, specs, folder)


def require_models(
    request: Request,
    *,
    elsewhere: bool = False,
    folder: Path = Path(),
) -> dict[str, ModelSpec]:
    """Return the parsed spec of each model by its text; refuse missing models and unknown families.

    No weights are read. With `elsewhere`, models may be on other machines. Paths of models are relative to
    `folder`.
    """
    parts = (request, *request.extra_runs)
    texts = [text for part in parts for text in part.models]
    specs = {text: ModelSpec.parse(text).located(folder) for text in texts}
    for spec in specs.values():
        require_loadable(spec, elsewhere=elsewhere)
    return specs


def _something(request: Request) -> None:
    """Refuse a request whose studies have nothing to measure on its task."""
    work = measures_of(request), experiments_of(request), settings_of(request)
    if not any(work) and not request.view:
        names = " and ".join(request.studies)
        raise UsageError(
            f"{names} cannot be asked of {request.data}",
            no_answers(request) or no_passages(request) or "Name a study that measures something.",
        )


def _samplers(request: Request) -> None:
    from ..decode.samplers import SAMPLERS

    if request.sampler.partition(",")[0].strip() not in SAMPLERS:
        for plugin in request.plugins:
            load_plugin(plugin)
    common = {"length": request.length, "seed": request.seed}
    steps = {} if request.sampler.startswith("autoregressive") else {"steps": request.steps}
    sampler_of(request.sampler, common | steps).check_fields()
    used = {setting.sampler for setting in settings_of(request).values()}
    if used - {""}:
        for name, sampler in all_samplers(
            request.length, request.steps, request.frequencies
        ).items():
            if name in used:
                sampler.check_fields()


def _read(request: Request, folder: Path) -> Read:
    read = read_data(request, folder)
    if (measures_of(request) or request.view) and len(read[0]) < request.limit:
        raise too_few(request, read[0])
    return read


def _prompts(request: Request, read: Read, specs: dict[str, ModelSpec], folder: Path) -> None:
    """Refuse a sampler that does not suit a model, and prompts that are too long for a model's context."""
    from ..models.outline import outlined  # these import torch and transformers
    from ..tasks.fitting import fitting, longest
    from .kept_models import KeptModels
    from .worker import ShardWorker

    outlines = [outlined(specs[text]) for text in request.models]
    worker = ShardWorker(request, KeptModels(folder), read, folder)
    for outline in outlines:
        if outline is None:
            continue
        worker.sampler(outline).check(outline)
        for prompt_set in [] if request.skip_bad else _prompt_sets(worker, outline):
            for record in longest(prompt_set.records):
                fitting(
                    outline,
                    record,
                    condition=prompt_set.condition,
                    template=worker.template,
                    pool=prompt_set.pool,
                    length=prompt_set.length,
                    added=prompt_set.added,
                )


class _PromptSet(NamedTuple):
    """Records that become prompts under the same condition, and the numbers of further tokens."""

    records: tuple[Record, ...]
    condition: Condition
    pool: Pool
    length: int
    added: int = 0


def _prompt_sets(worker: "ShardWorker", model: ModelFacts) -> Iterator[_PromptSet]:
    """Yield a model's prompt sets: for traces, for experiments, and one per group of equal prompts."""
    from ..interventions.parse import intervention_of
    from ..tasks.asking import budget

    request = worker.request
    prompt_sets: dict[tuple[str, str, int, int], _PromptSet] = {}
    if measures_of(request) or request.view:
        condition = condition_of(request.traced_as, request.seed)
        traced = worker.records[: request.limit]
        yield _PromptSet(traced, condition, worker.pool, worker.sampler(model).length)
    if experiments_of(request):
        if len(worker.records) < request.questions + (reserved := held_out(request)):
            raise too_few(request, worker.records, reserved=reserved)
        records = worker.records[: request.questions + reserved]
        condition = condition_of(request.asked_as, request.seed)
        yield _PromptSet(records, condition, worker.pool, worker.sampler(model).length)
    for setting in settings_of(request).values():
        sampler, everyone = worker.sampler(model, setting), worker.people(setting)
        n_questions = questions_of(setting, request)
        if sampler is None or gold_is_missing(setting, everyone):
            continue
        if len(everyone) < n_questions:
            raise too_few(request, everyone, setting)
        condition = condition_of(setting.condition, request.seed)
        edit = setting.intervention.format(first="0:1", last="0:1")  # adds the same in any layer
        prompt_set = _PromptSet(
            everyone[:n_questions],
            condition,
            worker.pool_of(setting, everyone),
            budget(sampler, condition).length,
            intervention_of(edit).adds if edit else 0,
        )
        # Hidden columns do not make a prompt longer.
        prompt_sets[
            setting.people, setting.condition, n_questions, prompt_set.length + prompt_set.added
        ] = prompt_set
    yield from prompt_sets.values()
