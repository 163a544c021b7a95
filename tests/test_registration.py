"""What is written down before a run: the same bytes each time, hashed into the run, and not changed later."""

import hashlib
import json
import shutil
import sys

import pytest

from floatscope import cli
from floatscope.engine import Run
from floatscope.errors import RunError, UsageError
from floatscope.report.build import render_report
from floatscope.studies import STUDIES, Findings, request_of
from floatscope.studies.registration import (
    NAME,
    STOPPING,
    Registration,
    code_digest,
    digest_sources,
    registration_of,
)
from floatscope.studies.run import run
from floatscope.studies.verdict import claims_together

FIELDS = {"studies": ("floating",), "data": "world:one", "limit": 2, "questions": 2, "length": 4}
FIELDS |= {"steps": 4, "view": 1, "shard": 1, "controls": 0, "chosen_on": "world:two"}


@pytest.fixture(scope="module")
def asked(checkpoints):
    return request_of({**FIELDS, "models": (str(checkpoints["LLaDA"]),)})


@pytest.fixture(scope="module")
def made(asked, tmp_path_factory):
    out = tmp_path_factory.mktemp("registered") / "run"
    run(asked, out)
    return out


@pytest.fixture
def copy(made, tmp_path):
    return shutil.copytree(made, tmp_path / "run")


def rewritten(path, change):
    fields = json.loads(path.read_text())
    change(fields)
    path.write_text(json.dumps(fields))


def registered_anew(directory, change):
    """Change the registration as if the run had been begun with the changed one."""
    rewritten(directory / NAME, change)
    digest = hashlib.sha256((directory / NAME).read_bytes()).hexdigest()
    rewritten(directory / "run.json", lambda f: f["sources"].update({NAME: digest}))
    events = [json.loads(line) for line in (directory / "log.jsonl").read_text().splitlines()]
    for event in events:
        if event["event"] == "wrote":
            event["sha256"] = digest
    (directory / "log.jsonl").write_text("".join(json.dumps(e) + "\n" for e in events))


def without_wrote_event(directory):
    lines = (directory / "log.jsonl").read_text().splitlines(keepends=True)
    (directory / "log.jsonl").write_text("".join(x for x in lines if '"wrote"' not in x))


def test_a_registration_holds_rules_n_stopping_rule_controls_and_settings():
    everything = request_of({"studies": [*STUDIES.builtin], "models": ["pair/mdm"], "controls": 5})
    found = registration_of(everything)
    claims = found.runs["run"].claims
    rules = {r.number: r for name in STUDIES.builtin for r in STUDIES[name].rules}
    methods = {n: STUDIES[name].method for name in STUDIES.builtin for n in STUDIES[name].decides}
    assert claims.keys() == rules.keys()
    for number, claim in claims.items():
        rule = rules[number]
        assert (claim.quantity, claim.delta, claim.unit) == (rule.quantity, rule.delta, rule.unit)
        assert claim.direction == ("above" if rule.above else "below")
        assert claim.level == rule.level and claim.claims_in_family == claims_together(rule.family)
        assert claim.n and claim.rule == rule.words()
        assert claim.method == methods[number] and claim.of_layers == rule.of_layers
    assert (claims["3"].delta, claims["3"].of_layers) == (2, 0.1)
    assert "δ = 2 layers, or 10 % of the layers if that is more." in claims["3"].rule
    assert claims["1"].n == {"prompts traced": everything.limit}
    assert claims["7"].n == {"questions asked": everything.questions}
    assert found.stopping == STOPPING and found.runs["run"].controls.number == 5
    assert found.runs["run"].held_out_questions > 0  # heads are chosen on other questions
    assert Registration.model_validate_json(found.encode()) == found


def test_the_same_request_gives_the_same_bytes(asked):
    assert registration_of(asked).encode() == registration_of(asked).encode()
    again = request_of(asked.as_json())  # as run.json holds it
    assert registration_of(again).encode() == registration_of(asked).encode()
    other = registration_of(asked.model_copy(update={"device": "cpu", "shard": 7}))
    assert other.encode() == registration_of(asked).encode()  # how it is computed is none of it


