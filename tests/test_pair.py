"""The embedded pair: whole, equal in budget, able to read, and as different as their card says."""

import csv
import json
import re
import shutil
import socket
import sys
from pathlib import Path

import numpy as np
import pytest

import floatscope as fs
from floatscope.models import pair
from floatscope.stats import frequencies
from floatscope.tasks import prompt_of
from floatscope.tasks.world import LEVELS, World

SAMPLERS = {"pair/mdm": fs.Confidence(length=10), "pair/arm": fs.Autoregressive(length=10)}


@pytest.fixture(scope="module")
def models():
    return {name: fs.load(name) for name in SAMPLERS}


@pytest.fixture(scope="module")
def examples():
    return World().examples(LEVELS["three"], 8, seed=5)


def test_both_models_have_one_shape_and_all_their_files(models):
    mdm, arm = models["pair/mdm"], models["pair/arm"]
    assert mdm.family.name == "LLaDA"
    assert arm.family.name == "Llama"
    for name in ("n_layers", "n_heads", "vocab_size", "context", "n_parameters"):
        assert getattr(mdm, name) == getattr(arm, name)
    assert mdm.n_layers >= 12
    for name in ("mdm", "arm"):
        size = sum(f.stat().st_size for f in (pair.FOLDER / name).iterdir())
        assert size <= 30e6
        assert {"config.json", "model.safetensors", "tokenizer.json"} <= {
            f.name for f in (pair.FOLDER / name).iterdir()
        }


def test_budgets_are_equal():
    runs = [json.loads((pair.FOLDER / f"{m}-run.json").read_text()) for m in ("mdm", "arm")]
    assert abs(runs[0]["tokens"] / runs[1]["tokens"] - 1) < 0.01
    for key in ("config", "plan", "recipe", "parameters"):
        assert runs[0][key] == runs[1][key]


@pytest.fixture(scope="module")
def traces(models, examples):
    """Of every example, by both."""
    prompts = [prompt_of(e) for e in examples]
    return {name: m.trace(prompts, SAMPLERS[name], keep=["mass"]) for name, m in models.items()}


@pytest.mark.parametrize("name", SAMPLERS)
def test_both_models_answer_from_passages(traces, examples, name):
    found = traces[name]
    right = sum(one.text.strip() == e.answers[0] for one, e in zip(found, examples, strict=True))
    assert right >= 6


@pytest.mark.parametrize("name", SAMPLERS)
def test_the_package_answers_as_the_training_code_does(models, examples, name):
    """Two implementations of model and decoding, one in plain PyTorch: the same tokens."""
    from training.evaluate import answer, prompt_ids
    from training.export import load_exported
    from training.rows import Encoder

    encode = Encoder()
    other = load_exported(pair.FOLDER / name.removeprefix("pair/"))
    examples = examples[:3]
    prompts = [prompt_ids(e, encode) for e in examples]
    model = models[name]
    assert [list(model.encode(prompt_of(e)).ids) for e in examples] == prompts
    theirs = answer(other, prompts, slots=10)
    for ids, one in zip(
        theirs, model.generate([prompt_of(e) for e in examples], SAMPLERS[name]), strict=True
    ):
        assert encode.tokenizer.decode(ids) == one.text


def test_the_sink_and_its_absence(traces):
    """Position 0 is the strongest key of every layer, step and example in one, seldom in the other."""
    share = {}
    for name, mine in traces.items():
        tops = [t.mass.mean("head").fillna(-1).argmax("key").values.ravel() for t in mine]
        share[name] = np.mean(np.concatenate(tops) == 0)
    assert share["pair/arm"] > 0.95
    assert share["pair/mdm"] < 0.4


def test_emergence_tables():
    for name in ("mdm", "arm"):
        with (pair.FOLDER / f"{name}-emergence.csv").open() as file:
            rows = list(csv.DictReader(file))
        run = json.loads((pair.FOLDER / f"{name}-run.json").read_text())
        assert int(rows[-1]["step"]) == run["total_steps"]
        assert {int(r["layer"]) for r in rows} == set(range(12))


@pytest.fixture
def copied(tmp_path, monkeypatch):
    folder = shutil.copytree(pair.FOLDER, tmp_path / "embedded")
    monkeypatch.setattr(pair, "FOLDER", folder)
    return folder


def test_a_damaged_weight_file_says_so(copied):
    file = copied / "mdm" / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(bytes(data))
    with pytest.raises(
        fs.ModelError, match="model.safetensors of the embedded model pair/mdm is damaged"
    ):
        fs.load("pair/mdm")


@pytest.mark.parametrize(
    "name", ["generation_config.json", "floatscope.json", "chat_template.jinja", "more/x"]
)
def test_a_file_added_beside_the_weights_is_refused(copied, name):
    file = copied / "mdm" / name
    file.parent.mkdir(exist_ok=True)
    file.write_text("{}")
    with pytest.raises(fs.ModelError, match="does not belong to the embedded model pair/mdm"):
        pair.locate("pair/mdm")


def test_every_file_of_the_pair_is_listed():
    sums = json.loads((pair.FOLDER / "checksums.json").read_text())
    for name in ("mdm", "arm"):
        assert sorted(sums[name]) == sorted(file.name for file in (pair.FOLDER / name).iterdir())


def test_damaged_frequencies_say_so(copied, monkeypatch):
    file = copied / "frequencies.npy"
    monkeypatch.setattr(frequencies, "PAIR", file)
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(fs.UsageError, match=r"frequencies\.npy is damaged"):
        frequencies.read_frequencies.__wrapped__("pair")
    file.unlink()
    with pytest.raises(fs.UsageError, match="token frequencies cannot be read"):
        frequencies.read_frequencies.__wrapped__("pair")


def test_a_missing_weight_file_says_so(copied):
    (copied / "arm" / "model.safetensors").unlink()
    with pytest.raises(fs.ModelError, match="pair/arm lacks model.safetensors"):
        fs.load("pair/arm")
    (copied / "checksums.json").unlink()
    with pytest.raises(fs.ModelError, match="is not in this installation"):
        fs.load("pair/arm")


def test_offline_from_the_command_line(command_line, monkeypatch):
    """Nobody is asked for an address, and nothing is connected to."""

    def refuse(*args, **kwargs):
        raise AssertionError(f"the network was used: {args}")

    for name in ("connect", "connect_ex", "sendto"):
        monkeypatch.setattr(socket.socket, name, refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    command = ["trace", "--model", "pair/mdm", "--prompt", "Question: Who?"]
    done = command_line(*command, "--length", 8, "--steps", 4)
    assert "Where attention rests" in done.stdout


def test_the_card_is_made_from_the_tables(tmp_path):
    from training import card

    out = tmp_path / "CARD.md"
    sys_argv, sys.argv = sys.argv, ["card", "--tables", str(pair.FOLDER), "--out", str(out)]
    try:
        card.main()
    finally:
        sys.argv = sys_argv
    assert out.read_text() == Path(pair.FOLDER / "CARD.md").read_text()


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_the_first_example_of_a_page_gives_a_right_answer(page):
    text = (Path(__file__).parent.parent / page).read_text()
    first = re.search(r"^```python\n(.*?)^```", text, re.M | re.S)[1]
    names = {}
    exec(first, names)
    assert names["trace"].text.strip() == "Ostrel" and "Ostrel" in first.replace(".", " ").split()
