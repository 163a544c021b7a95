"""Compute the datasets of a run's shards. In `studies`, only this file and `experiments` run models."""

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, fields, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
import xarray as xr
from jaxtyping import Bool, Int
from torch import Tensor

from ..decode import AnySampler, check_fits
from ..decode.presets import all_samplers, default_name, sampler_of
from ..engine import Output
from ..errors import RunError, TraceError, UsageError
from ..instrument import Model
from ..interventions import DoesNotFit
from ..interventions.parse import intervention_of
from ..measures.base import Measure, keep_for
from ..models.sharpened import match_sharpness, sharpened
from ..models.spec import located
from ..recording.finished import replaying
from ..recording.options import TraceOptions
from ..registry import load_plugin
from ..scenes.codec import take_arrays
from ..scenes.pack import BUDGET, NEEDS, scene_of
from ..scenes.pack import SERVED as SERVED_BUDGET
from ..sequences.prompt import Encoded, Prompt
from ..sequences.vocabulary import ModelFacts
from ..stats.thirds import thirds
from ..tasks.asking import Answered, EvaluationSetup, NothingToAsk, ask, default_template
from ..tasks.conditions import condition_of
from ..tasks.pool import Pool
from ..tasks.prose import prose
from ..tasks.record import Asks, Record
from ..tasks.templates import template_of
from ..tasks.world_questions import world_records
from ..trace import Trace
from ..trace.states import REVEALED
from .batching import Batching
from .data import Read, gold_is_missing, read_data, too_few
from .experiments.base import ExperimentContext, Unusable
from .kept_models import KeptModels
from .measuring import Measuring, threads_of
from .planning import experiments_of, held_out, measures_of, settings_of
from .provenance import data_digests, plugin_digests
from .request import Request
from .setting import (
    FINISHED,
    KNOWN,
    PAGE,
    PROSE,
    QUESTIONS,
    SAME,
    SERVED,
    STATES,
    TRACES,
    Setting,
)

_OWN = "own decoding"  # state of a control for measures about tokens that a network reveals itself
_SCENES = {PAGE: BUDGET, SERVED: SERVED_BUDGET}  # characters of each
_CALIBRATION = 4  # texts on which controls are made as sharp as their models
Tick = Callable[[float, float], None]
Reading = tuple[str, Measure, Trace]  # a measure's name, the measure, and the trace that it reads
Data = dict[str, xr.Dataset]
# an example, its data, what is left out
Measured = tuple[dict[str, Any], Data, list[dict[str, str]]]


def make(
    request: dict[str, Any], context: dict[str, Any]
) -> Callable[[dict[str, Any], Tick], Output]:
    """Return the function that computes the output of a shard, given its spec and a heartbeat.

    `request` contains the fields of the run's request. `context` contains the folder to which paths are
    relative, the checksums of sources at the start of the run, the run's directory, and the number of
    workers on this machine.
    """
    main_request = Request(**request)
    plugins = plugin_digests(main_request.plugins)
    for plugin in main_request.plugins:
        load_plugin(plugin)
    if plugin_digests(main_request.plugins) != plugins:
        raise RunError("a plugin changed while it was loaded", "Run it again.")
    folder = Path(context.get("folder", ""))
    models = KeptModels(folder)
    options: dict[str, Any] = {"folder": folder, "threads": threads_of(context.get("workers", 1))}
    options["directory"] = Path(context["directory"]) if "directory" in context else None
    part = cache(
        lambda number: ShardWorker(
            (main_request, *main_request.extra_runs)[number], models, **options
        )
    )
    pinned = Sources(context.get("sources", {}))
    # Errors in the data are raised before the first shard.
    pinned.require(part(0).sources | plugins)

    def work(spec: dict[str, Any], tick: Tick) -> Output:
        worker = part(spec.get("run", 0))
        pinned.require(worker.sources | worker.model_sources(spec))
        output = worker(spec, tick)
        return replace(output, sources=output.sources | plugins)

    return work