def test_a_registration_is_written_before_the_first_shard_and_hashed_into_the_run(made, asked):
    data = (made / NAME).read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    assert data == registration_of(asked).encode()
    assert json.loads((made / "run.json").read_text())["sources"][NAME] == digest
    assert json.loads((made / "summary.json").read_text())["registration"] == digest
    order = [e["event"] for e in Run(made).events() if e["event"] in ("wrote", "stored")]
    assert order[0] == "wrote" and order.count("wrote") == 1 and "stored" in order
    found = Findings(made)
    html = render_report(found)
    assert "Registered before the run" in html and digest in html and "world:two" in html
    assert found.registered.written[:10] in html and not found.notes


@pytest.mark.parametrize("how", ["changed", "removed"])
def test_a_registration_that_was_changed_afterwards_is_refused(copy, asked, how):
    if how == "changed":
        rewritten(copy / NAME, lambda f: f["runs"]["run"]["claims"]["1"].update(delta=0.01))
    else:
        (copy / NAME).unlink()
    with pytest.raises(RunError, match=r"registration.json.*Put back the registration.json"):
        Findings(copy)
    with pytest.raises(RunError, match="Put back the registration.json"):
        run(asked, copy)


def test_a_rule_that_differs_from_the_registered_one_is_marked(copy):
    """As after an upgrade: the file is whole, and this version judges otherwise."""
    registered_anew(copy, lambda f: f["runs"]["run"]["claims"]["1"].update(delta=0.01))
    (note,) = Findings(copy).notes
    assert "claim 1.delta is 0.01 there" in note and "Read the run with Floatscope" in note


def test_a_method_that_differs_from_the_registered_one_is_marked(copy):
    def change(fields):
        claims = fields["runs"]["run"]["claims"]
        first, *rest = claims["1"]["method"].split("\n")
        claims["1"]["method"] = "\n".join([first, "at the start alone", *rest])

    registered_anew(copy, change)
    (note,) = Findings(copy).notes
    assert "claim 1.method differs from line 2 on." in note


def test_other_code_than_the_registered_is_marked_in_one_sentence(copy, asked):
    registered_anew(copy, lambda f: f.update(code="f" * 64))
    run(asked, copy)  # it is not refused
    (note,) = Findings(copy).notes
    assert note.startswith("Verdicts here are computed by other code than was registered (sha256 ")
    assert "ffffffffffff… then" in note and code_digest()[:12] in note and note.count(". ") == 0


def test_the_checksum_of_the_code_changes_with_paths_and_bytes_of_its_files(tmp_path, asked):
    assert json.loads(registration_of(asked).encode())["code"] == code_digest()
    for folder in ("one", "two"):
        (tmp_path / folder / "deep").mkdir(parents=True)
    (tmp_path / "one" / "deep" / "a.py").write_text("x = 1")
    first = digest_sources(tmp_path, ("two", "one"))
    (tmp_path / "one" / "notes.txt").write_text("no code")
    assert digest_sources(tmp_path, ("one", "two")) == first
    (tmp_path / "one" / "deep" / "a.py").rename(tmp_path / "two" / "deep" / "a.py")
    moved = digest_sources(tmp_path, ("one", "two"))
    (tmp_path / "two" / "deep" / "a.py").write_text("x = 2")
    assert len({first, moved, digest_sources(tmp_path, ("one", "two"))}) == 3


@pytest.mark.parametrize("damage", ["broken", "removed", "rehashed"])
def test_a_registration_that_differs_from_the_log_is_refused(copy, asked, damage):
    """Whatever is done to run.json, the log says what the run was begun with."""
    before = (copy / NAME).read_bytes()
    rewritten(copy / NAME, lambda f: f["runs"]["run"]["claims"]["1"].update(delta=0.01))
    digest = hashlib.sha256((copy / NAME).read_bytes()).hexdigest()
    if damage == "broken":
        (copy / "run.json").write_text("{broken")
    elif damage == "removed":
        (copy / "run.json").unlink()
    else:
        rewritten(copy / "run.json", lambda f: f["sources"].update({NAME: digest}))
    with pytest.raises(RunError, match=r"log.jsonl says .*Put back the registration.json"):
        run(asked, copy)
    if damage != "rehashed":  # run.json can be written anew
        (copy / NAME).write_bytes(before)
        run(asked, copy)
        assert Findings(copy).registered.data == before


@pytest.mark.parametrize("broken", [False, True])
def test_a_run_whose_log_names_no_registration_is_unregistered(copy, asked, tmp_path, broken):
    earlier = tmp_path / "plan.json"
    earlier.write_bytes((copy / NAME).read_bytes())
    without_wrote_event(copy)
    if broken:
        (copy / "run.json").write_text("{broken")
    with pytest.raises(RunError, match="started without a registration"):
        run(asked, copy, registration=earlier)
    run(asked, copy)
    assert Findings(copy).registered is None
    assert "not registered" in render_report(Findings(copy))


