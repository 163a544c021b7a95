"""Likelihoods against the truth: a direct softmax, and a bound summed over every mask there is."""

import itertools
import math

import numpy as np
import pytest
import torch
from tiny_models import DIFFUSION

import floatscope as fs
from floatscope.decode.bound import drawn_masks, every_mask
from floatscope.decode.likelihood import (
    log_likelihood,
    log_likelihoods,
    rolling_log_likelihood,
    windows,
)
from floatscope.decode.state import Edit

CAUSAL = ("Llama", "Qwen2", "Qwen3")
CONTEXT, TARGET = [256, 84, 101, 108], [108, 32, 109, 101]


def bound_by_hand(model, context, target):
    """The mean over the number of masks, of the mean over masks of that number."""
    size, by_count = len(target), []
    for count in range(1, size + 1):
        scores = []
        for hidden in itertools.combinations(range(size), count):
            seen = [model.mask_id if i in hidden else t for i, t in enumerate(target)]
            logits = model.logits(torch.tensor([[*context, *seen]]))[0]
            rows = logits[[max(len(context) + i - model.shift, 0) for i in hidden]]
            rows[:, model.mask_id] = -math.inf
            p = rows.softmax(-1)[range(count), [target[i] for i in hidden]]
            scores.append(float(p.log().sum()) * size / count)
        by_count.append(np.mean(scores))
    return np.mean(by_count)


@pytest.mark.parametrize("family", CAUSAL)
def test_a_causal_model_is_exact(exact, family):
    model = exact[family]
    logits = model.logits(torch.tensor([[*CONTEXT, *TARGET]]))[0]
    rows = logits[len(CONTEXT) - 1 : -1].softmax(-1)
    found = log_likelihood(model, CONTEXT, TARGET)
    assert found.value == pytest.approx(float(rows[range(4), TARGET].log().sum()), abs=1e-10)
    assert found.error == 0
    assert found.greedy == (rows.argmax(-1).tolist() == TARGET)


@pytest.mark.parametrize("family", CAUSAL)
def test_greedy_knows_what_decoding_gives(exact, family):
    model = exact[family]
    answer = model.generate(CONTEXT, fs.Autoregressive(length=5, stop_at_eos=False)).answer_ids
    assert log_likelihood(model, CONTEXT, answer).greedy is True
    assert log_likelihood(model, CONTEXT, [*answer[:-1], (answer[-1] + 1) % 256]).greedy is False


@pytest.mark.parametrize("family", DIFFUSION)
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_a_short_target_is_summed_over_every_mask(exact, family, size):
    model, target = exact[family], TARGET[:size]
    found = log_likelihood(model, CONTEXT, target, samples=16, batch_size=3)
    assert found.value == pytest.approx(bound_by_hand(model, CONTEXT, target), abs=1e-9)
    assert found.error == 0


@pytest.mark.parametrize("family", DIFFUSION)
@pytest.mark.parametrize("samples", [14, 6, 3])
def test_an_estimate_agrees_with_the_sum(exact, family, samples):
    """Unbiased, and off by what its standard error says."""
    model = exact[family]
    truth = bound_by_hand(model, CONTEXT, TARGET)
    found = [
        log_likelihood(model, CONTEXT, TARGET, samples=samples, seed=s, check_greedy=False)
        for s in range(100)
    ]
    values = np.array([one.value for one in found])
    assert abs(values.mean() - truth) < 4 * values.std() / math.sqrt(len(values))
    said = math.sqrt(np.mean([one.error**2 for one in found]))
    assert 0.7 * values.std() < said < 3 * values.std()  # few samples: the plain error is too wide


def test_masks_are_uniform_in_number_and_place():
    generator = torch.Generator().manual_seed(0)
    some = torch.cat([drawn_masks(5, 7, generator) for _ in range(2000)])
    numbers = torch.bincount(some.sum(-1), minlength=6)[1:] / len(some)
    np.testing.assert_allclose(numbers, 0.2, atol=0.01)
    np.testing.assert_allclose(some.float().mean(0), 0.6, atol=0.02)
    every = every_mask(5)
    assert len({tuple(row) for row in every.tolist()}) == 31
    assert every.any(-1).all()


def test_every_number_of_masks_comes_equally_often():
    masks = drawn_masks(8, 32, torch.Generator().manual_seed(1))
    assert torch.bincount(masks.sum(-1), minlength=9)[1:].tolist() == [4] * 8


@pytest.mark.parametrize("family", DIFFUSION)
def test_the_order_of_confidence_decides_what_is_greedy(exact, family):
    model = exact[family]
    answer = model.generate(CONTEXT, fs.Confidence(length=4, stop_at_eos=False)).answer_ids
    assert log_likelihood(model, CONTEXT, answer, samples=2).greedy is True
    other = [(answer[0] + 1) % 256, *answer[1:]]
    assert log_likelihood(model, CONTEXT, other, samples=2).greedy is False
    assert log_likelihood(model, CONTEXT, other, samples=2, check_greedy=False).greedy is None


