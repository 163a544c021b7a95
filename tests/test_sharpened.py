"""Controls as sharp as their models: each head's entropy, family by family, and nothing left behind."""

import pytest
import torch
from tiny_models import FAMILIES

import floatscope as fs
from floatscope.models import attention_hook
from floatscope.models.sharpened import _Entropies, _forward, match_sharpness, sharpened


def entropies(model, texts, rows=None):
    found = {}
    with attention_hook.attach(model.net, _Entropies(found, rows), innermost=True):
        _forward(model, texts)
    return torch.stack([found[layer] for layer in sorted(found)])


@pytest.mark.parametrize("family", FAMILIES)
def test_each_head_has_the_trained_heads_entropy(checkpoints, family):
    trained = fs.load(checkpoints[family])  # whose weights change here
    control = fs.load(checkpoints[family], weights="permuted", seed=1)
    generator = torch.Generator().manual_seed(0)
    texts = torch.randint(5, 200, (3, 20), generator=generator)
    with torch.no_grad():  # as a trained model is: sharper than random weights
        for module in attention_hook.attention_modules(trained.net):
            module.q_proj.weight *= 3
    before = entropies(control, texts)
    scale = match_sharpness(control, trained, texts)
    with sharpened(control, scale):
        inside = entropies(control, texts)
    target = entropies(trained, texts)
    torch.testing.assert_close(inside, target, atol=3e-4, rtol=0)
    assert torch.equal(entropies(control, texts), before)
    assert scale.shape == (trained.n_layers, trained.n_heads)


def test_counted_rows_alone_are_matched(models, checkpoints):
    """Masked rows of a canvas: their entropy is the trained head's, that of all rows is another."""
    trained = models["LLaDA"]
    control = fs.load(checkpoints["LLaDA"], weights="permuted", seed=1)
    texts = torch.randint(5, 200, (3, 20), generator=torch.Generator().manual_seed(0))
    texts[0, 12:] = texts[1, 15:] = texts[2, 17:] = trained.mask_id
    rows = texts == trained.mask_id
    target = entropies(trained, texts, rows)
    with sharpened(control, match_sharpness(control, trained, texts, rows)):
        inside, whole = entropies(control, texts, rows), entropies(control, texts)
    torch.testing.assert_close(inside, target, atol=3e-4, rtol=0)
    assert not torch.allclose(whole, entropies(trained, texts), atol=3e-4)


def test_entropy_is_that_of_the_trace(models):
    """Against what a trace keeps, computed by other code."""
    model = models["LLaDA"]
    trace = model.read("One two three four five")
    ids = torch.tensor(trace.canvas.values[:1])
    here = entropies(model, ids)
    there = trace.entropy.isel(step=0).mean("query").transpose("layer", "head").values
    torch.testing.assert_close(here, torch.tensor(there, dtype=here.dtype), atol=1e-5, rtol=0)
