"""The registration of a run: rules, n, stopping rule, controls and settings, as they stood before the run.

It is written as `registration.json` into the run's directory before the first shard is computed, and its
sha256 is stored in `run.json` among the run's sources. The same request and the same version of Floatscope
give the same bytes: no time stands in it. It can be written earlier (`study --register-only FILE`), kept
where a third party can date it, and given to the run (`--registration FILE`), which must agree with it.
"""

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from ..engine import Run
from ..engine.directory import Unreadable
from ..engine.plan import differences
from ..errors import FloatscopeError, RunError, UsageError
from ..untrusted import Unreadable as Malformed
from ..untrusted import parse_object, read_bytes
from .planning import held_out, questions_of, studies_of
from .request import Request
from .study import Study
from .verdict import FAMILIES, Rule

NAME = "registration.json"
STOPPING = "n is fixed before the run; nothing is looked at in between"
CONTROL = "the same model with permuted weights, each head as sharp as the trained one"
_LIMIT = 4 << 20  # bytes of a registration
_SHOWN = 5  # differences named in an error
# What is chosen beside n and controls; how a run is computed (device, shards, batches) is none of it.
_SETTINGS = (
    "asked_as traced_as length steps sampler frequencies heads template chat seed "
    "split_alternatives"
).split()


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class RegisteredClaim(_Part):
    """A rule, and the n that is planned for it."""

    study: str
    text: str
    quantity: str
    delta: float
    unit: str
    direction: Literal["above", "below"]  # θ lies there, says the claim
    untrained: bool  # θ must also be beyond what the controls earn
    models: tuple[str, ...]
    family: str
    claims_in_family: int
    level: float
    rule: str  # all of it in words
    n: dict[str, int]


class RegisteredControls(_Part):
    """Untrained networks that claims are held against."""

    number: int
    kind: str
    seeds: tuple[int, ...]


class RegisteredRun(_Part):
    """One run, or one of the further runs in its directory."""

    models: tuple[str, ...]
    data: str
    claims: dict[str, RegisteredClaim]  # by number
    controls: RegisteredControls
    settings: dict[str, Any]
    settings_chosen_on: str  # in the user's words; "" where nothing was said
    held_out_questions: int  # on which experiments choose, and which are measured nowhere


