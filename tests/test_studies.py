"""Studies end to end: from a request to verdicts and a page, on small models in real formats."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from browsing import Tab
from figure_sizes import texts_outside
from latex_tables import assert_sound

import floatscope as fs
from floatscope.decode.presets import all_samplers, presets
from floatscope.errors import RunError, UsageError
from floatscope.models import tiny
from floatscope.plots.drawing import figure_size
from floatscope.studies import STUDIES, Findings, batching, read_request, request_of
from floatscope.studies.claim import Number, format_number, format_value, lies_above, lies_below
from floatscope.studies.demo import DEMO
from floatscope.studies.library.robustness import ANCHORS, DOSES, RANDOM, setting_name
from floatscope.studies.numbers import overall
from floatscope.studies.planning import measures_of, plan, settings_of
from floatscope.studies.run import run
from floatscope.studies.study import by_default
from floatscope.studies.worker import make

NASTY = "<script>alert(1)</script>"
IMAGE = '"><img src=x onerror=alert(2)>'


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "questions.jsonl"
    rows = [
        {
            "question": f"What is number {i}? {NASTY}",
            "answers": [f"word{i}"],
            "passages": [f"Nothing is {i}. {IMAGE}", f"Number {i} is word{i}.", "Else, much."],
            "gold": 1,
        }
        for i in range(8)
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


@pytest.fixture(scope="module")
def request_(checkpoints, data):
    return small(checkpoints, data)


def small(checkpoints, data, **more):
    fields = {
        "studies": by_default(),
        "models": (str(checkpoints["LLaDA"]), str(checkpoints["Llama"])),
        "data": str(data),
        "limit": 3,  # more than one shard, the last one short
        "questions": 3,
        "asked_as": "passages=3",
        "length": 8,
        "steps": 4,
        "view": 1,
        "shard": 2,
    }
    return request_of(fields | more)


@pytest.fixture(scope="module")
def finished(request_, tmp_path_factory):
    out = tmp_path_factory.mktemp("run")
    summary, found = run(request_, out)
    assert summary.computed == summary.shards == len(plan(request_).shards)
    return found


def produced(directory):
    """Everything that must not depend on how a run went."""
    directory = Path(directory)
    files = [
        *directory.glob("shards/*.shard"),
        *directory.glob("results/*"),
        directory / "summary.json",
    ]
    assert {f.suffix for f in files} == {".shard", ".parquet", ".json"}
    return {str(f.relative_to(directory)): f.read_bytes() for f in files}


def test_every_study_has_a_question_and_a_method():
    for name, study in STUDIES.items():
        assert study.name == name and study.question.endswith("?") and study.method


def test_every_claim_of_the_list_is_answered(finished):
    claims = [c for name in by_default() for c in STUDIES[name].claims(finished)]
    listed = ["1", "2", "4", "3", "5", "6a", "6b", "7", "8", "9a", "9b", "9c", "10a", "10b"]
    untestable = {"2", "3", "4", "5", "7", "8", "9a", "9b", "9c"}
    assert [c.number for c in claims] == listed
    for claim in claims:
        assert claim.plain.endswith(".") and claim.why.endswith(".") and claim.rule, claim
        # Random models answer nothing right, and shortly: nothing to lose, to win, or to watch.
        assert claim.verdict != "not testable" or claim.number in untestable, claim
        assert all(np.isfinite(n.value) for n in claim.numbers)
        assert claim.variants and claim.verdict != "holds"
    summary = json.loads((finished.run.directory / "summary.json").read_text())
    in_order = ["1", "2", "3", "4", *listed[4:]]
    assert [c["number"] for c in summary["claims"]] == in_order


def test_a_reader_can_judge_every_answer(finished):
    table = finished.tables["answers"]
    assert set(table["gold"]) == {"word0", "word1", "word2"}
    assert (table["counted"].astype(bool) == (table["contains"] == 1)).all()


def test_the_attention_that_was_removed_is_in_the_evidence(finished):
    for model in finished.models:
        for dose in DOSES:
            for kind in (ANCHORS, RANDOM):
                share, columns = finished.hidden(setting_name(dose, kind), model)
                assert 0 < share <= dose + 1e-6 and columns >= 1
        assert finished.hidden("with-passages", model) is None
        assert any(
            line.startswith(f"{model}: ") and "points of attention taken from anchors" in line
            for line in finished.sentences["robustness"]
        )


def test_tables_are_tidy_and_complete(finished):
    import pandas as pd

    folder = finished.run.directory / "results"
    names = {path.stem for path in folder.glob("*.parquet")}
    assert names == {*measures_of(finished.request), "answers", "decoding-order"}
    absorption = pd.read_parquet(folder / "absorption.parquet")
    assert {"model", "measure", "value", "mean", "null", "lift", "low", "high", "unit", "n"} <= {
        *absorption.columns
    }
    answers = pd.read_parquet(folder / "answers.parquet")
    assert set(answers["setting"]) == set(settings_of(finished.request))
    assert (answers.groupby(["model", "setting"]).size() == 3).all()


def test_findings_are_those_of_the_measures(finished, models, data):
    """What came through the shards is what measuring the same traces here gives."""
    records = fs.tasks.read_records(data).records[:3]
    from floatscope.tasks import PlainTemplate

    model = models["LLaDA"]
    sampler = fs.Confidence(length=8, steps=4)
    traces = [model.trace(PlainTemplate().prompt(r), sampler) for r in records]
    for key in ("absorption", "dispersion", "retrieval-heads", "region-flow"):
        measure = measures_of(finished.request)[key]
        here, there = measure(traces), finished.result(key, finished.mdm)
        for value in here.values:
            np.testing.assert_allclose(here[value], there[value], rtol=1e-4, atol=1e-6, err_msg=key)


KILLED_AT_FIVE = """
import json, os, signal, sys
from floatscope.studies import request_of
from floatscope.studies.run import run

