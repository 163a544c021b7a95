"""Open a finished run, and evaluate the claims, sentences, tables and figures of its studies."""

import re
from dataclasses import replace
from functools import cached_property
from pathlib import Path, PurePath
from typing import Any

import pandas as pd

from ..engine import Plan, Run, Shard
from ..errors import RunError, UsageError
from ..measures.base import Measure
from ..tasks import alternatives
from ..tasks.cut import REMEDY
from ..tasks.named import is_named
from .answer import Answered, ModelClaim, answer, answered
from .claim import Claim, as_json
from .draw import slug
from .evidence import BETWEEN, Evidence
from .library import STUDIES
from .planning import experiments_of, measures_of, part_of, plan, settings_of, studies_of
from .registration import Registered, changed_code, changed_rules, registered
from .request import Request, request_of
from .scope import scope_of
from .setting import PROSE, QUESTIONS
from .stored import read_meta
from .study import Study
from .verdict import NOT_TESTABLE

TRAINED, PERMUTED = "trained", "permuted"  # weights: the model's own, or the untrained control's
_NAMED = 3  # settings that a note names
_LONGEST = 120  # characters of an extra run's label
ANSWERS, ORDER = "answers", "decoding-order"  # tables in addition to those of the measures


class Findings(Evidence):
    """The findings of a finished run: verdicts, sentences, tables and figures.

    Args:
        directory (Path or str): The run directory.

    Raises:
        RunError: If the directory contains no run, or an unfinished run.

    Example:
        `[(claim.number, claim.verdict) for claim in fs.studies.Findings("runs/demo").verdicts]`
    """

    def __init__(self, directory: Path | str) -> None:
        run = Run(directory)
        description = run.read_request()
        if description is None:
            raise RunError(
                f"{directory} contains no run", "Make one with `floatscope study` or `demo`."
            )
        manifest = run.manifest()
        if manifest is None:
            raise RunError(
                f"the run in {directory} is not finished",
                "Continue it with --resume and the same --out.",
            )
        request = request_of(description["request"], str(directory))
        unknown = [name for name in request.studies if name not in STUDIES]
        if unknown:
            # A plugin is never imported because a directory names it: its author is unknown.
            plugins = " ".join(f"--plugin {plugin}" for plugin in request.plugins)
            remedy = (
                f"Load its plugins again: {plugins}." if plugins else "Use the version that ran it."
            )
            reason = f"has an unknown study {unknown[0]!r}"
            known_studies = tuple(name for name in request.studies if name in STUDIES)
            if not known_studies:
                raise RunError(f"{directory} {reason}", remedy)
            request = request.model_copy(update={"studies": known_studies})
            self.missing = f"The run {reason}: it is left out. {remedy}"
        self.registered = registered(run)
        full_plan = _as_run(run, request)
        super().__init__(run, request, part_of(full_plan, 0), _measured(request))
        self.extra_runs = tuple(
            _ExtraRun(run, extra, part_of(full_plan, number), self)
            for number, extra in enumerate(request.extra_runs, 1)
        )

    registered: Registered | None = None  # the registration, written before the run
    missing = ""  # the notice about an unknown study of the run
    label = ""  # of an extra run: names its sections, such as "twin/mdm on long:continuation"

    @property
    def file_prefix(self) -> str:
        """The prefix of an extra run's file names; "" for the main run."""
        return slug(self.label)

    def title_of(self, study: str) -> str:
        """Return a study's title: its name and, in an extra run, the models and data.

        Args:
            study (str): Name of the study.
        """
        return f"{study}: {self.label}" if self.label else study

    @cached_property
    def studies(self) -> list[Study]:
        """The studies of the run, in the order of the request."""
        return studies_of(self.request)

    @cached_property
    def claims(self) -> dict[str, tuple[Claim, ...]]:
        """The claims by name of the study, with verdicts, and with scopes: the models and prompts of each."""
        self.gather()
        by_study = {}
        for study in self.studies:
            rules = {rule.number: rule for rule in study.rules}
            by_study[study.name] = tuple(
                replace(claim, scope=scope_of(claim, rules.get(claim.number), self))
                for claim in study.claims(self)
            )
        return by_study

    @cached_property
    def verdicts(self) -> tuple[Claim, ...]:
        """The claims of the main run and of extra runs, each number once, sorted by number.

        A claim that the main run cannot test is taken from the first extra run that can test it.
        """
        several: dict[str, list[Claim]] = {}
        main_claims = (claim for claims in self.claims.values() for claim in claims)
        for claim in (
            *main_claims,
            *(claim for part in self.extra_runs for claim in part.verdicts),
        ):
            several.setdefault(claim.number, []).append(claim)
        chosen = (
            next((claim for claim in candidates if claim.verdict != NOT_TESTABLE), candidates[0])
            for candidates in several.values()
        )
        return tuple(sorted(chosen, key=lambda claim: _order(claim.number)))

    @cached_property
    def answer(self) -> str:
        """The sentence that says whether attention floats in the run's models; "" if no claim decides."""
        return answer(self._tested)

    @cached_property
    def questions(self) -> list[Answered]:
        """The questions of the run's claims, each with one sentence per claim."""
        return answered(self._tested)

    @property
    def _tested(self) -> list[ModelClaim]:
        sources = ((claim, self.source(claim)) for claim in self.verdicts)
        return [ModelClaim(claim, source.mdm, source.arm) for claim, source in sources]

    def source(self, claim: Claim) -> "Findings":
        """Return the findings that a claim comes from: those of this run or of an extra run.

        Args:
            claim (Claim): One of `verdicts`.
        """
        return next(
            (
                part
                for part in self.extra_runs
                if any(claim is verdict for verdict in part.verdicts)
            ),
            self,
        )

    @cached_property
    def sentences(self) -> dict[str, tuple[str, ...]]:
        """The sentences with the findings of each study, by name of the study."""
        return {study.name: tuple(study.findings(self)) for study in self.studies}

    @cached_property
    def tables(self) -> dict[str, pd.DataFrame]:
        """The run's tables by name: those of measures (a row per value), answers, and studies."""
        self.gather()
        tables: dict[str, pd.DataFrame] = {}
        for key in self.measures:
            frames = []
            for domain, weights in ((QUESTIONS, TRAINED), (PROSE, TRAINED), (QUESTIONS, PERMUTED)):
                for model in self.models:
                    is_trained = weights == TRAINED
                    result = (
                        self.result(key, model, domain) if is_trained else self.control(key, model)
                    )
                    if result is not None:
                        frame = result.table().assign(model=model)
                        frame.insert(1, "domain", domain)
                        frame.insert(2, "weights", weights)
                        frames.append(frame)
            if frames:
                tables[key] = pd.concat(frames, ignore_index=True)
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
                tables[name] = pd.concat(frames, ignore_index=True)
        for study in self.studies:
            tables |= study.tables(self)
        return tables

    @property
    def notes(self) -> list[str]:
        """Notices with remedies: unknown studies, changed rules or code, cut-off and alternative answers."""
        lines = [self.missing, self._changed_rules, *self.warnings, self._alternatives]
        return [line for line in lines if line]

    @cached_property
    def _changed_rules(self) -> str:
        """The notice that rules or code differ from the registration; "" if they do not."""
        if self.registered is None:
            return ""
        lines = changed_rules(self.registered.registration, self.request)
        if not lines:
            return changed_code(self.registered.registration)
        wrote = self.registered.registration.floatscope
        return (
            f"Verdicts here are not by the rules that were registered: {'; '.join(lines[:_NAMED])}"
            f"{f'; and {len(lines) - _NAMED} more' if len(lines) > _NAMED else ''}. "
            f"Read the run with Floatscope {wrote}, or register and run it again."
        )

    @cached_property
    def warnings(self) -> list[str]:
        """One warning for each model with settings in which most answers were cut off at the length limit."""
        lines = []
        for model in self.models:
            cut_off = [s for s in settings_of(self.request) if self.cut_off((s,), model)]
            if cut_off:
                examples = "; ".join(f"{s}: {self.cut_note(s, model)}" for s in cut_off[:_NAMED])
                suffix = f"; and {len(cut_off) - _NAMED} more settings" * (len(cut_off) > _NAMED)
                lines.append(f"{model}: most answers were cut off ({examples}{suffix}). {REMEDY}")
        return lines

    @cached_property
    def _alternatives(self) -> str:
        """The notice that gold answers of a file seem to hold several answers in one text; "" if none do."""
        if is_named(self.request.data) or self.request.split_alternatives:
            return ""
        golds: dict[str, list[str]] = {}
        for name in settings_of(self.request):
            for model in self.models:
                answers = self.answers(name, model) or {}
                if "gold" in answers:
                    pairs = zip(answers["id"], answers["gold"], strict=True)
                    golds |= {str(id): str(gold).split(BETWEEN) for id, gold in pairs}
        return alternatives.describe(golds)

    def summary(self) -> dict[str, Any]:
        """Return the content of summary.json: models, claims, findings, accuracies, and what was left out."""
        right = {
            name: {
                model: as_json(number)
                for model in self.models
                if (number := self.right(name, model)) is not None
            }
            for name in settings_of(self.request)
        }
        return {
            "request": self.request.as_json(),
            "models": self.models,
            **({"registration": self.registered.sha256} if self.registered else {}),
            "answer": self.answer,
            "claims": [as_json(claim) for claim in self.verdicts],  # as the page lists them
            "findings": {name: list(lines) for name, lines in self.sentences.items()},
            "right": right,
            "left_out": self.left_out,
            **({"notes": self.notes} if self.notes else {}),
            **(
                {"extra_runs": [run.summary() for run in self.extra_runs]}
                if self.extra_runs
                else {}
            ),
        }


