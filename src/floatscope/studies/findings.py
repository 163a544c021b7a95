"""Findings: a finished run opened, and what its studies make of it; each computed once."""

from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from ..engine import Run
from ..errors import RunError
from .claim import Claim
from .evidence import Evidence
from .library import STUDIES
from .planning import measures_of, plan, settings_of, studies_of
from .request import request_of
from .setting import PROSE, QUESTIONS
from .study import Study

ANSWERS, ORDER = "answers", "decoding-order"  # tables beside those of the measures


class Findings(Evidence):
    """What a finished run found."""

    def __init__(self, directory: Path | str) -> None:
        run = Run(directory)
        asked = run.asked()
        if asked is None:
            raise RunError(
                f"{directory} holds no run", "Make one with `floatscope study` or `demo`."
            )
        manifest = run.manifest()
        if manifest is None:
            raise RunError(
                f"the run in {directory} is not finished", "Go on with it: --resume, same --out."
            )
        request = request_of(asked["request"], str(directory))
        unknown = [name for name in request.studies if name not in STUDIES]
        if unknown:
            # A plugin is never imported because a directory names it: it may be anyone's.
            plugins = " ".join(f"--plugin {plugin}" for plugin in request.plugins)
            raise RunError(
                f"{directory} holds a study {unknown[0]!r}, which is not known here",
                f"It came with {plugins}: say so again."
                if plugins
                else "Use the version that ran it.",
            )
        # An older version planned fewer shards for the same request: what it did is what there is.
        done = {shard["shard"] for shard in manifest["result"]["shards"]}
        planned = plan(request)
        kept = tuple(shard for shard in planned.shards if shard.id in done)
        super().__init__(run, request, replace(planned, shards=kept), measures_of(request))

    @cached_property
    def studies(self) -> list[Study]:
        return studies_of(self.request)

    @cached_property
    def claims(self) -> dict[str, tuple[Claim, ...]]:
        """By study, with their verdicts."""
        return {study.name: tuple(study.claims(self)) for study in self.studies}

    @cached_property
    def sentences(self) -> dict[str, tuple[str, ...]]:
        """By study, what was found in words."""
        return {study.name: tuple(study.findings(self)) for study in self.studies}

    @cached_property
    def tables(self) -> dict[str, pd.DataFrame]:
        """Every table by name; one row per value, with null and interval beside it."""
        self.gather()
        made: dict[str, pd.DataFrame] = {}
        for key in self.measures:
            frames = []
            for domain in (QUESTIONS, PROSE):
                for result in self.results(key, domain).values():
                    frame = result.table()
                    frame.insert(1, "domain", domain)
                    frames.append(frame)
            if frames:
                made[key] = pd.concat(frames, ignore_index=True)
        answers, orders = [], []
        for name, setting in settings_of(self.request).items():
            for model in self.models:
                lines = self.answers(name, model)
                if lines is None:
                    continue
                frame = pd.DataFrame({k: lines[k] for k in lines})
                for place, (key, value) in enumerate(
                    {"model": model, "setting": name, "intervention": setting.intervention}.items()
                ):
                    frame.insert(place, key, value)
                answers.append(frame)
                order = self.order(name, model)
                if order is not None:
                    table = order.table()
                    table.insert(1, "setting", name)
                    orders.append(table)
        for name, frames in ((ANSWERS, answers), (ORDER, orders)):
            if frames:
                made[name] = pd.concat(frames, ignore_index=True)
        return made

    def summary(self) -> dict[str, Any]:
        """The headline numbers: models, claims with verdicts, findings, accuracies, what was left out."""
        right = {
            name: {
                model: asdict(number)
                for model in self.models
                if (number := self.right(name, model)) is not None
            }
            for name in settings_of(self.request)
        }
        return {
            "request": self.request.as_json(),
            "models": self.models,
            "claims": [asdict(claim) for claims in self.claims.values() for claim in claims],
            "findings": {name: list(lines) for name, lines in self.sentences.items()},
            "right": right,
            "left_out": self.left_out,
        }