def watch(state):
    if state.completed == 5:
        os.killpg(0, signal.SIGKILL)

if __name__ == "__main__":
    run(request_of(json.load(open(sys.argv[1]))), sys.argv[2], workers=2, progress=watch)
"""


def test_results_do_not_depend_on_workers_or_interruptions(checkpoints, data, tmp_path):
    """Driver and two workers killed with -9 when five shards are stored, then resumed: the same bytes."""
    out, fields = tmp_path / "out", tmp_path / "request.json"
    request = small(
        checkpoints, data, studies=("knowledge", "dormancy"), limit=2, questions=2, view=1, shard=1
    )
    fields.write_text(request.model_dump_json())
    run(request, tmp_path / "whole")
    script = tmp_path / "go.py"
    script.write_text(KILLED_AT_FIVE)
    process = subprocess.Popen([sys.executable, script, fields, out], start_new_session=True)
    assert process.wait() == -signal.SIGKILL
    with pytest.raises(RunError, match="not finished"):
        Findings(out)
    one = sorted((out / "shards").glob("*.shard"))[0]
    one.write_bytes(one.read_bytes()[:-7])  # and one shard cut short
    summary, _ = run(request, out)
    assert summary.reused == 4 and list(summary.redone) == [one.stem]
    assert produced(out) == produced(tmp_path / "whole")
    again, _ = run(request, out)
    assert again.computed == 0


def test_another_request_is_refused(checkpoints, data, finished):
    other = small(checkpoints, data, seed=1)
    with pytest.raises(RunError, match="seed"):
        run(other, finished.run.directory)


def test_bad_records_are_listed(checkpoints, data, tmp_path):
    broken = tmp_path / "q.jsonl"
    long = {"question": "Long?", "answers": ["x"], "passages": ["word " * 9000], "gold": 0}
    lines = data.read_text().splitlines()
    broken.write_text("\n".join([json.dumps(long), *lines]))
    request = small(checkpoints, broken, studies=("knowledge",), asked_as="as-is", view=0)
    with pytest.raises(UsageError, match="line 1"):
        run(request, tmp_path / "a")
    kept = small(
        checkpoints, broken, studies=("knowledge",), asked_as="as-is", view=0, skip_bad=True
    )
    summary, found = run(kept, tmp_path / "b")
    assert any("exceed the context" in str(one) for one in summary.left_out)
    assert len(found.answers("with-passages", found.arm)["id"]) == 2


class Roomy(batching.Gpu):
    """A device on which everything fits."""

    def free(self):
        return 10**12

    def begin(self, *, anew):
        pass

    def peak_bytes(self):
        return 1


def test_batched_traces_give_the_values_of_single_traces(checkpoints, data, tmp_path, monkeypatch):
    """The same numbers, and an example that cannot be traced takes no other with it."""
    from floatscope.studies.worker import make

    broken = tmp_path / "q.jsonl"
    long = {"question": "Long?", "answers": ["x"], "passages": ["word " * 9000], "gold": 0}
    lines = data.read_text().splitlines()
    broken.write_text("\n".join([lines[0], json.dumps(long), *lines[1:]]))
    outputs = []
    for together in (1, 3, "auto"):
        request = small(
            checkpoints, broken, studies=("floating",), view=1, batch=together,
            dtype="float64", skip_bad=True, limit=5,
        )  # fmt: skip
        if together == "auto":  # as on a GPU
            monkeypatch.setattr(batching, "devices", lambda net: [torch.device("cuda")])
            monkeypatch.setattr(batching, "Gpu", Roomy)
        ticks = []
        spec = {"kind": "trace", "model": request.models[0], "domain": "questions"}
        spec |= {"start": 0, "stop": 5}
        output = make(request.as_json(), {})(spec, lambda *at, ticks=ticks: ticks.append(at))
        assert ticks and all(done <= of == 5 for done, of in ticks)
        outputs.append(output)
    assert [one.meta.pop("batches", None) for one in outputs] == [None, None, [1, 1, 2]]
    alone = outputs[0]
    assert [e["index"] for e in alone.meta["examples"]] == [0, 2, 3, 4]
    for output in outputs:
        (left,) = output.meta["left_out"]
        assert left["what"] == "example 1" and "exceed the context" in left["why"]
        assert alone.meta.keys() == output.meta.keys()
        texts = [[e["text"] for e in one.meta["examples"]] for one in (alone, output)]
        assert texts[0] == texts[1]
        expected, stored = by_variable(alone), by_variable(output)
        assert expected.keys() == stored.keys()
        for name, array in expected.items():
            if array.dtype.kind == "f":
                finite = np.abs(array[np.isfinite(array)])
                scale = max(
                    1.0, finite.max(initial=0)
                )  # differences of large numbers keep their error
                np.testing.assert_allclose(
                    stored[name], array, rtol=1e-6, atol=1e-6 * scale, err_msg=name
                )
            else:  # tokens, positions, anchors
                np.testing.assert_array_equal(stored[name], array, err_msg=name)


def by_variable(output):
    """Return every array of a shard under its dataset's name and its own."""
    return {
        f"{name}/{variable}": array.values
        for name, data in output.data.items()
        for variable, array in data.variables.items()
    }


