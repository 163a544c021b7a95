"""Every `floatscope …` line of the documentation runs, as it stands, and ends well.

"As it stands" but for its numbers: where a line says how many questions to take, how many tokens to write or
in how many steps, it is a few; and studies go without the untrained control, which test_control.py has.
Each runs in a folder of its own that holds what the line names and nothing else: checkpoints of the
right family with random weights (of the embedded pair the first layers), few and short questions, and
runs that are finished where the text comes after a run. A name that is not in MADE fails: the
documentation is then ahead of this file.
Lines for Ray find their run finished, so no cluster is needed; `test_engine.py` has Ray itself. Lines
that name the real model are run by test_real_model.py, which loads it once. Scripts are not run: bash
reads them, and every command of theirs must be one that the command line would begin.
"""

import contextlib
import gzip
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
import tomllib
import urllib.request
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from floatscope import cli
from floatscope.decode import SAMPLERS
from floatscope.interventions import INTERVENTIONS
from floatscope.livepage import serve as livepage
from floatscope.measures import MEASURES
from floatscope.models import FAMILIES, tiny
from floatscope.report import serve
from floatscope.studies import STUDIES, request_of

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
SCRIPTS = sorted(
    p for f in ("runs", "examples") for p in (ROOT / f).rglob("*") if p.suffix in (".sh", ".sbatch")
)
SHELL = ("|", "||", "&&", ";", "&", ">", ">>", "<")
SMALL = {"limit": 2, "questions": 2, "length": 4, "steps": 2, "view": 1}
SMALL |= {"controls": 0}  # test_control.py has the untrained control
FEW = ["retrieval", "knowledge"]  # a study of traces and one of answers, for the long list


def blocks(kind):
    """Text of every fenced block of a kind, with its page."""
    for page in PAGES:
        for block in re.findall(rf"^```{kind}\n(.*?)^```", page.read_text(), re.M | re.S):
            yield page.relative_to(ROOT), block


def commands():
    """Every line that starts floatscope, without its comment, once."""
    found = {}
    for page, block in blocks("bash"):
        for line in re.sub(r"\\\n\s*", " ", block).splitlines():
            words = shlex.split(line, comments=True)
            if words and words[0] == "floatscope":
                found.setdefault(tuple(words[1:]), page)
            elif words[:3] != ["python", "-m", "floatscope.harness"]:  # that is test_harness.py's
                assert "floatscope" not in words, f"{page}: this test would miss {line!r}"
    return found


COMMANDS = commands()


# What lines name: each maker is given the path to make.


def checkpoint(family):
    """Random weights in the family's format, with room for long prompts of single bytes."""
    shape = tiny.Shape(layers=2, width=16, heads=2, kv_heads=2, ffn=16, context=4096)
    return lambda path: tiny.write(family, path, shape)


def questions(path):
    """Natural Questions with passages cut short, in a file as published."""
    rows = (ROOT / "tests" / "data" / "nq-open-oracle.jsonl").read_text().splitlines()
    lines = []
    for i, line in enumerate(rows[:6]):  # as many as five passages for one of them need
        row = json.loads(line)
        gold = {"title": f"Page {i}", "text": f"It is {row['answers'][0]}.", "isgold": True}
        row["ctxs"] = [gold]
        lines.append(json.dumps(row))
    text = "\n".join(lines).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)


def prompts(path):
    path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in ("Hello", "Who?")))


def corpus(path):
    text = b"Jane Austen wrote Emma, and the rest of it.\n" * 20
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)


def traces(path):
    """Two saved traces of one prompt."""
    for family in ("LLaDA", "Llama"):
        model = checkpoint(family)(path.parent / f"{path.name}-{family}")
        words = ["trace", "--model", str(model), "--prompt", "Who?", "--length", "4"]
        call([*words, "--out", str(path / f"{family}.zarr")])


