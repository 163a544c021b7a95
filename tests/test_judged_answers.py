"""Answers that a reader can judge: gold, cut off or not, why right; gold that seems to hold several."""

import json

import numpy as np
import pandas as pd
import pytest
from test_knowledge import Planted, share, table

import floatscope as fs
from floatscope.report.build import write_report
from floatscope.studies import Findings, request_of
from floatscope.studies.library.knowledge import WITH
from floatscope.studies.library.robustness import Robustness
from floatscope.tasks import cut, read_records
from floatscope.tasks.alternatives import alternatives


@pytest.fixture(scope="module")
def asked(checkpoints, tmp_path_factory):
    """A run over a file of questions, one of whose gold answers is two; untrained models never end."""
    from floatscope.studies.run import run

    folder = tmp_path_factory.mktemp("asked")
    rows = [
        {"question": f"When was <b>{i}</b>?", "answers": [gold], "passages": [f"{i}.", "No."]}
        for i, gold in enumerate(["1984 or 1985", "Trinidad and Tobago", "AC/DC"])
    ]
    (folder / "q.jsonl").write_text("\n".join(map(json.dumps, rows)))
    fields = {"studies": ["knowledge"], "data": str(folder / "q.jsonl"), "length": 2, "view": 0}
    fields |= {"questions": 3, "limit": 2, "controls": 0, "models": [str(checkpoints["Llama"])]}
    _, findings = run(request_of(fields), folder / "run")
    return findings


def test_the_page_shows_each_answer_with_its_gold_and_end(asked, browser):
    page = browser.new_page()
    page.goto(write_report(asked).as_uri())
    answers = pd.read_parquet(asked.run.directory / "results/answers.parquet")
    assert answers["cut"].mean() > 0.5 and set(answers["gold"]) >= {"AC/DC", "1984 or 1985"}
    fold = page.locator("details.answers")
    fold.locator("summary").click()
    assert "When was <b>0</b>?" in fold.inner_text()  # text, never markup
    assert "gold: Trinidad and Tobago" in fold.inner_text()
    rows = fold.locator("tbody tr:not(.asked)")
    assert rows.count() == 3 * 2  # closed-book and with passages
    shown = rows.nth(0).locator("td").all_inner_texts()
    first = answers.iloc[0]
    assert shown[3] == ("cut off" if first["cut"] else "yes")
    assert shown[4].startswith("✓" if first["contains"] else "✗")
    fold.locator(".filter").fill("tobago")
    assert fold.locator("tbody:visible").count() == 1
    assert fold.locator(".found").inner_text() == "1 of 3"
    assert "most answers were cut off" in page.locator("header .warning").inner_text()
    notes = page.locator(".notes").inner_text()
    assert "1 of 3 records have a gold answer that seems to hold several" in notes
    assert "most answers were cut off" not in notes  # said once, before the claims
    page.close()


def test_evaluate_prints_and_saves_what_a_reader_needs(command_line, pair_kept, tmp_path):
    rows = [
        {"question": "Who?", "answers": ["a [b] or c"], "passages": ["It is so."]},
        {"question": "What?", "answers": ["the"], "passages": ["It is so."]},
    ]
    (tmp_path / "q.jsonl").write_text("\n".join(map(json.dumps, rows)))
    flags = f"evaluate --model pair/arm --data {tmp_path / 'q.jsonl'} --length 2".split()
    flags += ["--format", "parquet", "--out"]
    done = command_line(*flags, tmp_path / "a")
    assert "gold: a [b] or c" in done.stdout and "ended" in done.stdout
    assert "1 of 2 records have a gold answer that seems to hold several" in done.stderr
    frame = pd.read_parquet(tmp_path / "a" / "answers.parquet")
    assert [list(gold) for gold in frame["answers"]] == [["a [b] or c"], ["the"]]
    for row in frame.itertuples():
        assert bool(row.counted) == bool(row.contains)
    split = command_line(*flags, tmp_path / "b", "--split-alternatives", "--examples", 0)
    assert "seems to hold several" not in split.stderr and "gold:" not in split.stdout
    gold = pd.read_parquet(tmp_path / "b" / "answers.parquet")["answers"]
    assert list(gold[0]) == ["a [b] or c", "a [b]", "c"] and list(gold[1]) == ["the"]


