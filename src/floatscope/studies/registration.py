"""Write and check the registration of a run: its rules, n, stopping rule, controls and settings.

The registration is written as `registration.json` into the run's directory before the first shard is
computed. The sha256 of this file is stored in `run.json` among the run's sources, and in the event of
`log.jsonl` that records when the file was written. The file contains no time, so that the same request and
the same code of Floatscope give the same bytes. A registration can also be written earlier (`study
--register-only FILE`) and deposited where a third party can date it. This file is then passed to the run
(`--registration FILE`), and must agree with the run's request.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from ..engine import Run
from ..engine.directory import Unreadable
from ..engine.plan import differences, listed
from ..errors import FloatscopeError, RunError, UsageError
from ..untrusted import Unreadable as Malformed
from ..untrusted import parse_object, read_bytes
from .planning import held_out, questions_of, studies_of
from .request import Request
from .study import Study
from .verdict import Rule, claims_together

NAME = "registration.json"
STOPPING = "n is fixed before the run; nothing is looked at in between"
CONTROL = "the same model with permuted weights, each head as sharp as the trained one"
_LIMIT = 4 << 20  # bytes of a registration
_OF_RULE = "text quantity delta of_layers unit untrained models family level".split()
_JUDGING = ("measures", "stats", "studies")  # packages whose code decides
# Registered settings besides n and controls; how a run is computed (device, shards, batches) is not.
_SETTINGS = (
    "asked_as traced_as length steps sampler frequencies heads template chat seed "
    "split_alternatives skip"
).split()


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class RegisteredClaim(_Part):
    """A registered claim: its rule, and the planned numbers of prompts and questions."""

    study: str
    text: str
    quantity: str
    delta: float
    of_layers: float  # δ is this share of the model's layers, if that is more than `delta`
    unit: str
    direction: Literal["above", "below"]  # where θ lies according to the claim
    untrained: bool  # θ must also be beyond that of the controls
    models: tuple[str, ...]
    family: str
    claims_in_family: int
    level: float
    rule: str  # θ, δ and the verdicts in words
    method: str  # the study's: states, rows, controls
    n: dict[str, int]


class RegisteredControls(_Part):
    """The registered untrained networks, with which the models of the claims are compared."""

    number: int
    kind: str
    seeds: tuple[int, ...]


class RegisteredRun(_Part):
    """The registration of the main run or of one extra run in its directory."""

    models: tuple[str, ...]
    data: str
    claims: dict[str, RegisteredClaim]  # by number
    controls: RegisteredControls
    settings: dict[str, Any]
    settings_chosen_on: str  # in the user's words; "" if not stated
    held_out_questions: int  # on which experiments choose; nothing is measured on them


class Registration(_Part):
    """The content of a registration file."""

    floatscope: str
    code: str  # sha256 of the source files that decide
    stopping: str
    runs: dict[str, RegisteredRun]  # "run", then "extra-1" …

    def encode(self) -> bytes:
        """Return the registration as the bytes of its JSON file."""
        fields = self.model_dump(mode="json")
        return (json.dumps(fields, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode(
            "utf-8", "backslashreplace"
        )

    def differences(self, other: "Registration") -> list[str]:
        """Return a line for every field that differs from another registration, except version and code."""
        methods = {"__all__": {"claims": {"__all__": {"method"}}}}
        fields, other_fields = (
            registration.model_dump(
                mode="json", exclude={"floatscope": True, "code": True, "runs": methods}
            )
            for registration in (self, other)
        )
        lines = [*differences(fields, other_fields, "registration")]
        for name in (n for n in self.runs if n in other.runs):
            before, after = self.runs[name].claims, other.runs[name].claims
            for number in (n for n in before if n in after):
                where = f"registration.runs.{name}.claims.{number}"
                lines += _method_differences(before[number], after[number], where)
        return lines


@dataclass(frozen=True)
class Registered:
    """A registration read from a run: its bytes, its sha256, and when it was written ("" if unknown)."""

    registration: Registration
    data: bytes
    sha256: str
    written: str


def registration_of(request: Request) -> Registration:
    """Create the registration of a request from the rules and the code of this version."""
    parts = {"run": request} | {
        f"extra-{i}": extra for i, extra in enumerate(request.extra_runs, 1)
    }
    runs = {name: _run(part) for name, part in parts.items()}
    return Registration(
        floatscope=version("floatscope"), code=code_digest(), stopping=STOPPING, runs=runs
    )


@cache
def code_digest() -> str:
    """Return the sha256 over paths and bytes of the source files of `measures`, `stats` and `studies`."""
    return digest_sources(Path(__file__).parents[1], _JUDGING)


def digest_sources(package: Path, folders: Sequence[str]) -> str:
    """Return the sha256 over the paths and bytes of all .py files in these folders of a package."""
    files = {
        path.relative_to(package).as_posix(): path
        for folder in folders
        for path in (package / folder).rglob("*.py")
    }
    digest = hashlib.sha256()
    for name, path in sorted(files.items()):
        data = path.read_bytes()
        digest.update(f"{name}\0{len(data)}\0".encode() + data)
    return digest.hexdigest()


def read_registration(path: Path, request: Request) -> bytes:
    """Return the bytes of a registration file; refuse a registration that does not agree with the request."""
    try:
        data = read_bytes(path, _LIMIT)
    except (FileNotFoundError, Malformed) as error:
        raise UsageError(
            f"{path} cannot be read: {error}",
            "Name a file that `floatscope study --register-only FILE` wrote.",
        ) from error
    earlier = _decode(data, path, UsageError)
    if conflicts := earlier.differences(registration_of(request)):
        raise UsageError(
            f"{path} differs from the requested run: {listed(conflicts)}",
            "Run the registered settings, or register the new settings in another file before the run.",
        )
    return data


def registration_for(
    request: Request, directory: Path | str, *, overwrite: bool, registration_path: Path | None
) -> bytes | None:
    """Return the bytes of a run's registration; None if the run was started without a registration.

    A new run gets the registration in `registration_path` or, by default, the registration of its request. A
    run that has stored a shard keeps the registration with which it was started. If it was started without a
    registration, it cannot get one afterwards.
    """
    earlier = None if registration_path is None else read_registration(registration_path, request)
    run = Run(directory)
    if overwrite or not run.shards.ids():
        return earlier or registration_of(request).encode()
    stored = registered(run)
    if earlier is not None and (stored is None or stored.data != earlier):
        history = (
            "without a registration"
            if stored is None
            else f"with another registration than {registration_path}"
        )
        raise RunError(
            f"{directory} was started {history}",
            "A registration comes before the first shard: choose another --out, or start again "
            "with --overwrite.",
        )
    return None if stored is None else stored.data


def registered(run: Run) -> Registered | None:
    """Read a run's registration, and refuse one that was changed; None if the run was started without one.

    The log records the checksum of the registration with which the run was started. If run.json has a
    checksum as well, the file must match both. A damaged run.json is ignored, because it is written again.
    """
    noted = _noted(run)
    if noted is None:
        return None
    digest, written = noted
    path = run.directory / NAME
    remedy = (
        f"Put back the {NAME} that was written before the run (sha256 {digest[:12]}…), or run it again "
        "with another --out."
    )
    try:
        data = read_bytes(path, _LIMIT)
    except (FileNotFoundError, Malformed) as error:
        raise RunError(f"{path}, with which the run was started, cannot be read", remedy) from error
    actual = hashlib.sha256(data).hexdigest()
    for file, expected in (("log.jsonl", digest), ("run.json", _pinned(run) or digest)):
        if actual != expected:
            raise RunError(
                f"{path} was changed after the start of the run: its sha256 is {actual[:12]}…, and "
                f"{file} says {expected[:12]}…",
                remedy,
            )
    return Registered(_decode(data, path, RunError), data, digest, written)


def changed_rules(earlier: Registration, request: Request) -> list[str]:
    """Return a line for every difference between the registered rules and the rules of this version."""
    registration = registration_of(request)
    lines: list[str] = []
    for name, run in registration.runs.items():
        before = earlier.runs[name].claims if name in earlier.runs else {}
        for number, claim in run.claims.items():
            if number not in before:
                lines.append(f"claim {number} was not registered")
                continue
            where = f"claim {number}"
            lines += differences(_fields(before[number]), _fields(claim), where)
            lines += _method_differences(before[number], claim, where)
    return lines


def changed_code(earlier: Registration) -> str:
    """Return the notice that the code differs from the registered code; "" if it is the same."""
    code = code_digest()
    if earlier.code == code:
        return ""
    return (
        "Verdicts here are computed by other code than was registered "
        f"(sha256 {earlier.code[:12]}… then, {code[:12]}… now)."
    )


def rules_of(registration: Registration) -> dict[str, dict[str, Any]]:
    """Return the registered fields that decide a claim, and its method, by the claim's number."""
    return {
        number: {**_fields(claim), "method": claim.method}
        for run in registration.runs.values()
        for number, claim in run.claims.items()
    }