class Registration(_Part):
    """All of it."""

    floatscope: str
    stopping: str
    runs: dict[str, RegisteredRun]  # "run", then "also-1" …

    def encode(self) -> bytes:
        """Return the bytes of the file."""
        fields = self.model_dump(mode="json")
        return (json.dumps(fields, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode(
            "utf-8", "backslashreplace"
        )

    def differences(self, other: "Registration") -> list[str]:
        """Name every field that differs, the version apart."""
        mine, others = (
            one.model_dump(mode="json", exclude={"floatscope"}) for one in (self, other)
        )
        return list(differences(mine, others, "registration"))


@dataclass(frozen=True)
class Registered:
    """A run's registration as it was found, with its checksum and when it was written ("" if unknown)."""

    registration: Registration
    data: bytes
    sha256: str
    written: str


def registration_of(request: Request) -> Registration:
    """Write down what a request asks, before anything is run."""
    parts = {"run": request} | {f"also-{i}": part for i, part in enumerate(request.also, 1)}
    runs = {name: _run(part) for name, part in parts.items()}
    return Registration(floatscope=version("floatscope"), stopping=STOPPING, runs=runs)


def read_registration(path: Path, request: Request) -> bytes:
    """Read a registration that was written earlier; refuse one that does not agree with the request."""
    try:
        data = read_bytes(path, _LIMIT)
    except (FileNotFoundError, Malformed) as error:
        raise UsageError(
            f"{path} cannot be read: {error}",
            "Name a file that `floatscope study --register-only FILE` wrote.",
        ) from error
    earlier = _decode(data, path, UsageError)
    if found := earlier.differences(registration_of(request)):
        raise UsageError(
            f"{path} does not agree with what is asked: {_listed(found)}",
            "Ask for what was registered; or register what you ask for, in a new file, before it is run.",
        )
    return data


def registration_for(
    request: Request, directory: Path | str, *, overwrite: bool, given: Path | None
) -> bytes | None:
    """Return what a run writes into its directory before its first shard; None: it was begun without.

    A run that has stored a shard keeps the registration it was begun with, and cannot get one afterwards.
    """
    earlier = None if given is None else read_registration(given, request)
    run = Run(directory)
    if overwrite or not run.shards.ids():
        return earlier or registration_of(request).encode()
    try:
        there = registered(run)
    except Unreadable:  # run.json is written anew; the registration beside it is kept
        with suppress(FileNotFoundError, Malformed):
            return read_bytes(run.directory / NAME, _LIMIT)
        return None
    if earlier is not None and (there is None or there.data != earlier):
        begun = (
            "without a registration" if there is None else f"with another registration than {given}"
        )
        raise RunError(
            f"{directory} was begun {begun}",
            "A registration comes before the first shard: choose another --out, or begin anew "
            "(--overwrite).",
        )
    return None if there is None else there.data


def registered(run: Run) -> Registered | None:
    """Read a run's registration; None where it was begun without one. Refuse one that was changed."""
    digest = run.sources.get(NAME)
    if digest is None:
        return None
    path = run.directory / NAME
    remedy = (
        f"Put back the {NAME} that was written before the run (sha256 {digest[:12]}…), or run it again "
        "with another --out."
    )
    try:
        data = read_bytes(path, _LIMIT)
    except (FileNotFoundError, Malformed) as error:
        raise RunError(f"{path}, which the run was begun with, cannot be read", remedy) from error
    found = hashlib.sha256(data).hexdigest()
    if found != digest:
        raise RunError(
            f"{path} was changed after the run was begun: its sha256 is {found[:12]}…, and run.json says "
            f"{digest[:12]}…",
            remedy,
        )
    noted = (e for e in run.events() if e.get("event") == "wrote" and e.get("file") == NAME)
    written = str(next(noted, {}).get("time", ""))
    return Registered(_decode(data, path, RunError), data, digest, written)


def changed_rules(earlier: Registration, request: Request) -> list[str]:
    """Name what differs between the rules that were registered and those that decide here."""
    now = registration_of(request)
    lines: list[str] = []
    for name, run in now.runs.items():
        before = earlier.runs[name].claims if name in earlier.runs else {}
        for number, claim in run.claims.items():
            if number not in before:
                lines.append(f"claim {number} was not registered")
                continue
            lines += differences(_rule(before[number]), _rule(claim), f"claim {number}")
    return lines


def rules_of(registration: Registration) -> dict[str, dict[str, Any]]:
    """Return what decides each claim, by number."""
    return {n: _rule(c) for run in registration.runs.values() for n, c in run.claims.items()}


def _rule(claim: RegisteredClaim) -> dict[str, Any]:
    """What decides: not the wording of the claim, nor the n that was planned."""
    fields = {"quantity", "delta", "unit", "direction", "untrained", "level"}
    return claim.model_dump(mode="json", include=fields)


def _run(request: Request) -> RegisteredRun:
    claims = {
        rule.number: _claim(rule, study, request)
        for study in studies_of(request)
        for rule in study.rules
    }
    fields = request.model_dump(mode="json")
    return RegisteredRun(
        models=request.models,
        data=request.data,
        claims=claims,
        controls=RegisteredControls(
            number=request.controls, kind=CONTROL, seeds=request.control_seeds
        ),
        settings={name: fields[name] for name in _SETTINGS},
        settings_chosen_on=request.chosen_on,
        held_out_questions=held_out(request),
    )


def _claim(rule: Rule, study: Study, request: Request) -> RegisteredClaim:
    return RegisteredClaim(
        study=study.name,
        text=rule.text,
        quantity=rule.quantity,
        delta=rule.delta,
        unit=rule.unit,
        direction="above" if rule.more else "below",
        untrained=rule.untrained,
        models=rule.models,
        family=rule.family,
        claims_in_family=FAMILIES[rule.family],
        level=rule.level,
        rule=rule.words(),
        n=_planned(study, request),
    )


def _planned(study: Study, request: Request) -> dict[str, int]:
    """How many prompts are traced and how many questions asked for a study's claims."""
    planned = {"prompts traced": request.limit} if study.measures(request) else {}
    settings = [s for s in study.settings(request) if s.decides] or [*study.settings(request)]
    asked = [questions_of(setting, request) for setting in settings]
    asked += [request.questions] if study.experiments(request) else []
    return planned | ({"questions asked": max(asked)} if asked else {})


def _decode(data: bytes, path: Path, kind: type[FloatscopeError]) -> Registration:
    try:
        return Registration.model_validate(parse_object(data))
    except (Malformed, ValidationError) as error:
        why = error.errors()[0] if isinstance(error, ValidationError) else None
        field = ".".join(map(str, why["loc"])) if why else ""
        what = f"{field:.120}: {why['msg']:.200}" if why else str(error)
        raise kind(
            f"{path} is no registration that this version reads: {what}",
            "Use the version that wrote it, or write it again (--register-only).",
        ) from error


def _listed(found: Sequence[str]) -> str:
    more = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return "; ".join(found[:_SHOWN]) + more