def config(path):
    """The block of the documentation that opens with the file's name, checked, then made small."""
    found = [b for _, b in blocks("toml") if b.startswith(f"# {path.name}\n")]
    assert len(found) == 1, f"{len(found)} blocks are called {path.name}"
    fields = tomllib.loads(found[0])
    request_of(fields, path.name)
    fields |= SMALL
    if len(fields["studies"]) > len(FEW):
        fields["studies"] = FEW
    small = {k: json.dumps(v) for k, v in fields.items()}
    path.write_text("".join(f"{k} = {v}\n" for k, v in small.items()))


def plugin(path):
    """The file that docs/how-to/extending.md builds up."""
    text = (ROOT / "docs" / "how-to" / "extending.md").read_text().partition("\n## In Python")[0]
    path.write_text("\n".join(re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)))


def finished_run(path):
    """What a study of the documentation leaves behind."""
    ((words, names),) = {
        words: named(words)
        for words in COMMANDS
        if words[0] == "study" and words[-2:] == ("--out", path.name)
    }.items()
    for name in names:
        if not (path.parent / name).exists():
            MADE[name](path.parent / name)
    with contextlib.chdir(path.parent):
        call(few(words))


def frequencies(path):
    model, text = path.with_suffix(".model"), path.with_suffix(".txt")
    checkpoint("LLaDA")(model)
    corpus(text)
    call(["frequencies", "--model", str(model), "--out", str(path), str(text)])


MADE = {
    "LLaDA-8B-Instruct": checkpoint("LLaDA"),
    "Llama-3.1-8B-Instruct": checkpoint("Llama"),
    "M": checkpoint("LLaDA"),
    "nq.jsonl.gz": questions,
    "prompts.jsonl": prompts,
    "corpus.txt": corpus,
    "wiki.txt.gz": corpus,
    "llada.npy": frequencies,
    "emma": traces,
    "traces": traces,
    "study.toml": config,
    "pair.toml": config,
    "my_plugin.py": plugin,
    "run": finished_run,
    "ends": finished_run,
    "gains": finished_run,
}
# What a file names in turn.
NEEDS = {
    "study.toml": ["LLaDA-8B-Instruct", "Llama-3.1-8B-Instruct", "nq.jsonl.gz", "llada.npy"],
    "pair.toml": [],
}


def named(words):
    """What a line reads, as its words call it."""
    found = []
    for option, value in pairwise(words):
        if option in ("--model", "--data", "--config", "--frequencies", "--plugin"):
            found.append(value)
    if words[0] in ("report", "view", "verify"):
        found.append(words[1])
    if words[0] == "compare":
        found += words[1:3]
    if words[0] == "frequencies":
        found += words[words.index("--out") + 2 :]
    if any(word.partition(",")[0] == "ray" for word in words):
        found.append(words[words.index("--out") + 1])
    names = [w.removeprefix("./") for w in found if not w.startswith(("pair/", "world:", "known:"))]
    return [*names, *(more for name in names for more in NEEDS.get(name, []))]


def few(words):
    """The line with small numbers: how much is asked and written is not what is tested."""
    # Passages are drawn from the other questions; a study draws them from all of its file.
    passages = re.search(r"passages=(\d+)", " ".join(words))
    study = words[0] == "study"
    questions = passages[1] if passages and not (study and "--data" in words) else "2"
    least = {"--limit": "2" if study else questions, "--questions": questions}
    least |= dict.fromkeys(("--length", "--steps"), "4")
    small = [
        min(word, least[before], key=int) if before in least else word
        for before, word in pairwise(["", *words])
    ]
    small = [re.sub(r"block_length=\d+", "block_length=4", word) for word in small]
    alone = words[0] == "study" and "--config" not in words and "end-of-prompt" not in words
    return [*small, "--controls", "0"] if alone else small


def call(words):
    """As a person would type it, in this process; on a machine with one core nothing is spawned.

    What a plugin registers is forgotten afterwards.
    """
    with pytest.MonkeyPatch.context() as patch:
        for registry in (MEASURES, SAMPLERS, INTERVENTIONS, FAMILIES, STUDIES):
            patch.setattr(registry, "_added", dict(registry._added))
        patch.setattr(sys, "argv", ["floatscope", *words])
        patch.setattr(os, "sched_getaffinity", lambda _: {0})
        with pytest.raises(SystemExit) as ended:
            cli.main()
    assert not ended.value.code, f"floatscope {shlex.join(words)} ended with {ended.value.code}"


