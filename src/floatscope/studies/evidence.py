"""Read the measurements of a run: measures by model, answers by setting, and scenes for the viewer.

This module needs neither a model nor torch. Values are collected shard by shard in the plan's order, so that
the same shards give the same numbers. The studies draw conclusions from the measurements.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import xarray as xr

from ..engine import Plan, Run, Shard
from ..errors import RunError
from ..measures.base import Measure
from ..measures.comparing import by_example
from ..measures.library.order import DecodingOrder
from ..measures.result import Result
from ..models.spec import ModelSpec, located
from ..scenes.codec import put_arrays
from ..stats.intervals import DIFFERENCES, SHARES, pair
from ..tasks import cut
from ..tasks.record import Asks
from ..tasks.scores import matched_answer
from ..trace import Trace
from ..untrusted import encodable
from .claim import Number
from .numbers import number
from .request import Request
from .setting import PAGE, PROSE, QUESTIONS, TRACES
from .stored import read_meta

Weights = tuple[int | None, ...]  # seeds of permuted weights; None: trained weights
TRAINED: Weights = (None,)
Values = tuple[int | None, dict[str, xr.Dataset]]  # weights of an example, and its data by measure
BETWEEN = " | "  # between the gold answers in a cell of a table


class Evidence:
    """The measurements of a run, read from its directory when needed. Open a run with `Findings`."""

    def __init__(
        self, run: Run, request: Request, plan: Plan, measures: Mapping[str, Measure]
    ) -> None:
        self.run, self.request, self.plan, self.measures = run, request, plan, measures
        self._results: dict[tuple[str, str, str, Weights], Result | None] = {}
        self._answers: dict[tuple[str, str | None], dict[str, np.ndarray] | None] = {}
        self._orders: dict[tuple[str, str | None], Result | None] = {}

    # Models

    @cached_property
    def asked_for(self) -> dict[str, str]:
        """The spec of each model, as in the request, by the model's name in the results."""
        short = {n: self._short(n) for n in self.request.models}
        twice = {s for s in short.values() if list(short.values()).count(s) > 1}
        return {encodable(n if s in twice else s): n for n, s in short.items()}

    def _short(self, model: str) -> str:
        """Return a model's short name: given by the user or floatscope.json, or the last part of its path."""
        spec = ModelSpec.parse(model)
        if spec.name or spec.where.startswith(("pair/", "twin/")):
            return spec.name or spec.where
        plain_name = spec.where if spec.adapter is None else f"{spec.where} + {spec.adapter}"
        called = str(self._about(model)["name"])
        if called != plain_name:
            return called
        paths = [part for part in (spec.where, spec.adapter) if part]
        return " + ".join(Path(part.rstrip("/")).name or part for part in paths)

    def _about(self, model: str) -> dict[str, Any]:
        shards = (shard for shard in self.plan.shards if shard.spec["model"] == model)
        trained = (shard for shard in shards if shard.spec.get("control") is None)
        if (shard := next(trained, None)) is None:
            raise RunError(
                f"{self.run.directory} contains no shard of {model}", "Copy the run again."
            )
        return dict(self._meta(shard)["model"])

    def _meta(self, shard: Shard) -> dict[str, Any]:
        return read_meta(self.run, shard.id, shard.spec["kind"])

    @cached_property
    def models(self) -> dict[str, dict[str, Any]]:
        """Facts about each model (family, direction, size, fingerprint, …), by the model's name."""
        return {label: self._about(name) for label, name in self.asked_for.items()}

    @property
    def mdm(self) -> str | None:
        """Name of the run's first diffusion model; None if there is none."""
        return next((n for n, m in self.models.items() if m["direction"] != "causal"), None)

    @property
    def arm(self) -> str | None:
        """Name of the run's first causal model; None if there is none."""
        return next((n for n, m in self.models.items() if m["direction"] == "causal"), None)

    def kind(self, model: str) -> str:
        """Return "MDM" for a diffusion model and "ARM" for a causal one."""
        return "ARM" if self.models[model]["direction"] == "causal" else "MDM"

    @cached_property
    def _frequencies(self) -> str | None:
        """Path of the file of token frequencies, here or where the run was made; None if not requested."""
        path = self.request.frequencies
        if path is None or Path(path).exists():
            return path
        about = (self.run.read_request() or {}).get("about", {})
        return located(path, Path(str(about.get("folder", ""))))

    # Measures

    def result(
        self, key: str, model: str | None, domain: str = QUESTIONS, control: int | None = None
    ) -> Result | None:
        """Return a measure's result over all examples of a model; None if it was not measured.

        `control` is the seed of an untrained control. With `control`, return the result of this control. In
        the result's `examples`, the coordinate `example` holds the ids of the prompts.
        """
        return self._result(key, model, domain, (control,))

    def control(self, key: str, model: str | None) -> Result | None:
        """Return a measure's result over the examples of all untrained controls; None without controls.

        Each prompt occurs once per control, and the interval treats each occurrence as an example. `paired`
        averages the occurrences of a prompt, and `result(..., control=seed)` returns a single control.
        """
        return self._result(key, model, QUESTIONS, self.request.control_seeds)

    def controls(self, key: str, model: str | None) -> list[Result]:
        """Return a measure's result for each untrained control of a model, in the order of the seeds."""
        results = (self.result(key, model, control=seed) for seed in self.request.control_seeds)
        return [result for result in results if result is not None]

    def _result(self, key: str, model: str | None, domain: str, weights: Weights) -> Result | None:
        if model is None:
            return None
        place = (key, model, domain, weights)
        if place not in self._results:
            read = list(self._read([key], model, domain, weights))
            self._results[place] = self._summarise(key, model, read, weights)
        return self._results[place]

    def results(self, key: str, domain: str = QUESTIONS) -> dict[str, Result]:
        """Return a measure's results by name of the model, without models on which it was not measured."""
        results = {model: self.result(key, model, domain) for model in self.models}
        return {model: result for model, result in results.items() if result is not None}

    def paired(
        self, key: str, value: str, a: str | Result | None, b: str | Result | None
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """Return a value of two models (or results) on the prompts that both share, in the same order.

        The arrays are (prompt, …). A prompt that several controls have read is averaged over the controls.
        Return None if a result is missing, or if the results share no prompt.
        """
        results = [
            self.result(key, source) if isinstance(source, str) else source for source in (a, b)
        ]
        values = [r.examples[value] for r in results if r is not None and value in r.examples]
        return by_example(values[0], values[1]) if len(values) == 2 else None

    def gather(self) -> None:
        """Read and cache the results of all measures and models, opening each shard once.

        Call this method before writing tables or pages, which need all results. To read a single result,
        `result` is faster.
        """
        seeds = self.request.control_seeds
        parts: list[tuple[str, Weights, list[Weights]]] = [
            (QUESTIONS, TRAINED, [TRAINED]),
            (PROSE, TRAINED, [TRAINED]),
            # all controls together, and each of them
            (QUESTIONS, seeds, [seeds, *((seed,) for seed in seeds)]),
        ]
        for model in self.models:
            for domain, weights, groups in parts:
                cached = self._results
                keys = [k for k in self.measures if (k, model, domain, weights) not in cached]
                read = list(self._read(keys, model, domain, weights)) if keys else []
                for key in keys:
                    for group in groups:
                        place = (key, model, domain, group)
                        self._results[place] = self._summarise(key, model, read, group)

    def _summarise(
        self, key: str, model: str, read: list[Values], weights: Weights
    ) -> Result | None:
        """Return a measure's result over examples from `_read` with these weights; None without examples."""
        examples = [values[key] for seed, values in read if seed in weights and key in values]
        if not examples:
            return None
        name = model if weights == TRAINED else f"{model} (untrained)"
        return self.measures[key].summarise(examples, name)

    def _read(self, keys: list[str], model: str, domain: str, weights: Weights) -> Iterator[Values]:
        """Yield, for each example, the seed of its weights and its data by measure key.

        The seed is that of permuted weights, or None for trained weights. Only examples of one model in one
        domain are read, with the weights in `weights`.
        """
        for shard in self.plan.shards:
            spec = shard.spec
            if spec.get("domain") != domain:  # questions that were asked have none
                continue
            if spec["kind"] == "experiment" and spec["experiment"] not in keys:
                continue
            if spec["model"] != self.asked_for[model]:
                continue
            if spec.get("control") not in weights and "controls" not in spec:
                continue
            # A trace shard has examples of the controls beside the model's own.
            examples = [
                (seed, {key: name for key, name in example["values"].items() if key in keys})
                for example in self._meta(shard)["examples"]
                if (seed := example.get("control", spec.get("control"))) in weights
            ]
            datasets = tuple(name for _, names in examples for name in names.values())
            data = self.run.read(shard.id, datasets).data
            for seed, names in examples:
                yield seed, {key: data[name] for key, name in names.items()}

    # Answers

    def answers(self, setting: str, model: str | None) -> dict[str, np.ndarray] | None:
        """Return a model's answers in a setting as columns, one row per question; None without answers.

        The columns are id, question, prediction, cluster, exact_match, contains, f1, steps, masks, cut
        (whether the length cut the answer off), known (whether the pair knows the person), gold (the gold
        answers) and counted (the gold answer that the prediction contains; "" if the prediction contains
        none).
        """
        if (setting, model) not in self._answers:
            self._answers[setting, model] = self._scores(setting, model)
        return self._answers[setting, model]

    def _scores(self, setting: str, model: str | None) -> dict[str, np.ndarray] | None:
        lines: list[dict[str, Any]] = []
        for shard in self._ask_shards(setting, model):
            lines += self._meta(shard)["rows"]
        if not lines:
            return None
        keys = (
            "id exact_match contains f1 steps prediction question cluster masks cut known".split()
        )
        scores = ("exact_match", "contains", "f1")  # None if a score has no meaning
        columns = {
            key: np.array([line[key] for line in lines], float if key in scores else None)
            for key in keys
        }
        why = [
            matched_answer(line["prediction"], line["answers"]) if line["contains"] else ""
            for line in lines
        ]
        columns["gold"] = np.array([BETWEEN.join(line["answers"]) for line in lines], None)
        return columns | {"counted": np.array(why, None)}

    def cut_note(self, setting: str, model: str | None) -> str:
        """Return a note on how many answers in a setting were cut off by their length; "" if none."""
        answers = self.answers(setting, model) or {}
        if "cut" not in answers or not cut.count(answers["cut"]):
            return ""
        return cut.describe(answers["cut"], int(answers["masks"][0]))

    def cut_off(self, settings: Sequence[str], *models: str | None) -> str:
        """Return why answers that were cut off make a claim untestable; "" if the claim is testable.

        A claim is untestable if most answers of a model in one of `settings` were cut off. `settings` are the
        settings on which the study decides the claim, without settings that hide columns. If hidden columns
        keep a model from ending its answers, the length of the answers is an effect of hiding.
        """
        for model in models:
            for setting in settings:
                answers = self.answers(setting, model) or {}
                if "cut" not in answers:
                    continue
                short: cut.Column = answers["cut"]
                if self.request.asks is Asks.SENTENCES:
                    short = cut.in_doubt(short, answers["contains"])
                if cut.mostly(short):
                    note = self.cut_note(setting, model)
                    return f"{model}, {setting}: {note}. {cut.REMEDY}"
        return ""

    def _ask_shards(self, setting: str, model: str | None) -> list[Shard]:
        return [
            shard
            for shard in self.plan.shards
            if shard.spec["kind"] == "ask"
            and shard.spec["model"] == self.asked_for.get(model or "")
            and shard.spec["setting"] == setting
        ]

    def hidden(self, setting: str, model: str | None) -> tuple[float, float] | None:
        """Return the share of a head's attention that a setting hides, and the number of hidden columns.

        Both numbers are means over questions. Return None if the setting hides nothing, or if it was not
        asked.
        """
        pairs = [
            (line["hidden_share"], line["hidden_columns"])
            for shard in self._ask_shards(setting, model)
            for line in self._meta(shard)["rows"]
            if "hidden_share" in line
        ]
        if not pairs:
            return None
        share, columns = np.mean(pairs, axis=0)
        return float(share), float(columns)

    def right(
        self, setting: str, model: str | None, label: str = "", *, level: float = 0.95
    ) -> Number | None:
        """Return the share of questions answered right; None if the setting has no answers or no scores.

        An answer is right if it contains a gold answer.
        """
        answers = self.answers(setting, model)
        if answers is None:
            return None
        contains = answers["contains"].astype(float)
        if np.isnan(contains).all():  # answers of this task are neither right nor wrong
            return None
        return number(
            contains,
            label or setting,
            "%",
            level=level,
            bounds=SHARES,
            clusters=answers.get("cluster"),
        )

    def accuracy_difference(
        self,
        setting: str,
        base: str,
        model: str | None,
        label: str = "",
        *,
        level: float = 0.95,
    ) -> Number | None:
        """Return the share right in `setting` − in `base`, paired by question; None without a pair."""
        gaps = self.gap_by_id(setting, base, model)
        return number(
            np.array(list(gaps.values())),
            label or f"{setting} − {base}",
            "points",
            level=level,
            null=0.0,
            bounds=DIFFERENCES,
            clusters=self.clusters(gaps, setting, model),
        )

    def clusters(self, ids: Iterable[str], setting: str, model: str | None) -> list[str]:
        """Return the cluster of each question id in a setting; the question id if no cluster is recorded."""
        answers = self.answers(setting, model) or {}
        names = dict(zip(map(str, answers.get("id", ())), answers.get("cluster", ()), strict=False))
        return [str(names.get(id, id)) for id in ids]

    def gaps(self, setting: str, base: str, model: str | None) -> np.ndarray | None:
        """Return right (1 or 0) in `setting` − in `base`, by question; None without common questions."""
        gaps = self.gap_by_id(setting, base, model)
        return np.array(list(gaps.values())) if gaps else None

    def gap_by_id(self, setting: str, base: str, model: str | None) -> dict[str, float]:
        """Return right (1 or 0) in `setting` − in `base`, by question id; {} without common questions."""
        paired = self._paired_answers(setting, base, model)
        if paired is None:
            return {}
        ids, a, b = paired
        return dict(zip(ids, a - b, strict=True))

    def _paired_answers(
        self, setting: str, base: str, model: str | None
    ) -> tuple[list[str], np.ndarray, np.ndarray] | None:
        """Return the ids of the questions asked in both settings, and right (1 or 0) in each setting.

        Return None if one of the settings was not asked, or if answers are neither right nor wrong.
        """
        answers = self.answers(setting, model), self.answers(base, model)
        if answers[0] is None or answers[1] is None:
            return None
        ids, (i, j) = pair(*([str(x) for x in a["id"]] for a in answers if a is not None))
        right = answers[0]["contains"][i] * 1.0, answers[1]["contains"][j] * 1.0
        return None if np.isnan(right).all() else (ids, *right)

    def order(self, setting: str, model: str | None) -> Result | None:
        """Return the order in which a model decoded its answers in a setting; None if none are recorded."""
        if (setting, model) not in self._orders:
            self._orders[setting, model] = self._order(setting, model)
        return self._orders[setting, model]

    def _order(self, setting: str, model: str | None) -> Result | None:
        decodings: list[SimpleNamespace] = []
        ends = None
        for shard in self._ask_shards(setting, model):
            meta, output = self._meta(shard), self.run.read(shard.id)
            ends = meta.get("end_ids", ends)
            answers = (output.data.get(str(i)) for i in range(len(meta["rows"])))
            decodings += [
                SimpleNamespace(
                    prompt=SimpleNamespace(ids=()),
                    change=answer["change"].values,
                    block=answer["block"].values[:, None],
                    canvas=answer["final"].values[None],
                )
                for answer in answers
                if answer is not None
            ]
        if not decodings or model is None:
            return None
        measure = DecodingOrder(frequencies=self._frequencies)
        return measure.of_decodings(decodings, model, ends)

    # Examples for the viewer

    def shown(self) -> list[tuple[str, str, str, int]]:
        """Return the examples that the viewer shows: name of the model, example id, shard id, and index."""
        label = {name: label for label, name in self.asked_for.items()}
        return [
            (label[shard.spec["model"]], example["id"], shard.id, example["index"])
            for shard in self.plan.shards
            if shard.spec["kind"] == "trace" and shard.spec["start"] < self.request.view
            for example in self._meta(shard)["examples"]
            if "scenes" in example
        ]

    def scene(
        self, shard: str, index: int, name: str = PAGE, *, arrays: bool = True
    ) -> dict[str, Any]:
        """Return the scene of an example for the viewer.

        `name` is `PAGE` for the scene of a report, or `SERVED` for the more complete scene of the server. If
        the scene of the report is complete, only this scene is stored, and it is returned for both names.
        With `arrays=False`, packed arrays are not read.
        """
        scenes = self._example(shard, index)["scenes"]
        name = name if name in scenes else PAGE
        scene, stored = scenes[name], f"{index}/{name}"
        if arrays:
            scene = put_arrays(scene, self.run.read(shard, (stored,)).data[stored])
        labels = {name: label for label, name in self.asked_for.items()}
        model = scene["model"]["model"]
        return scene | {"model": scene["model"] | {"model": labels.get(model, model)}}

    def _example(self, shard: str, index: int) -> dict[str, Any]:
        examples = read_meta(self.run, shard, "trace")["examples"]
        # Examples of the model itself come before those of controls.
        return next(example for example in examples if example["index"] == index)

    def trace(self, shard: str, index: int) -> Trace:
        """Load the complete trace of an example in the viewer; refuse a run that did not store it."""
        file_name = self._example(shard, index).get("trace")
        if not isinstance(file_name, str) or Path(file_name).name != file_name:
            raise RunError(
                f"{self.run.directory} contains no trace of example {index}",
                "Run the study with --keep-traces.",
            )
        return Trace.load(self.run.directory / TRACES / file_name)

    @property
    def left_out(self) -> list[dict[str, Any]]:
        """The examples and questions that the run left out, with `what` and `why`."""
        manifest = self.run.manifest() or {}
        return list(manifest.get("result", {}).get("left_out", []))