@pytest.mark.parametrize("family", ["LLaDA", "Dream", "Llama"])
def test_batch_size_and_other_pairs_do_not_change_values(exact, family):
    model = exact[family]
    pairs = [
        (CONTEXT, TARGET),
        ([256, 65], list(range(60, 69))),
        (CONTEXT * 3, TARGET),
        *[([7], [8])],
    ]
    together = log_likelihoods(model, pairs, samples=20, batch_size=3)
    for (context, target), one in zip(pairs, together, strict=True):
        alone = log_likelihood(model, context, target, samples=20, batch_size=1)
        assert one.value == pytest.approx(alone.value, abs=1e-9)
        assert one.error == pytest.approx(alone.error, abs=1e-9)
        assert one.greedy == alone.greedy


def test_progress_ends_at_the_end(exact):
    for family in ("LLaDA", "Llama"):
        ticks = []
        log_likelihoods(
            exact[family],
            [(CONTEXT, TARGET), (CONTEXT, [1])],
            samples=2,
            progress=lambda done, of: ticks.append((done, of)),  # noqa: B023
        )
        assert ticks == [(1, 2), (2, 2)]


def test_a_context_may_be_empty_where_nothing_is_shifted(exact):
    found = log_likelihood(exact["LLaDA"], [], TARGET)
    assert found.value == pytest.approx(bound_by_hand(exact["LLaDA"], [], TARGET), abs=1e-9)


def test_windows_score_every_token_once():
    for length in (1, 6, 7, 8, 13, 20):
        ids = list(range(length))
        cut = list(windows(ids, 99, 8))
        assert [t for _, target in cut for t in target] == ids
        for n, (context, target) in enumerate(cut):
            assert len(context) + len(target) <= 8
            assert n == 0 or len(context) + len(target) == 8
            assert context[-1] == (99 if n == 0 else target[0] - 1)


@pytest.mark.parametrize("family", ["LLaDA", "Llama"])
def test_a_long_text_is_the_sum_of_its_windows(exact, family):
    model, ids = exact[family], list(range(40, 60))
    found = rolling_log_likelihood(model, ids, prefix=256, window=8, samples=16)
    parts = [log_likelihood(model, c, t, samples=16) for c, t in windows(ids, 256, 8)]
    assert found.value == pytest.approx(sum(one.value for one in parts), abs=1e-9)
    assert found.error == pytest.approx(math.hypot(*[one.error for one in parts]), abs=1e-9)


class _Heard(Edit):
    """Puts a token before every prompt, and listens."""

    def __init__(self):
        self.states = []

    def prepare(self, prompt):
        return type(prompt)((5, *prompt.ids), ("sink", *prompt.regions))

    def forward(self, state):
        self.states.append(state)
        return super().forward(state)


@pytest.mark.parametrize("family", ["LLaDA", "Dream", "Llama"])
def test_interventions_see_every_forward(exact, family):
    model, edit = exact[family], _Heard()
    plain = log_likelihood(model, [5, *CONTEXT], TARGET, samples=16, check_greedy=False)
    model.edits.append(edit)
    try:
        found = log_likelihood(model, CONTEXT, TARGET, samples=16, check_greedy=False)
        rolling_log_likelihood(model, [1] * 600, prefix=256, samples=2)
        with pytest.raises(fs.UsageError, match="window = 512. Use 2 to 511 tokens"):
            rolling_log_likelihood(model, [1] * 600, prefix=256, window=512)
    finally:
        model.edits.remove(edit)
    assert found.value == pytest.approx(plain.value, abs=1e-9)
    first = edit.states[0]
    assert first.canvas.shape[1] == 9
    assert first.prompt_end == 5
    assert first.window == (5, 9)
    assert first.predicting == (5 - model.shift, 9 - model.shift)
    assert (first.canvas[first.masked] == (model.mask_id or -1)).all()
    rows = sum(len(state.canvas) for state in edit.states if state.canvas.shape[1] == 9)
    assert rows == (15 if model.is_diffusion else 1)


@pytest.mark.parametrize(
    ("family", "context", "target", "options", "message"),
    [
        ("LLaDA", CONTEXT, [], {}, "the target is empty"),
        (
            "Llama",
            [],
            TARGET,
            {},
            "the context is empty, and .*Llama predicts .* begin or end token",
        ),
        ("LLaDA", CONTEXT, [259], {}, "the target contains the mask token"),
        ("Llama", CONTEXT, [999], {}, "token id 999 is outside the vocabulary"),
        ("LLaDA", CONTEXT, [1] * 600, {}, "4 prompt tokens and 600 after them exceed"),
        ("LLaDA", CONTEXT, TARGET, {"samples": 1}, "samples = 1. Use 2 or more"),
        ("LLaDA", CONTEXT, TARGET, {"batch_size": 0}, "batch_size = 0"),
    ],
)
def test_targets_that_cannot_be_scored_are_refused(
    models, family, context, target, options, message
):
    with pytest.raises(fs.UsageError, match=message):
        log_likelihood(models[family], context, target, **options)


def test_long_texts_that_cannot_be_scored_are_refused(models):
    with pytest.raises(fs.UsageError, match="the text is empty"):
        rolling_log_likelihood(models["Llama"], [], prefix=256)
    with pytest.raises(fs.UsageError, match="window = 1. Use 2 to 512"):
        rolling_log_likelihood(models["Llama"], [1], prefix=256, window=1)