@pytest.fixture(scope="session")
def shelf(tmp_path_factory):
    """Everything that was made, made once."""
    return tmp_path_factory.mktemp("shelf")


@pytest.fixture
def folder(shelf, tmp_path, monkeypatch):
    """Puts things into an empty folder, which is then the working directory."""
    monkeypatch.chdir(tmp_path)

    def prepare(names):
        for name in names:
            assert name in MADE, f"teach tests/test_documented_commands.py to make {name!r}"
            if not (shelf / name).exists():
                MADE[name](shelf / name)
            if (shelf / name).is_dir():
                shutil.copytree(shelf / name, tmp_path / name, dirs_exist_ok=True)
            else:
                shutil.copy(shelf / name, tmp_path / name)

    return prepare


@pytest.fixture
def visited(monkeypatch):
    """`view` and `live` are asked once for their page, then ended."""
    seen = []

    def watched(make, *args):
        server = make(*args)

        def visit():
            try:
                with urllib.request.urlopen(server.url) as answer:
                    seen.append((answer.status, answer.read()))
            finally:
                server.shutdown()

        threading.Thread(target=visit).start()
        return server

    for module in (serve, livepage):
        monkeypatch.setattr(module, "make_server", partial(watched, module.make_server))
    monkeypatch.setattr("webbrowser.open", seen.append)
    return seen


def test_every_command_is_shown_in_the_documentation():
    from typer.main import get_command

    from floatscope.cli.app import app

    assert set(get_command(app).commands) <= {words[0] for words in COMMANDS}


def lines_of(script):
    """Every command after `floatscope`, with something for each variable that is one word."""
    text = re.sub(r"\\\n\s*", " ", script.read_text())
    for line in text.splitlines():
        words = shlex.split(line, comments=True) if re.search(r"^[^#]*\bfloatscope ", line) else []
        words = [re.sub(r"\$\{?\w+\}?", "7", w) for w in words if "[@]" not in w and w != "$@"]
        if "floatscope" in words:
            yield words[words.index("floatscope") + 1 :]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_bash_can_read_a_script_and_its_commands_exist(script):
    """Parsed as the command line parses it: unknown options and values of a wrong kind are errors."""
    from typer.main import get_command

    from floatscope.cli.app import app

    subprocess.run(["bash", "-n", str(script)], check=True)
    for name, *words in lines_of(script):
        command = get_command(app).commands[name]
        context = command.make_context(name, words)
        assert not context.args


def test_the_scripts_for_clusters_start_studies():
    """So that the test above has something to look at."""
    found = {s.name: list(lines_of(s)) for s in SCRIPTS if s.parent.name == "cluster"}
    assert {name: [words[0] for words in lines] for name, lines in found.items()} == {
        "slurm.sbatch": ["study"],
        "eight_gpus.sh": ["study"],
    }
    (study,) = found["slurm.sbatch"]
    assert {"--resume", "--engine", "ray,address=7"} <= set(study)


# Few examples and short texts: what is said of them is a warning, and no failure.
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    "words",
    [pytest.param(w, id=" ".join(w)[:70]) for w in COMMANDS if "smollm2.gguf" not in named(w)],
)
def test_a_command_of_the_documentation(words, folder, visited, shallow_pair, pair_kept):
    assert not set(words) & set(SHELL), "one command a line"
    if words[0] == "study" and words[-2] == "--out" and MADE.get(words[-1]) is finished_run:
        folder(words[-1:])  # which runs this very line, for those that come after it
        assert (Path(words[-1]) / "report.html").exists()
        return
    folder(named(words))
    if words[0] == "demo":  # it has a test of its own, and takes minutes
        words = (*words, "--help")
    call(few(words))
    if words[0] == "view":
        ((status, page),) = visited
        assert status == 200
        assert b"floatscopeServed" in page
    if words[0] == "live":
        opened, visits = visited[:-1], visited[-1:]
        assert [status for status, _ in visits] == [200] and b"Floatscope" in visits[0][1]
        assert len(opened) == ("--open" in words)
