"""The untrained control's weights: the same entries at other places, and nothing known any more."""

import copy
import json

import numpy as np
import pytest
import scipy.stats
import torch
from safetensors.torch import load_file, save_file
from tiny_models import FAMILIES, sampler_for

import floatscope as fs
from floatscope.errors import UsageError
from floatscope.models import permuted, tiny
from floatscope.tasks.asking import EvaluationSetup, ask
from floatscope.tasks.world_questions import world_records


def parameters(model):
    return dict(model.net.named_parameters())


@pytest.mark.parametrize("family", FAMILIES)
def test_entries_move_and_stay_the_same_entries(models, checkpoints, family):
    """The self-check passes too: loading runs it."""
    trained, control = models[family], fs.load(checkpoints[family], weights="permuted", seed=3)
    matrices = 0
    for name, before in parameters(trained).items():
        after = parameters(control)[name]
        if before.ndim < 2:
            assert torch.equal(before, after)
            continue
        matrices += 1
        assert not torch.equal(before, after)
        assert torch.equal(before.flatten().sort().values, after.flatten().sort().values)
    assert matrices > 7 * trained.n_layers
    assert control.name == f"{trained.name} (permuted, seed 3)" and control.name in repr(control)
    assert control.fingerprint != trained.fingerprint
    info = control.trace("Hello", sampler_for(control, 4, 2)).info
    assert (info["model"], info["fingerprint"]) == (control.name, control.fingerprint)


def test_the_seed_and_the_name_say_where_entries_go(checkpoints):
    one, same, other = (
        fs.load(checkpoints["Llama"], weights="permuted", seed=seed, check=False)
        for seed in (0, 0, 1)
    )
    assert one.fingerprint == same.fingerprint != other.fingerprint
    first, second = (f"model.layers.{i}.self_attn.q_proj.weight" for i in (0, 1))
    assert parameters(one)[first].shape == parameters(one)[second].shape
    counted = torch.arange(parameters(one)[first].numel()).view_as(parameters(one)[first])
    assert not torch.equal(
        permuted._permuted(counted, f"0 {first}"), permuted._permuted(counted, f"0 {second}")
    )


@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_every_dtype_moves_alike(checkpoints, dtype):
    exact = fs.load(checkpoints["LLaDA"], weights="permuted")
    rounded = fs.load(checkpoints["LLaDA"], weights="permuted", dtype=dtype)
    for name, weight in parameters(rounded).items():
        assert torch.equal(weight, parameters(exact)[name].to(weight.dtype))


def test_tied_weights_stay_tied(tmp_path):
    path = tiny.write("Qwen2", tmp_path / "tied")
    config = json.loads((path / "config.json").read_text()) | {"tie_word_embeddings": True}
    (path / "config.json").write_text(json.dumps(config))
    weights = load_file(path / "model.safetensors")
    del weights["lm_head.weight"]
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    trained, control = fs.load(path), fs.load(path, weights="permuted")
    inside = control.net.get_input_embeddings().weight
    assert inside is control.net.get_output_embeddings().weight
    assert not torch.equal(inside, trained.net.get_input_embeddings().weight)


def test_a_loaded_network_is_its_owners(models, checkpoints):
    given = fs.load(checkpoints["LLaDA"], check=False)
    before, name = copy.deepcopy(given.net.state_dict()), given.net.config.name_or_path
    control = fs.load(given.net, tokenizer=given.tokenizer, weights="permuted")
    assert control.net is not given.net
    for key, weight in given.net.state_dict().items():
        assert torch.equal(weight, before[key])
    named = fs.load(checkpoints["LLaDA"], weights="permuted")
    assert control.fingerprint == named.fingerprint and control.name.startswith(f"{name} (permuted")
    with torch.inference_mode():
        inside = fs.load(checkpoints["LLaDA"], check=False)
    assert fs.load(inside.net, weights="permuted").fingerprint == named.fingerprint


def test_every_cell_is_as_likely_as_another():
    """Against chance, over keys: the cell to which each entry goes."""
    cells = torch.arange(20).view(4, 5)
    moved = np.stack([permuted._permuted(cells, str(i)).flatten().numpy() for i in range(300)])
    counts = (moved[:, :, None] == np.arange(20)).sum(0)  # (cell, entry)
    assert (counts.sum(0) == 300).all()
    assert min(scipy.stats.chisquare(counts).pvalue) > 1e-3 / 20


def test_neighbouring_entries_move_independently():
    """Where one entry went says nothing of where the next one did: in one row again, or one column,
    as often as any two."""
    rows, columns = 300, 500
    moved = permuted._permuted(torch.arange(rows * columns).view(rows, columns), "0 w")
    place = moved.flatten().argsort().view(rows, columns).numpy()
    row, column = place // columns, place % columns
    for axis in (0, 1):  # above each other, beside each other
        pairs = np.diff(row, axis=axis).size
        for line, count in ((row, rows), (column, columns)):
            together = int((np.diff(line, axis=axis) == 0).sum())
            assert scipy.stats.binomtest(together, pairs, 1 / count).pvalue > 1e-4


def test_permutation_removes_learned_structure():
    """A planted direction ten times above the noise: the largest singular value falls to that of the
    same entries in any order, as numpy's own permutation gives it."""
    rng = np.random.default_rng(0)
    matrix = rng.normal(size=(192, 320)) + np.outer(rng.normal(size=192), rng.normal(size=320))
    ours = permuted._permuted(torch.from_numpy(matrix), "0 w").numpy()
    theirs = rng.permutation(matrix.ravel()).reshape(matrix.shape)
    largest = [float(np.linalg.norm(m, 2)) for m in (matrix, ours, theirs)]
    assert largest[0] > 4 * largest[2]
    assert largest[1] == pytest.approx(largest[2], rel=0.05)


def test_a_permuted_model_knows_nothing():
    records = world_records("world:one", 8)
    right = {}
    for weights in permuted.WEIGHTS:
        model = fs.load("pair/mdm", weights=weights, check=False)
        sampler = sampler_for(model, 6, 3)
        right[weights] = [
            row["contains"] for row in ask(EvaluationSetup(model, sampler), records).scored
        ]
    assert sum(right["trained"]) >= 6 and len(right["permuted"]) == 8
    assert sum(right["permuted"]) == 0


def test_other_weights_and_seeds_are_refused(checkpoints):
    with pytest.raises(UsageError, match="no weights 'random'"):
        fs.load(checkpoints["LLaDA"], weights="random")
    with pytest.raises(UsageError, match="seed = -1"):
        fs.load(checkpoints["LLaDA"], weights="permuted", seed=-1)


def test_the_command_line_permutes_too(checkpoints, command_line, tmp_path):
    common = ("--weights", "permuted", "--seed", "3", "--length", "4")
    path = checkpoints["Llama"]
    traced = command_line("trace", "--model", path, "--prompt", "Hi", *common)
    assert "(permuted, seed 3)" in traced.stdout.replace("\n", "")
    answers = tmp_path / "answers"
    data = ("--data", "world:one", "--limit", "2", "--template", "plain", "--out", answers)
    data = (*data, "--format", "jsonl")
    command_line("evaluate", "--model", path, *data, *common)
    rows = [json.loads(line) for line in (answers / "answers.jsonl").read_text().splitlines()]
    assert len(rows) == 2
    assert {row["model"] for row in rows} == {f"{path} (permuted, seed 3)"}