@pytest.mark.parametrize(
    ("answer", "parts"),
    [
        ("1984 or 1985", ("1984", "1985")),
        ("colour; color", ("colour", "color")),
        ("movie / film", ("movie", "film")),
        ("movie/film", ("movie", "film")),
        ("red, green, or blue", ("red, green", "blue")),
        ("Trinidad and Tobago", ()),
        ("AC/DC", ()),
        ("24/7", ()),
        ("80 km/h", ()),
        ("or else", ()),
        ("Oregon", ()),
        ("x; ?", ()),
    ],
)
def test_gold_answers_with_alternatives_are_split_into_their_parts(answer, parts):
    assert alternatives(answer) == parts


def test_nothing_is_split_unless_asked(tmp_path):
    file = tmp_path / "q.jsonl"
    file.write_text('{"question": "When?", "answers": ["1984 or 1985", "1985"]}')
    found = read_records(file)
    assert found.records[0].answers == ("1984 or 1985", "1985")
    assert "1 of 1 records" in found.alternatives and "line 1: '1984 or 1985'" in found.alternatives
    split = read_records(file, split_alternatives=True)
    assert split.records[0].answers == ("1984 or 1985", "1985", "1984") and not split.alternatives
    assert fs.tasks.contains("It was 1984.", split.records[0].answers) == 1


def test_further_runs_split_answers_as_the_run_does():
    fields = {"studies": ["floating"], "models": ["a"], "extra_runs": [{"data": "b.jsonl"}]}
    stored = request_of(fields).as_json()
    assert not stored["split_alternatives"] and not stored["extra_runs"][0]["split_alternatives"]
    split = request_of(fields | {"split_alternatives": True}).as_json()
    assert split["split_alternatives"] and split["extra_runs"][0]["split_alternatives"]


def test_claims_on_mostly_cut_answers_have_no_verdict():
    """With all attention they must come to their end; with less of it, not ending is an effect."""
    hidden = [s.name for s in Robustness().settings(Planted.request) if s.name != WITH]
    more = {"masks": np.full(200, 16), "known": np.full(200, None)}

    def planted(base, other):
        return Planted(
            {
                (s, m): table(
                    share(0.9 if s == WITH else 0.5),
                    cut=share(base if s == WITH else other),
                    **more,
                )
                for s in (WITH, *hidden)
                for m in ("mdm", "arm")
            }
        )

    def claim(evidence):
        evidence.hidden = lambda setting, model: (0.3, 5.0)
        return Robustness().claims(evidence)[0]

    barred = claim(planted(0.6, 0.0))
    assert barred.verdict == "not testable" and "120 of 200 answers were cut off" in barred.why
    assert "--length" in barred.why
    assert {v.verdict for v in barred.variants} == {"not testable"}
    assert claim(planted(0.4, 1.0)).verdict != "not testable"


def test_long_answers_count_as_cut_only_before_a_right_answer():
    """A sentence that was cut off after it gave the answer is right all the same."""
    assert cut.in_doubt([True, True, False, None], [1.0, 0.0, 0.0, 0.0]) == [
        False,
        True,
        False,
        None,
    ]
    columns = {"cut": share(0.9), "masks": np.full(200, 16), "known": np.full(200, None)}

    def evidence(data, right):
        planted = Planted({(WITH, "mdm"): table(share(right), **columns)})
        planted.request = request_of({"studies": ["knowledge"], "models": ["mdm"], "data": data})
        return planted.cut_off((WITH,), "mdm")

    assert "180 of 200" in evidence("world:nine", 0.6)
    assert evidence("long:answer", 0.6) == ""  # 60 of 200 in doubt
    assert "180 of 200" in evidence("long:answer", 0.2)  # 140


def test_a_run_without_gold_in_its_answers_is_still_shown(asked, monkeypatch):
    """Without gold in its rows there is nothing to judge by, and the page is made all the same."""
    from floatscope.report.examples import examples_of

    old = Findings(asked.run.directory)
    right = old.answers
    monkeypatch.setattr(
        old,
        "answers",
        lambda *a: {k: v for k, v in (right(*a) or {}).items() if k != "gold"} or None,
    )
    assert examples_of(old.studies[0], old) is None and examples_of(asked.studies[0], asked)
