"""Evidence: what a run measured. Measures by model, answers by setting, traces for the viewer.

Reading needs no model and no torch. Everything is gathered shard by shard, in the plan's order, so
the same shards give the same numbers. What follows from it is for the studies to say.
"""

from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import xarray as xr

from ..engine import Plan, Run
from ..measures.base import Measure
from ..measures.library.order import DecodingOrder
from ..measures.result import Result
from ..stats.intervals import bootstrap, difference
from ..trace import Trace
from .claim import Number
from .request import Request
from .setting import PROSE, QUESTIONS
from .values import Arrays, unflatten


class Evidence:
    """A run directory read back; `Findings` opens one."""

    def __init__(
        self, run: Run, request: Request, plan: Plan, measures: Mapping[str, Measure]
    ) -> None:
        self.run, self.request, self.plan, self.measures = run, request, plan, measures
        self._results: dict[tuple[str, str, str], Result | None] = {}
        self._answers: dict[tuple[str, str | None], dict[str, np.ndarray] | None] = {}
        self._orders: dict[tuple[str, str | None], Result | None] = {}

    # Models

    @cached_property
    def asked_for(self) -> dict[str, str]:
        """What each model is called here → what it was asked for by: the last part of a long path."""
        names = self.request.models
        short = {n: n if n.startswith("pair/") else Path(n.rstrip("/")).name or n for n in names}
        twice = {s for s in short.values() if list(short.values()).count(s) > 1}
        return {n if s in twice else s: n for n, s in short.items()}

    @cached_property
    def models(self) -> dict[str, dict[str, Any]]:
        """What is known of every model, by name."""
        about: dict[str, dict[str, Any]] = {}
        for label, name in self.asked_for.items():
            shard = next(s for s in self.plan.shards if s.spec["model"] == name)
            about[label] = self.run.read(shard.id, ()).meta["model"]
        return about

    @property
    def mdm(self) -> str | None:
        """The first model that fills masks."""
        return next((n for n, m in self.models.items() if m["direction"] != "causal"), None)

    @property
    def arm(self) -> str | None:
        """The first causal model."""
        return next((n for n, m in self.models.items() if m["direction"] == "causal"), None)

    def kind(self, model: str) -> str:
        return "ARM" if self.models[model]["direction"] == "causal" else "MDM"

    # Measures

    def result(self, key: str, model: str | None, domain: str = QUESTIONS) -> Result | None:
        """A measure's finding over all examples of a model; None where there is none."""
        if model is None:
            return None
        place = (key, model, domain)
        if place not in self._results:
            examples = list(self._examples(key, model, domain))
            self._results[place] = self.measures[key].of(examples, model) if examples else None
        return self._results[place]

    def results(self, key: str, domain: str = QUESTIONS) -> dict[str, Result]:
        every = {model: self.result(key, model, domain) for model in self.models}
        return {model: result for model, result in every.items() if result is not None}

    def gather(self) -> None:
        """Every measure of every model: each shard is read once, not once per measure.

        A table or a page needs them all; whoever wants one is served faster by `result` alone.
        """
        for model in self.models:
            for domain in (QUESTIONS, PROSE):
                keys = [k for k in self.measures if (k, model, domain) not in self._results]
                read = list(self._read(keys, model, domain)) if keys else []
                for key in keys:
                    examples = [self._example(key, *one) for one in read]
                    place = (key, model, domain)
                    self._results[place] = (
                        self.measures[key].of(examples, model) if examples else None
                    )

    def _examples(self, key: str, model: str, domain: str) -> Iterator[xr.Dataset]:
        for one in self._read([key], model, domain):
            yield self._example(key, *one)

    @staticmethod
    def _example(key: str, one: dict[str, Any], arrays: Arrays) -> xr.Dataset:
        return unflatten(arrays, f"{one['index']}/{key}", one["values"][key])

    def _read(
        self, keys: list[str], model: str, domain: str
    ) -> Iterator[tuple[dict[str, Any], Arrays]]:
        """What is said of each example, and its shard's arrays of these measures."""
        for shard in self.plan.shards:
            spec = shard.spec
            if spec["kind"] != "trace" or spec["domain"] != domain:
                continue
            if spec["model"] != self.asked_for[model]:
                continue
            meta = self.run.read(shard.id, ()).meta
            wanted = [
                name
                for one in meta["examples"]
                for key in keys
                for name in _names(f"{one['index']}/{key}", one["values"][key])
            ]
            arrays = self.run.read(shard.id, tuple(wanted)).arrays
            for one in meta["examples"]:
                yield one, arrays

    # Answers

    def answers(self, setting: str, model: str | None) -> dict[str, np.ndarray] | None:
        """Scores by question, in order: id, exact_match, contains, f1, steps."""
        if (setting, model) not in self._answers:
            self._answers[setting, model] = self._scores(setting, model)
        return self._answers[setting, model]

    def _scores(self, setting: str, model: str | None) -> dict[str, np.ndarray] | None:
        lines: list[dict[str, Any]] = []
        for shard in self._asked(setting, model):
            lines += self.run.read(shard, ()).meta["rows"]
        if not lines:
            return None
        kept = ("id", "exact_match", "contains", "f1", "steps", "prediction", "question")
        return {key: np.array([row[key] for row in lines]) for key in kept}

    def _asked(self, setting: str, model: str | None) -> list[str]:
        return [
            shard.id
            for shard in self.plan.shards
            if shard.spec["kind"] == "ask"
            and shard.spec["model"] == self.asked_for.get(model or "")
            and shard.spec["setting"] == setting
        ]

    def right(self, setting: str, model: str | None, label: str = "") -> Number | None:
        """Share of questions whose answer is contained in what was said."""
        answers = self.answers(setting, model)
        if answers is None:
            return None
        mean, low, high = (float(x) for x in bootstrap(answers["contains"].astype(float)))
        return Number(label or setting, mean, low, high, None, "%", len(answers["contains"]))

    def apart(self, setting: str, base: str, model: str | None, label: str = "") -> Number | None:
        """Paired difference of the same, in shares."""
        gaps = self.gaps(setting, base, model)
        if gaps is None:
            return None
        mean, low, high = (float(x) for x in bootstrap(gaps))
        return Number(label or f"{setting} − {base}", mean, low, high, 0.0, "points", len(gaps))

    def gaps(self, setting: str, base: str, model: str | None) -> np.ndarray | None:
        """Question by question, over those asked in both."""
        gaps = self.gap_by_id(setting, base, model)
        return np.array(list(gaps.values())) if gaps else None

    def gap_by_id(self, setting: str, base: str, model: str | None) -> dict[str, float]:
        a, b = self.answers(setting, model), self.answers(base, model)
        if a is None or b is None:
            return {}
        common, i, j = np.intersect1d(a["id"], b["id"], return_indices=True)
        return dict(zip(map(str, common), (a["contains"][i] - b["contains"][j]) * 1.0, strict=True))

    @staticmethod
    def between(a: np.ndarray, b: np.ndarray, label: str) -> Number:
        mean, low, high = (float(x) for x in difference(a, b))
        return Number(label, mean, low, high, 0.0, "points", len(a))

    def order(self, setting: str, model: str | None) -> Result | None:
        """The decoding order of a setting's answers."""
        if (setting, model) not in self._orders:
            self._orders[setting, model] = self._order(setting, model)
        return self._orders[setting, model]

    def _order(self, setting: str, model: str | None) -> Result | None:
        decodings = []
        ends = None  # of a run that did not write them down
        for shard in self._asked(setting, model):
            output = self.run.read(shard)
            ends = output.meta.get("end_ids", ends)
            for i in range(len(output.meta["rows"])):
                if f"{i}/change" in output.arrays:
                    decodings.append(
                        SimpleNamespace(
                            prompt=SimpleNamespace(ids=()),
                            change=output.arrays[f"{i}/change"],
                            block=output.arrays[f"{i}/block"][:, None],
                            canvas=output.arrays[f"{i}/final"][None],
                        )
                    )
        if not decodings or model is None:
            return None
        measure = DecodingOrder(frequencies=self.request.frequencies)
        return measure.of_decodings(decodings, model, ends)

    # Traces for the viewer

    def shown(self) -> list[tuple[str, str, str, int]]:
        """Of every kept trace: model, example, shard, index."""
        kept = []
        label = {name: label for label, name in self.asked_for.items()}
        for shard in self.plan.shards:
            if shard.spec["kind"] == "trace" and shard.spec["domain"] == QUESTIONS:
                if shard.spec["start"] >= self.request.view:
                    continue
                for one in self.run.read(shard.id, ()).meta["examples"]:
                    if "trace" in one:
                        kept.append((label[shard.spec["model"]], one["id"], shard.id, one["index"]))
        return kept

    def trace(self, shard: str, index: int) -> Trace:
        one = next(e for e in self.run.read(shard, ()).meta["examples"] if e["index"] == index)
        names = tuple(_names(f"{index}/trace", one["trace"]))
        arrays = self.run.read(shard, names).arrays
        data = unflatten(arrays, f"{index}/trace", one["trace"])
        labels = {name: label for label, name in self.asked_for.items()}
        data.attrs["model"] = labels.get(str(data.attrs["model"]), data.attrs["model"])
        return Trace(data)

    @property
    def left_out(self) -> list[dict[str, Any]]:
        manifest = self.run.manifest() or {}
        return list(manifest.get("result", {}).get("left_out", []))


def _names(prefix: str, said: dict[str, Any]) -> Iterator[str]:
    for kind in ("variables", "coords"):
        for name in said[kind]:
            yield f"{prefix}/{kind}/{name}"