def _fields(claim: RegisteredClaim) -> dict[str, Any]:
    """Return the fields of a claim that decide its verdict, except the method.

    The claim's wording and the planned n do not decide the verdict.
    """
    fields = {"quantity", "delta", "of_layers", "unit", "direction", "untrained", "level"}
    return claim.model_dump(mode="json", include=fields)


def _method_differences(before: RegisteredClaim, after: RegisteredClaim, where: str) -> list[str]:
    """Return a message with the number of the first line in which two methods differ; [] if they are equal.

    The message does not quote the methods, because complete methods are too long.
    """
    if before.method == after.method:
        return []
    pairs = zip_longest(before.method.split("\n"), after.method.split("\n"))
    line = next(i for i, (old, new) in enumerate(pairs, 1) if old != new)
    return [f"{where}.method differs from line {line} on"]


def _noted(run: Run) -> tuple[str, str] | None:
    """Return the checksum and the time of the last registration in the log; None if there is none."""
    last = None
    for event in run.events():
        if event.get("event") == "wrote" and event.get("file") == NAME:
            digest = event.get("sha256")
            if isinstance(digest, str):
                last = digest, str(event.get("time", ""))
    return last


def _pinned(run: Run) -> str | None:
    """Return the registration's checksum in run.json; None if it is missing or run.json is damaged."""
    try:
        return run.sources.get(NAME)
    except Unreadable:
        return None


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
        **{name: getattr(rule, name) for name in _OF_RULE},
        study=study.name,
        direction="above" if rule.above else "below",
        claims_in_family=claims_together(rule.family),
        rule=rule.words(),
        method=study.method,
        n=_planned(study, request),
    )


def _planned(study: Study, request: Request) -> dict[str, int]:
    """Return the planned numbers of traced prompts and of questions for a study's claims, by their names."""
    planned = {"prompts traced": request.limit} if study.measures(request) else {}
    settings = [s for s in study.settings(request) if s.decides] or [*study.settings(request)]
    counts = [questions_of(setting, request) for setting in settings]
    counts += [request.questions] if study.experiments(request) else []
    return planned | ({"questions asked": max(counts)} if counts else {})


def _decode(data: bytes, path: Path, kind: type[FloatscopeError]) -> Registration:
    try:
        return Registration.model_validate(parse_object(data))
    except (Malformed, ValidationError) as error:
        why = error.errors()[0] if isinstance(error, ValidationError) else None
        field = ".".join(map(str, why["loc"])) if why else ""
        reason = f"{field:.120}: {why['msg']:.200}" if why else str(error)
        raise kind(
            f"{path} is not a registration that this version can read: {reason}",
            "Use the version that wrote it, or write it again with --register-only.",
        ) from error
