"""The study of heavy keys: its objective, a tiny run from end to end, and the page against its results."""

import json
import lzma
from pathlib import Path

import numpy as np
import pytest
import torch

from training import heavy_keys as hk
from training.common import BOS, MASK

ROOT = Path(__file__).parent.parent
RESULTS, PAGE = (
    ROOT / "training" / "heavy_keys.json",
    ROOT / "docs" / "explanation" / "heavy_keys.md",
)
SMOKE = hk.SHAPES["smoke"]


def test_rows_with_and_without_start_token_hold_the_same_text_and_a_copied_span():
    tokens = np.arange(4, 4004, dtype=np.int16)
    start, plain = (hk.batch(tokens, SMOKE, 8, (0, 1), rows) for rows in ("start", "plain"))
    assert (start[:, 0] == BOS).all() and torch.equal(start[:, 1:], plain[:, :-1])
    copied = int(SMOKE.copied * SMOKE.length)
    for row in plain.tolist():
        assert len(row) - len(set(row)) == copied  # each token of this text occurs once otherwise


def test_masking_spares_the_first_token_and_outputs_predict_the_next_position():
    ids = torch.arange(4, 4 + 64 * 50).view(64, 50)
    inputs, at, target, weight = hk.diffusion_batch(ids, seed=0)
    masked = inputs == MASK
    assert not masked[:, 0].any() and torch.equal(inputs[~masked], ids[~masked])
    counted = weight > 0
    assert counted.sum() == masked.sum()
    flat = at[counted] + 1  # the output at i − 1 predicts token i
    assert torch.equal(ids.view(-1)[flat], target[counted])
    assert masked.view(-1)[flat].all()
    rates = masked[:, 1:].float().mean(1).sort().values
    assert rates[0] < 0.15 and rates[-1] > 0.85 and abs(rates.mean() - 0.51) < 0.05
    # Weights are 1 / t of the row: their sum is 1 in expectation.
    assert float(weight.sum()) == pytest.approx(1, abs=0.2)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("heavy_keys")
    rng = np.random.default_rng(0)
    words = ["".join(chr(97 + i) for i in rng.integers(0, 26, 4)) for _ in range(300)]
    book = " ".join(rng.choice(words, 5000))
    with lzma.open(folder / "books.txt.xz", "wt") as file:
        file.write("\f".join([book, book]))
    with lzma.open(folder / "wikipedia_summaries.json.xz", "wt") as file:
        file.write("{}")
    run, results = folder / "run", folder / "results.json"
    common = ["--out", str(run)]
    hk.main([*"train --shape smoke --seeds 0 --corpus".split(), str(folder), *common])
    hk.main(["measure", "--results", str(results), *common])
    return json.loads(results.read_text())


def schema(value):
    """Names and kinds, without numbers; lists by their first element."""
    if isinstance(value, dict):
        return {key: schema(one) for key, one in value.items()}
    if isinstance(value, list):
        return [schema(value[0])] if value else []
    return "text" if isinstance(value, str) else "number"


def test_a_tiny_run_gives_the_schema_of_the_published_results(made):
    published = json.loads(RESULTS.read_text())
    assert RESULTS.stat().st_size < 200_000
    assert schema(made["settings"]) == schema(published["settings"])
    for condition in hk.CONDITIONS:
        tiny, real = (one["start"][condition]["0"] for one in (made, published))
        assert schema(tiny) == schema(real)
        for run, settings in ((tiny, made["settings"]), (real, published["settings"])):
            assert len(run["checkpoints"]) == len(settings["checkpoints"])
            for mean, low, high in run["checkpoints"][-1]["strongest"]:
                assert 0 < low <= mean <= high <= 1
            assert len(run["final"]["real"]) == settings["layers"]


def test_the_three_conditions_begin_with_different_weights(made):
    loss = {c: made["start"][c]["0"]["checkpoints"][0]["loss"] for c in hk.CONDITIONS}
    assert len(set(loss.values())) == 3


def test_tables_of_the_page_equal_the_results():
    page = PAGE.read_text("utf-8")
    assert hk.fill_page(page, json.loads(RESULTS.read_text())) == page