class Sources:
    """Checksums of the sources of shards (data, plugins, models), which must not change during a run."""

    def __init__(self, pinned: Mapping[str, str]) -> None:
        self.pinned = dict(pinned)

    def require(self, sources: Mapping[str, str]) -> None:
        """Refuse sources whose checksums have changed since an earlier shard; remember new sources."""
        for name, checksum in sources.items():
            if self.pinned.setdefault(name, checksum) != checksum:
                raise RunError(
                    f"{name} has changed since the run was started",
                    "Restore the original, choose another --out, or start again with --overwrite.",
                )


class ShardWorker:
    """A worker that computes the shards of the main run or of an extra run.

    Args:
        request: The request of the run.
        models: The models that are kept between shards.
        read: The run's data, if they have been read already.
        folder: The folder to which paths are relative.
        directory: The run's directory, in which complete traces may be stored.
        threads: Number of threads that measure while the model runs.
    """

    def __init__(
        self,
        request: Request,
        models: KeptModels,
        read: Read | None = None,
        folder: Path = Path(),
        directory: Path | None = None,
        threads: int = 1,
    ) -> None:
        self.request, self.models, self.folder = request, models, folder
        self.directory, self.threads = directory, threads
        self.by_domain = {d: measures_of(request, domain=d) for d in (QUESTIONS, PROSE)}
        self.controlled = measures_of(request, controlled=True)
        self.settings = settings_of(request)
        self.experiments = experiments_of(request)
        self._batchings: dict[tuple[str, str, bool], Batching] = {}
        # Log scales by model, seed, and whether masked rows are matched or all.
        self._sharpness: dict[tuple[str, int, bool], Tensor] = {}
        self._prepared: dict[tuple[str, str, int | None], Any] = {}  # by experiment and model
        before = data_digests([request], folder)
        self.records, self.bad = read or read_data(request, folder)
        self.sources = data_digests([request], folder)
        if before != self.sources:
            raise RunError(f"{request.data} changed while it was read", "Run it again.")
        self.repeats = _repeats(self.records)
        self.pool = Pool(self.records)
        self.template = template_of(request.template, request.chat) or default_template(
            self.records
        )

    def model(self, spec: dict[str, Any]) -> Model:
        """Return the model of a shard, loading it if necessary."""
        where = self.request.device, self.request.dtype
        return self.models.get(spec["model"], *where, spec.get("control"))

    def model_sources(self, spec: dict[str, Any]) -> dict[str, str]:
        """Return the fingerprints of the weights and the settings of a shard's model, by source name."""
        model, control = self.model(spec), spec.get("control")
        name = f"model {spec['model']}" + ("" if control is None else f", control {control}")
        return {name: model.fingerprint, f"settings of {name}": model.settings_fingerprint}

    def __call__(self, spec: dict[str, Any], tick: Tick) -> Output:
        model = self.model(spec)
        # The same sums whatever the number of workers: threads change the order of additions.
        on_cpu = model.device.type == "cpu"
        torch.set_num_threads(self.request.threads if on_cpu else self.threads)
        work = {"trace": self._trace, "ask": self._ask, "experiment": self._experiment}[
            spec["kind"]
        ]
        control = spec.get("control")
        with nullcontext() if control is None else self._untrained(spec["model"], control, True):
            data, meta = work(model, spec, tick)
        if spec.get("first"):
            meta["left_out"] += [{"what": "a record", "why": why} for why in self.bad]
        sources = self.sources | self.model_sources(spec)
        return Output(data, {"model": about(model), **meta}, sources)

    # Traces

    def _trace(self, model: Model, spec: dict[str, Any], tick: Tick) -> tuple[Data, dict[str, Any]]:
        left_out: list[dict[str, str]] = []
        decoded: list[tuple[dict[str, Any], Trace]] = []
        seeds: list[int] = spec.get("controls", [])
        sizes: list[int] = []
        total = (spec["stop"] - spec["start"]) * (1 + len(seeds))
        with Measuring[Measured](self.threads) as measuring:

            def jobs(batch: list[tuple[int, str, Trace]]) -> Iterator[Callable[[], Measured]]:
                while batch:  # let go of each trace, so that it is freed when it is measured
                    index, name, trace = batch.pop(0)
                    tick(measuring.added + len(left_out), total)
                    example = {"id": name, "index": index, "text": trace.text}
                    if seeds:
                        decoded.append((example, _canvases(trace)))
                    shown = trace if self._viewed(spec, index) else None
                    readings = self._pair_measures(model, trace, spec, index)
                    yield partial(self._measured, example, readings, shown, spec)

            for batch in self._batches(model, spec, left_out):
                sizes.append(len(batch))
                measuring.add(jobs(batch))
            for seed in seeds:
                control = self.model({"model": spec["model"], "control": seed})
                for trained, trace in decoded:
                    tick(measuring.added + len(left_out), total)
                    example = {"id": trained["id"], "index": trained["index"], "control": seed}
                    readings = self._pair_measures(control, trace, spec, example["index"], seed)
                    measuring.add([partial(self._measured, example, readings)])
            results = measuring.finish()
        data: Data = {}
        for _, measured, notes in results:
            data |= measured
            left_out += notes
        examples = [example for example, _, _ in results]
        meta: dict[str, Any] = {"examples": examples, "left_out": left_out}
        if self._batching(model, spec, False).memory is not None:  # free memory decided
            meta["batches"] = sizes
        return data, meta

    def _viewed(self, spec: dict[str, Any], index: int) -> bool:
        """Return whether the viewer shows the example with this index in a shard."""
        return bool(spec["domain"] == QUESTIONS and index < self.request.view)

    def _pair_measures(
        self, model: Model, trace: Trace, spec: dict[str, Any], index: int, seed: int | None = None
    ) -> list[Reading]:
        """Return each measure with the trace that it reads: the decoding, or forwards over given texts.

        With `seed`, `model` is the untrained control with this seed, which reads the canvases of the trained
        model's decoding. Measures with `own_tokens` read a decoding of the control itself.
        """
        measures = self.by_domain[spec["domain"]] if seed is None else self.controlled
        by_state: dict[str, list[tuple[str, Measure]]] = {}
        for key, measure in measures.items():
            state = _state_of(key)
            if state == STATES and (not model.is_diffusion or model.block is not None):
                continue  # no two states have masked rows that see the same canvas
            if seed is not None and state == "" and measure.own_tokens:
                state = _OWN
            by_state.setdefault(state, []).append((key, measure))
        readings: list[Reading] = []
        for state, pairs in by_state.items():
            source = trace
            if state or seed is not None:
                masked = state not in (SAME, FINISHED)
                keep = keep_for(measure for _, measure in pairs) or {"mass"}
                name = spec["model"]
                with nullcontext() if seed is None else self._untrained(name, seed, masked):
                    source = self._read(model, trace, state, spec["domain"], index, keep)
            readings += [(key, measure, source) for key, measure in pairs]
        return readings

    def _measured(
        self,
        example: dict[str, Any],
        readings: list[Reading],
        shown: Trace | None = None,
        spec: dict[str, Any] | None = None,
    ) -> Measured:
        """Return an example's metadata, its datasets (values and scenes), and notes on what was left out.

        Scenes are made only if `shown` has a trace. This method uses no model, so that threads can run it.
        """
        index, data = example["index"], Data()
        place = f"{index}/control-{example['control']}" if "control" in example else f"{index}"
        values = {key: f"{place}/{key}" for key, _, _ in readings}
        for key, measure, trace in readings:
            try:
                data[values[key]] = measure.example(trace).assign_attrs(id=example["id"])
            except TraceError as error:
                raise UsageError(
                    f"measure {key}: {error.problem}",
                    f"Name the statistic in the `needs` of {type(measure).__name__}: a study keeps what its "
                    "measures need, and nothing else.",
                ) from error
        example, notes = example | {"values": values}, list[dict[str, str]]()
        if shown is not None and spec is not None:
            try:
                scenes = {
                    n: scene_of(shown, example=example["id"], budget=b) for n, b in _SCENES.items()
                }
                if scenes[PAGE] == scenes[SERVED]:  # nothing was left out
                    del scenes[SERVED]
                example["scenes"] = {}
                for name, scene in scenes.items():
                    example["scenes"][name], data[f"{index}/{name}"] = take_arrays(scene)
            except UsageError as error:
                notes.append({"what": f"the view of example {index}", "why": str(error)})
            if self.request.keep_traces:
                number = self.request.models.index(spec["model"])
                example["trace"] = f"{spec.get('run', 0)}-{number}-{index:05d}.zarr"
                if self.directory is not None:
                    shown.save(self.directory / TRACES / example["trace"], overwrite=True)
        return example, data, notes

    @contextmanager
    def _untrained(self, name: str, seed: int, masked: bool) -> Iterator[None]:
        """Make a model's untrained control as sharp as the trained model while the `with` block runs.

        With `masked`, sharpness is compared on the masked rows of unfinished texts, if the model has such
        rows. Otherwise sharpness is compared on all rows of complete texts.
        """
        control = self.model({"model": name, "control": seed})
        masked = masked and control.mask_id is not None
        if (name, seed, masked) not in self._sharpness:
            calibrate = self._unfinished_texts if masked else self._whole_texts
            trained = self.model({"model": name})
            scale = match_sharpness(control, trained, *calibrate(trained))
            self._sharpness[name, seed, masked] = scale
        with sharpened(control, self._sharpness[name, seed, masked]):
            yield

    def _whole_texts(self, model: Model) -> tuple[Int[Tensor, "n size"], None]:
        """Return the token ids of the first prompts of the run with their gold answers, cut to one length.

        The second value says which rows to compare. It is None, because all rows are compared.
        """
        texts = [[*prompt, *gold] for prompt, gold in self._calibration(model)]
        size = min(map(len, texts))
        return torch.tensor([text[-size:] for text in texts]), None

    def _unfinished_texts(
        self, model: Model
    ) -> tuple[Int[Tensor, "n size"], Bool[Tensor, "n size"]]:
        """Return texts with 0, ¼, ½ and ¾ of the gold answer revealed, and a mask of the rows to compare.

        The rows to compare are the rows that predict masked positions.
        """
        length, texts = self.request.length, []
        for prompt, gold in self._calibration(model):
            for share in REVEALED:
                revealed = gold[: round(share * length)]
                texts.append([*prompt, *revealed, *[model.mask_id] * (length - len(revealed))])
        size = min(map(len, texts))
        ids = torch.tensor([text[-size:] for text in texts])
        rows = torch.eq(ids, model.mask_id or 0).roll(-model.shift, 1)
        rows[:, size - model.shift :] = False
        return ids, rows

    def _calibration(self, model: Model) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
        """Yield the token ids of each of the run's first prompts, and of its gold answer."""
        for index in range(min(_CALIBRATION, len(self.records))):
            _, prompt = self._prompt(QUESTIONS, index, model)
            answer = model.encode(Prompt.plain(self._gold(QUESTIONS, index), chat=False)).ids
            yield model.encode(prompt).ids, answer

    def _read(
        self,
        model: Model,
        trace: Trace,
        state: str,
        domain: str,
        index: int,
        keep: Collection[str],
    ) -> Trace:
        """Return the trace of a model's forwards over the texts that `state` names.

        - FINISHED: the finished text of `trace`
        - STATES: states of the decoding in `trace`
        - "": all canvases of the decoding in `trace`; a causal or block model reads a decoding of its own
          instead
        - "own decoding": a decoding of the model itself
        - SAME: the prompt with its gold answer, the same text for all models
        """
        if state == FINISHED:
            return model.read(trace, keep=keep)
        if state == STATES:
            return model.read_states(trace)
        if state == "" and model.is_diffusion and model.block is None:
            return replaying(model, trace, TraceOptions(keep=keep))
        if state in ("", _OWN):  # "": rows of a block model do not see a whole canvas
            return model.trace(
                self._prompt(domain, index, model)[1], self.sampler(model), keep=keep
            )
        _, prompt = self._prompt(domain, index, model)
        return model.read(prompt, answer=self._gold(domain, index), keep=keep)

    def _gold(self, domain: str, index: int) -> str:
        """Return the gold answer that all models read, cut to as many words as models decode tokens.

        Prose has no gold answer; return "" for prose.
        """
        if domain == PROSE:
            return ""
        record = self._records()[index]
        words = record.answers[0].split(" ")
        space = " " if record.asks is Asks.CONTINUATION else ""  # it goes on after a word
        return space + " ".join(words[: self.request.length])

    def _batches(
        self, model: Model, spec: dict[str, Any], left_out: list[dict[str, str]]
    ) -> Iterator[list[tuple[int, str, Trace]]]:
        """Trace a shard's examples; yield each batch as a list of (index, id, trace).

        Examples that cannot be traced are added to `left_out`.
        """
        prompts: dict[int, tuple[str, Encoded]] = {}
        for index in range(spec["start"], spec["stop"]):
            if spec["domain"] == QUESTIONS and index in self.repeats:
                left_out.append({"what": f"example {index}", "why": self.repeats[index]})
                continue
            try:
                name, prompt = self._prompt(spec["domain"], index, model)
                prompts[index] = name, self._fitting(model, prompt)
            except UsageError as error:
                if not self.request.skip_bad:
                    raise
                left_out.append({"what": f"example {index}", "why": str(error)})
        sampler = self.sampler(model)
        for viewed in (
            True,
            False,
        ):  # traces for the viewer take far more memory than traces to measure
            chosen = {i: prompt for i, prompt in prompts.items() if self._viewed(spec, i) is viewed}
            named = [(index, name) for index, (name, _) in chosen.items()]
            encoded = [prompt for _, prompt in chosen.values()]
            trace = partial(self._traced, model, sampler, self._needed_statistics(spec, viewed))
            batching = self._batching(model, spec, viewed)
            for start, traces in batching.batches(encoded, sampler.length, trace):
                yield [(*named[start + i], traces.pop(0)) for i in range(len(traces))]

    def _traced(
        self, model: Model, sampler: AnySampler, keep: frozenset[str], batch: list[Encoded]
    ) -> list[Trace]:
        """Return the traces of a batch of prompts, with the statistics in `keep`; if empty, only canvases."""
        least: dict[str, Any] = {"keep": ("mass",), "layers": [0], "heads": [0]}
        options = {"keep": keep} if keep else least
        with _replayed(model):  # the batch before is measured meanwhile
            traces = model.trace(batch, sampler, batch_size=len(batch), **options)
        return traces if keep else [_canvases(trace) for trace in traces]

    def _needed_statistics(self, spec: dict[str, Any], viewed: bool) -> frozenset[str]:
        """Return the names of the statistics that measures, and the viewer if `viewed`, need from a trace."""
        measures = self.by_domain[spec["domain"]]
        keep = keep_for(measure for key, measure in measures.items() if not _state_of(key))
        if viewed:
            keep |= {*NEEDS, *(TraceOptions().kept_statistics if self.request.keep_traces else ())}
        return keep

    def _batching(self, model: Model, spec: dict[str, Any], viewed: bool) -> Batching:
        """Return the batching for a shard's model and domain, and for traces with or without viewer data.

        The batching stores the memory that such traces have taken in the shards so far.
        """
        kind = spec["model"], spec["domain"], viewed
        if kind not in self._batchings:
            batchings = (
                self._batchings.items()
            )  # drop those of other models, which they keep in memory
            self._batchings = {k: batching for k, batching in batchings if k[0] == spec["model"]}
            self._batchings[kind] = Batching.for_model(model, self.request.batch)
        return self._batchings[kind]

    def _fitting(self, model: Model, prompt: Prompt) -> Encoded:
        """Encode a prompt; refuse one too long for the model, for which `trace` would refuse the batch."""
        encoded = model.encode(prompt)
        check_fits(model, len(encoded.ids), self.sampler(model).length)
        return encoded

    def _prompt(self, domain: str, index: int, model: Model) -> tuple[str, Prompt]:
        records = self._records()
        record = records[index]
        if domain == PROSE:
            return f"prose/{index}", _prose(record, index)
        condition = condition_of(self.request.traced_as, self.request.seed)
        return record.id, self.template.prompt(condition.apply(record, self.pool), condition)

    def _records(self) -> tuple[Record, ...]:
        if len(self.records) < self.request.limit:
            raise too_few(self.request, self.records)
        return self.records

    # Experiments

    def _experiment(
        self, model: Model, spec: dict[str, Any], tick: Tick
    ) -> tuple[Data, dict[str, Any]]:
        name, control, chosen = (
            spec["experiment"],
            spec.get("control"),
            range(spec["start"], spec["stop"]),
        )
        data: Data = {}
        examples: list[dict[str, Any]] = []
        left_out: list[dict[str, str]] = []
        indices: list[int] = []
        context = self.experiment_context(
            model, control is None, lambda: tick(len(indices), len(chosen))
        )
        experiment, place = self.experiments[name], (name, spec["model"], control)
        if place not in self._prepared:
            self._prepared[place] = experiment.prepare(context)
        for index in chosen:
            indices.append(index)
            context.tick()
            record = self.records[index]
            try:
                if index in self.repeats:
                    raise Unusable(self.repeats[index])
                values = experiment.ask(context, index, self._prepared[place])
            except Unusable as error:
                left_out.append(
                    {"what": f"{name} on {model.name}: {record.id}", "why": error.problem}
                )
                continue
            stored = f"{index}/{name}"
            data[stored] = values.assign_attrs(id=record.id)
            examples.append({"id": record.id, "index": index, "values": {name: stored}})
        return data, {"examples": examples, "left_out": left_out if control is None else []}

    def experiment_context(
        self, model: Model, trained: bool, alive: Callable[[], None]
    ) -> ExperimentContext:
        """Create the context of an experiment on a model; refuse data with too few questions."""
        request = self.request
        if len(self.records) < request.questions + (reserved := held_out(request)):
            raise too_few(request, self.records, reserved=reserved)
        condition = condition_of(request.asked_as, request.seed)
        return ExperimentContext(
            *(model, self.sampler(model), self.template, condition, self.records, self.pool),
            questions=request.questions,
            seed=request.seed,
            trained=trained,
            skip_bad=request.skip_bad,
            tick=alive,
        )

    # Questions

    def _ask(self, model: Model, spec: dict[str, Any], tick: Tick) -> tuple[Data, dict[str, Any]]:
        setting = self.settings[spec["setting"]]
        sampler = self.sampler(model, setting)
        if sampler is None:  # a denoising sampler does not apply to a causal model
            return {}, {"setting": asdict(setting), "rows": [], "left_out": []}
        everyone = self.people(setting)
        if len(everyone) < spec["stop"]:
            raise too_few(self.request, everyone, setting)
        if gold_is_missing(setting, everyone):
            return self._nothing(setting, model, "no record marks a gold passage")
        try:
            answered = self._ask_questions(model, spec, setting, sampler, everyone, tick)
        except DoesNotFit as error:  # the prompts are too short for this setting
            return self._nothing(setting, model, str(error))
        except NothingToAsk as error:
            if not self.request.skip_bad:
                raise
            return self._nothing(setting, model, str(error))
        data: Data = {}
        for i, decoding in enumerate(answered.decodings if setting.sampler else ()):
            start = len(decoding.prompt.ids)
            data[str(i)] = xr.Dataset(
                {
                    "change": (("step", "position"), decoding.change[:, start:]),
                    "block": ("step", decoding.block[:, 0] - start),
                    "final": ("position", decoding.canvas[-1, start:]),
                }
            )
        described = answered.sampler.describe()
        if self.folder != Path():  # with paths as the request has them
            described = described.replace(f"{self.folder}{os.sep}", "")
        return data, {
            "setting": asdict(setting),
            "sampler": described,
            "end_ids": list(model.end_ids),
            "rows": answered.scored,
            "left_out": [{"what": bad.where, "why": str(bad)} for bad in answered.left_out],
        }

    def _nothing(self, setting: Setting, model: Model, why: str) -> tuple[Data, dict[str, Any]]:
        left_out = [{"what": f"{setting.name} on {model.name}", "why": why}]
        return {}, {"setting": asdict(setting), "rows": [], "left_out": left_out}

    def _ask_questions(
        self,
        model: Model,
        spec: dict[str, Any],
        setting: Setting,
        sampler: AnySampler,
        everyone: tuple[Record, ...],
        tick: Tick,
    ) -> Answered:
        parts = {k: f"{s.start}:{s.stop}" for k, s in thirds(model.n_layers).items()}
        text = setting.intervention.format(**parts)
        asking = EvaluationSetup(
            model,
            sampler,
            condition=condition_of(setting.condition, self.request.seed),
            template=self.template,
            intervention=intervention_of(text) if text else None,
            pool=self.pool_of(setting, everyone),
            batch_size=self.request.batch_size,
            skip_bad=self.request.skip_bad,
            progress=lambda completed, total: tick(completed, total),
        )
        return ask(asking, everyone[spec["start"] : spec["stop"]])

    def pool_of(self, setting: Setting, everyone: tuple[Record, ...]) -> Pool:
        """Return the pool of records from which distractors of a setting are drawn."""
        return self.pool if setting.people != KNOWN else Pool(everyone)

    def people(self, setting: Setting) -> tuple[Record, ...]:
        """Return the records that a setting asks: those of the data, or questions about known people."""
        if setting.people != KNOWN:
            return self.records
        level = self.request.data.partition(":")[2]
        return world_records(
            f"world:{level}", self.request.questions, seed=self.request.seed, known=True
        )

    def sampler(self, model: ModelFacts, setting: Setting | None = None) -> Any:
        """Return a model's sampler in a setting (by default: in traces); None if the setting does not apply.

        A setting that names a sampler does not apply to causal models.
        """
        request = self.request
        name = setting.sampler if setting and setting.sampler else request.sampler
        common = {"length": request.length, "seed": request.seed}
        if not model.is_diffusion:
            if setting and setting.sampler:
                return None
            warm = [part for part in name.split(",")[1:] if part.strip().startswith("temperature=")]
            return sampler_of(default_name(model), common, warm)
        special = all_samplers(request.length, request.steps, request.frequencies)
        if setting and setting.sampler in special:
            chosen = special[setting.sampler]
            chosen = replace(chosen, seed=request.seed, stop_at_eos=setting.early_stop)
        else:
            chosen = sampler_of(name, common | {"steps": request.steps})
        return self._located(chosen)

    def _located(self, sampler: AnySampler) -> AnySampler:
        """Return a sampler whose files, such as token frequencies, are located in the run's folder."""
        settings = {field.name: getattr(sampler, field.name) for field in fields(sampler)}
        texts = {k: str(v) for k, v in settings.items() if isinstance(v, str | Path) and str(v)}
        paths = {k: located(text, self.folder) for k, text in texts.items()}
        moved: dict[str, Any] = {k: path for k, path in paths.items() if path != texts[k]}
        return replace(sampler, **moved) if moved else sampler