@pytest.fixture(scope="module")
def page(finished):
    """Written, with its figures, by a process that must not import torch."""
    code = (
        "import sys; from floatscope.studies.findings import Findings; "
        "from floatscope.report.build import write_report; "
        f"found = Findings({str(finished.run.directory)!r}); "
        "print(write_report(found)); "
        "from floatscope.report.paper import TABLES, write_paper; "
        "write_paper(found, tables=list(TABLES)); "
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


def test_the_page_is_written_without_torch(page):
    assert "The viewer shows 1 of 3 traced examples" in page.read_text()


def test_the_tables_of_a_paper_hold_the_numbers_of_the_page(page, finished):
    """In csv, parquet and LaTeX: claims, answers and means as summary.json and the sentences have them."""
    folder = page.parent / "paper" / "tables"
    summary = finished.summary()
    claims = pd.read_csv(folder / "claims.csv", dtype={"claim": str})
    for claim in summary["claims"]:
        rows = claims[claims["claim"] == claim["number"]]
        assert set(rows["verdict"]) == {claim["verdict"]}
        for row, number in zip(rows.to_dict("records"), claim["numbers"], strict=False):
            scale = 100 if number["unit"] in ("%", "points") else 1
            assert row["value"] == pytest.approx(scale * number["value"])
            assert row["quantity"] == number["label"]
    answers = pd.read_csv(folder / "answers.csv").set_index(["setting", "model"])
    right = {(s, m): n for s, by in summary["right"].items() for m, n in by.items()}
    assert set(answers.index) == set(right)
    for place, number in right.items():
        for end in ("value", "low", "high"):
            assert answers.loc[place, end] == pytest.approx(100 * number[end])
        assert answers.loc[place, "unit"] == "%" and answers.loc[place, "n"] == number["n"]
    means = pd.read_parquet(folder / "absorption-same.parquet")
    assert set(means["weights"]) == {"trained", "permuted"}
    own = means.query("weights == 'trained' and quantity == 'first'").set_index("model")
    for model in finished.models:
        number = overall(finished.result("absorption-same", model), "first", "", "share")
        assert (own.loc[model, "value"], own.loc[model, "n"]) == (number.value, number.n)
    sources = {path.stem: path.read_text() for path in folder.glob("*.tex")}
    assert set(sources) == {path.stem for path in folder.glob("*.csv")} > {"claims", "drift"}
    for source in sources.values():
        assert_sound(source)
    overview = (page.parent / "paper" / "overview.tex").read_text()
    assert all(f"\\input{{tables/{name}}}" in overview for name in sources)


def test_references_are_those_of_what_was_run(page):
    text = (page.parent / "paper" / "references.bib").read_text()
    for key, reason in {
        "nie2025llada": "model .*: LLaDA",
        "touvron2023llama": "model .*: Llama",
        "wu2024retrieval": "measure RetrievalHeads",
        "rulli2025sinks": "intervention weaken-columns",
        "huang2025pcsampler": "sampler position-calibrated",
        "floatscope": "",
    }.items():
        assert re.search(rf"{reason}[^@]*@\w+{{{key},", text), key
    assert "allal2025smollm2" not in text and "yang2025qwen3" not in text


def test_figures_of_answers_fit_a_column_of_a_paper(finished):
    from floatscope.report.build import pictures_of

    answers = ("knowledge", "decoding")
    drawn = [picture for picture in pictures_of(finished) if picture.name.startswith(answers)]
    assert len(drawn) >= 2
    for picture in drawn:
        with figure_size(width=3.3, font_size=8):
            figure = picture.draw()
        assert figure.get_figwidth() == 3.3 and not texts_outside(figure), picture.name


def test_hostile_text_of_a_data_file_stays_text_on_the_page(page, browser):
    """From a data file through the run into the page, in a browser."""
    with Tab(browser, page.as_uri()) as tab:
        assert all(url.startswith("file:") for url in tab.asked_for())
        # Figures are images; none but they is made, and each holds its own drawing.
        assert tab.page.locator("img").count() == tab.page.locator("figure img").count()
        assert tab.page.locator("img:not([src^='data:image/svg+xml'])").count() == 0
        assert "script" in tab.page.locator(".fsv").first.inner_text()


def test_a_served_run_reads_its_kept_traces(finished):
    from floatscope.report.build import source_of

    source = source_of(Path(finished.run.directory))
    index = source.index()
    scenes = [scene for example in index["examples"] for scene in example["scenes"]]
    assert len(scenes) == 2  # one example, two models
    assert source.scene(scenes[0]["id"])["answer"] is not None


def test_numbers_are_formatted_with_their_intervals():
    n = Number("x", 0.5, 0.4, 0.6, 0.1, "%", 9)
    assert (
        lies_above(n, 0.3)
        and not lies_above(n, 0.45)
        and lies_below(n, 0.7)
        and not lies_below(n, 0.55)
    )
    assert lies_above(Number("x", 0.5), 0.1) is None and lies_above(n, None) is None
    assert format_number(n) == "50.0 % [40.0, 60.0] (null 10.0 %)"
    assert format_number(Number("x", 0.5, 0.4, 0.6, 0.0, "points")) == "50.0 points [40.0, 60.0]"
    assert format_value(-0.25, "points") == "−25.0 points" and format_value(float("nan")) == "–"
    assert format_value(123456.0) == "123,000" and format_value(2.5, "×") == "2.50×"


def test_requests_are_validated(tmp_path):
    base = {"studies": ["floating"], "models": ["pair/mdm"]}
    for more, says in {
        "limit: Input should be greater": {"limit": 1},
        "nothing: Extra inputs": {"nothing": 1},
        "a model is named twice": {"models": ["a", "a"]},
        "unknown setting 'five' in the condition 'five'": {"asked_as": "five"},
    }.items():
        with pytest.raises(UsageError, match=more):
            request_of(base | says)
    with pytest.raises(UsageError, match="no study 'none'"):
        plan(request_of(base | {"studies": ["none"]}))
    written = {
        "a.toml": 'studies = ["floating"]\nmodels = ["pair/mdm"]\nlimit = 4\n',
        "a.yaml": "studies: [floating]\nmodels: [pair/mdm]\nlimit: 4\n",
        "a.json": json.dumps(base | {"limit": 4}),
    }
    for name, text in written.items():
        (tmp_path / name).write_text(text)
        assert request_of(read_request(tmp_path / name)).limit == 4
    (tmp_path / "bad.toml").write_text("limit = ")
    with pytest.raises(UsageError, match="bad.toml cannot be read"):
        read_request(tmp_path / "bad.toml")
    (tmp_path / "list.yaml").write_text("- 1")
    with pytest.raises(UsageError, match="contains no fields"):
        read_request(tmp_path / "list.yaml")


def test_the_demo_is_a_request_with_every_preset():
    request = request_of({"studies": by_default(), **DEMO})
    assert len(plan(request).shards) > 50
    for length, steps in ((8, 4), (7, None), (16, None), (9, 3)):
        assert list(presets(length, steps)) == list(all_samplers(length, steps))


def test_small_models_are_kept_between_shards_and_large_ones_are_not(checkpoints, monkeypatch):
    from floatscope.studies import kept_models

    asked = [(str(checkpoints["LLaDA"]), control) for control in (None, 0, None, 0)]
    loaded = []
    load = kept_models.load
    monkeypatch.setattr(
        kept_models, "load", lambda name, **how: loaded.append(how) or load(name, **how)
    )
    kept = kept_models.KeptModels()
    models = [kept.get(name, "cpu", "float32", control) for name, control in asked]
    assert len(loaded) == 2 and models[0] is models[2] and models[1] is models[3]
    assert models[0].fingerprint != models[1].fingerprint
    size = sum(p.numel() * p.element_size() for p in models[0].net.parameters())
    monkeypatch.setattr(kept_models, "ROOM", size * 3 // 2)
    alone = kept_models.KeptModels()
    for name, control in [*asked, (asked[0][0], 1), *asked]:
        alone.get(name, "cpu", "float32", control)
        assert len(alone.models) <= 2  # the trained model, and one control
    assert len(loaded) == 4
    other = (str(checkpoints["Llama"]), "cpu", "float32", None)
    alone.get(*other)
    assert list(alone.models) == [other]


def test_a_refilled_control_equals_a_loaded_one(checkpoints, monkeypatch):
    from floatscope.studies import kept_models

    where = str(checkpoints["LLaDA"]), "cpu", "float32"
    loaded = kept_models.KeptModels()
    monkeypatch.setattr(kept_models, "ROOM", 1)
    refilled = kept_models.KeptModels()
    refilled.get(*where, None)
    first = refilled.get(*where, 0)
    for seed in (1, 0, 2):
        made, right = refilled.get(*where, seed), loaded.get(*where, seed)
        assert made.name == right.name and made.fingerprint == right.fingerprint
        pairs = zip(made.net.parameters(), right.net.parameters(), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)
    assert not hasattr(first, "net")  # not another control's weights by mistake


def test_a_run_loads_a_large_model_and_its_control_once(tmp_path, monkeypatch):
    from floatscope.studies import kept_models

    model = tiny.write("LLaDA", tmp_path / "model", tiny.Shape(context=1024))
    fields = {"studies": ["floating"], "models": [str(model)], "data": "world:one", "limit": 4}
    fields |= {"shard": 2, "controls": 2, "length": 4, "steps": 2, "view": 0, "questions": 2}
    loaded, load = [], kept_models.load
    monkeypatch.setattr(kept_models, "ROOM", 1)
    monkeypatch.setattr(
        kept_models, "load", lambda name, **how: loaded.append(how) or load(name, **how)
    )
    request = request_of(fields)
    work = make(request.model_dump(mode="json"), {})
    for shard in plan(request).shards:
        if shard.spec["kind"] == "trace":
            work(shard.spec, lambda done, of: None)
    assert [how.get("seed") for how in loaded] == [None, 0]
