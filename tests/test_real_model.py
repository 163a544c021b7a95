"""A real model: SmolLM2-135M-Instruct, from a GGUF file inside a package, shows a textbook sink."""

from pathlib import Path

import numpy as np
import pytest
from test_documented_commands import COMMANDS, named

import floatscope as fs
from floatscope.models import source

pytestmark = pytest.mark.real
NAME = "smollm2.gguf"  # as the documentation calls it


PROMPTS = [
    "What is the capital of France?",
    "Write one sentence about the sea.",
    "Name three colours.",
]


def position_zero_is_a_sink(smollm):
    """More than 40 % of the mass in most layers of the second half; far above its null."""
    assert smollm.n_layers == 30
    traces = smollm.trace(PROMPTS, fs.Autoregressive(length=8), keep=["mass"])
    late = []
    for trace in traces:
        first = trace.mass.isel(key=0).mean(["head", "step"])  # by layer
        late.append(first.values[15:])
        assert float(trace.lift.isel(key=0).mean()) > 3
    share = np.mean(late, axis=0)
    assert (share > 0.4).mean() > 0.5, share
    assert "Paris" in traces[0].text


def capture_leaves_its_tokens_alone(smollm):
    plain = smollm.generate(PROMPTS[0], fs.Autoregressive(length=12))
    traced = smollm.trace(PROMPTS[0], fs.Autoregressive(length=12))
    np.testing.assert_array_equal(plain.canvas, traced.canvas)
    np.testing.assert_array_equal(plain.confidence, traced.confidence)


def it_answers_from_passages(smollm):
    """End to end on real questions: more right with passages than without, none dropped."""
    records = fs.tasks.read_records(Path(__file__).parent / "data" / "xquad.json").records[:4]
    answers = {
        name: fs.evaluate(
            smollm, records, fs.Autoregressive(length=12), condition=fs.tasks.Condition.parse(name)
        )
        for name in ("closed-book", "passages=1,gold=0")
    }
    closed, read = answers.values()
    assert closed.n == read.n == len(records) == 4
    assert read.mean()[0] > closed.mean()[0]
    assert read.mean("f1")[0] > closed.mean("f1")[0]


def test_a_real_model_by_command_and_from_python(tmp_path, monkeypatch, command_line):
    """One test and one load: the documentation's command loads the model, and the rest goes on with it."""
    file = source.locate("twin/parent", None)
    monkeypatch.chdir(tmp_path)
    (tmp_path / NAME).symlink_to(file)
    loaded, load = [], fs.load

    def once(*args, **options):
        loaded.append(loaded[0] if loaded else load(*args, **options))
        return loaded[0]

    monkeypatch.setattr("floatscope.instrument.load", once)
    lines = [words for words in COMMANDS if NAME in named(words)]
    for words in lines:
        command_line(*words)
    assert lines and len(loaded) == len(lines)
    position_zero_is_a_sink(loaded[0])
    capture_leaves_its_tokens_alone(loaded[0])
    it_answers_from_passages(loaded[0])