def test_a_kill_between_the_file_and_its_event_leaves_the_run_registered(asked, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / NAME).write_bytes(registration_of(asked).encode())
    run(asked, tmp_path / "run")
    assert Findings(tmp_path / "run").registered is not None


def test_an_earlier_registration_is_used_as_it_stands(asked, tmp_path):
    earlier = tmp_path / "plan.json"
    fields = json.loads(registration_of(asked).encode())
    other = {"floatscope": "0.0.1", "code": "f" * 64}  # by another version
    earlier.write_text(json.dumps({**fields, **other}))
    run(asked, tmp_path / "run", registration=earlier)
    assert (tmp_path / "run" / NAME).read_bytes() == earlier.read_bytes()
    run(asked, tmp_path / "run", registration=earlier)  # goes on
    run(asked, tmp_path / "run")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (
            lambda f: f["runs"]["run"]["claims"]["1"].update(delta=9.0),
            "claims.1.delta is 9.0 there",
        ),
        (lambda f: f["runs"]["run"]["claims"]["1"].update(n={"prompts traced": 99}), "99 there, 2"),
        (
            lambda f: f["runs"]["run"]["claims"]["1"].update(method="at the start"),
            "claims.1.method differs from line 1 on",
        ),
        (
            lambda f: f["runs"]["run"]["claims"]["1"].update(of_layers=0.5),
            "claims.1.of_layers is 0.5 there, 0.0",
        ),
        (lambda f: f["runs"]["run"]["controls"].update(number=5), "controls.number is 5 there, 0"),
        (lambda f: f["runs"]["run"]["settings"].update(steps=64), "settings.steps is 64 there, 4"),
        (lambda f: f.update(stopping="when it holds"), 'stopping is "when it holds" there'),
    ],
)
def test_a_registration_that_differs_from_the_request_is_refused_by_field(
    asked, tmp_path, change, named
):
    earlier = tmp_path / "plan.json"
    earlier.write_bytes(registration_of(asked).encode())
    rewritten(earlier, change)
    with pytest.raises(UsageError, match="differs from the requested run") as error:
        run(asked, tmp_path / "run", registration=earlier)
    assert named in str(error.value) and not (tmp_path / "run").exists()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"floatscope": 1}', None])
def test_a_file_that_is_no_registration_is_refused(asked, tmp_path, text):
    earlier = tmp_path / "plan.json"
    if text is not None:
        earlier.write_text(text)
    with pytest.raises(UsageError, match=r"--register-only"):
        run(asked, tmp_path / "run", registration=earlier)


def test_a_run_started_without_a_registration_cannot_be_registered_later(copy, asked, tmp_path):
    rewritten(copy / "run.json", lambda f: f["sources"].pop(NAME))
    (copy / NAME).unlink()
    without_wrote_event(copy)
    run(asked, copy)
    assert not (copy / NAME).exists() and Findings(copy).registered is None
    assert "not registered" in render_report(Findings(copy))
    earlier = tmp_path / "plan.json"
    earlier.write_bytes(registration_of(asked).encode())
    with pytest.raises(RunError, match="started without a registration.*--overwrite"):
        run(asked, copy, registration=earlier)
    run(asked, copy, registration=earlier, overwrite=True)
    assert Findings(copy).registered is not None


def test_the_command_line_registers_first_and_runs_later(asked, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = (
        f"study floating --model {asked.models[0]} --data world:one --limit 2 --length 4 --steps 4"
    )
    words += " --controls 0 --set shard=2 --workers 1 --view 1"

    def call(more):
        with pytest.raises(SystemExit) as ended:
            monkeypatch.setattr(sys, "argv", ["floatscope", *words.split(), *more.split()])
            cli.main()
        return ended.value.code or 0

    assert call("--register-only plans/plan.json") == 0 and not (tmp_path / "run").exists()
    assert call("--registration plans/plan.json --limit 3 --out run") == 2
    assert not (tmp_path / "run").exists()
    assert call("--registration plans/plan.json --out run") == 0
    data = (tmp_path / "plans" / "plan.json").read_bytes()
    assert (tmp_path / "run" / NAME).read_bytes() == data