@contextmanager
def _replayed(model: Model) -> Iterator[None]:
    """Record and replay forwards on a GPU while the `with` block runs, without waiting for threads."""
    before = model.graphs
    model.graphs = before and "always"
    try:
        yield
    finally:
        model.graphs = before


def _state_of(key: str) -> str:
    """Return the ending of a measure's key that names given texts; "" if the measure reads the decoding."""
    return next((state for state in (FINISHED, SAME, STATES) if key.endswith(state)), "")


def _canvases(trace: Trace) -> Trace:
    """Return a trace with only its canvases, tokens and decisions: without statistics by layer."""
    large = [name for name, array in trace.data.data_vars.items() if "layer" in array.dims]
    return Trace(trace.data.drop_vars(large))


def about(model: Model) -> dict[str, Any]:
    """Return the facts about a model that every shard stores, such as name, size and fingerprint."""
    names = (
        "family",
        "direction",
        "parameters",
        "layers",
        "heads",
        "fingerprint",
        "dtype",
        "device",
    )
    return {"name": model.name, **{name: model.facts[name] for name in names}}


def _prose(record: Record, index: int) -> Prompt:
    """Return a prompt of running English, about as long in characters as a record's question and passages."""
    length = len(record.question) + sum(len(p.text) for p in record.passages)
    return Prompt.plain(prose(index, length), chat=False)


def _repeats(records: Sequence[Record]) -> dict[int, str]:
    """Return, by index, why a record about the same paragraph or person as an earlier record is left out.

    The questions of such records are asked, because the intervals of answers take clusters into account. The
    records are neither traced nor used in experiments.
    """
    first: dict[str, str] = {}
    repeats = {}
    for index, record in enumerate(records):
        if record.cluster and first.setdefault(record.cluster, record.id) != record.id:
            repeats[index] = (
                f"{record.id} is about the same paragraph or person as {first[record.cluster]}: "
                "examples must be independent"
            )
    return repeats