class _ExtraRun(Findings):
    """The findings of an extra run, which is stored in the directory of the main run."""

    def __init__(self, run: Run, request: Request, plan: Plan, main: Findings) -> None:
        Evidence.__init__(self, run, request, plan, _measured(request))
        self.extra_runs, self._main = (), main

    @cached_property
    def label(self) -> str:  # type: ignore[override]
        """The models and data of the run, numbered if extra runs would share their file names."""
        subject = _subject(self)
        namesakes = [run for run in self._main.extra_runs if slug(_subject(run)) == slug(subject)]
        return f"{subject} ({namesakes.index(self) + 1})" if len(namesakes) > 1 else subject

    @cached_property
    def claims(self) -> dict[str, tuple[Claim, ...]]:
        return {
            name: tuple(replace(claim, study=self.title_of(name)) for claim in claims)
            for name, claims in super().claims.items()
        }


def _subject(run: Findings) -> str:
    """Return the models and data of a run as text, as in "twin/mdm on long:continuation"."""
    text = f"{' and '.join(run.models)} on {PurePath(run.request.data).name}"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _measured(request: Request) -> dict[str, Measure]:
    """Return the measures and experiments of a request by name: everything whose values are in shards."""
    return {**measures_of(request), **experiments_of(request)}


def _as_run(run: Run, request: Request) -> Plan:
    """Return the plan of the shards that a run stored.

    The plan is computed from the request. If a study of the run is not installed, or if another version
    planned other shards, the plan lists only stored shards, and each shard of answers is read to find its
    setting.
    """
    manifest = run.manifest() or {"result": {"shards": []}}
    lying = {shard["shard"] for shard in manifest["result"]["shards"]}
    try:
        # room for the shards of studies that are not installed
        full_plan = plan(request, limit=2 * len(lying) + 1000)
    except UsageError as error:
        raise RunError(
            f"{run.directory / 'run.json'}: {error.problem}; manifest.json lists {len(lying)} shards",
            "One of the two is damaged: copy the run again.",
        ) from error
    is_unchanged = (run.read_request() or {}).get("fingerprint") == full_plan.fingerprint
    if is_unchanged and lying == {shard.id for shard in full_plan.shards}:
        return full_plan
    shards = [s for s in full_plan.shards if s.spec["kind"] != "ask" and s.id in lying]
    for name in sorted(lying):
        match = re.fullmatch(r"ask-(\d{1,3})-.*", name)
        if match and int(match[1]) < len(request.models):
            setting = read_meta(run, name, "ask")["setting"]["name"]
            spec = {"kind": "ask", "model": request.models[int(match[1])], "setting": setting}
            shards.append(Shard(name, spec))
    return Plan(full_plan.request, full_plan.worker, tuple(shards))


def _order(number: str) -> tuple[int, str]:
    """Return the sort key of a claim's number: 9a before 9b before 10."""
    digits = number.rstrip("abcdefghijklmnopqrstuvwxyz")
    return int(digits) if digits.isdigit() else 10**9, number
