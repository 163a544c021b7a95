"""WeakenColumns against float64 attention: anchors lose the dose, for any grouping and direction."""

import numpy as np
import pytest
import torch
from tiny_models import CAUSAL, DIFFUSION, sampler_for
from torch import nn

import floatscope as fs
from floatscope.attention.reference import expand
from floatscope.interventions import columns, controls
from floatscope.interventions.library.weaken_columns import log_odds, solve
from floatscope.models import attention_hook

PROMPT = fs.Prompt.rag(
    "Who wrote it?", ["A first text, short.", "Emma was written by Jane Austen."], gold=1
)
B, H, Q, K, D = 2, 4, 12, 12, 8


def drawn(groups, causal, seed=0):
    g = torch.Generator().manual_seed(seed)
    query = 2 * torch.randn(B, H, Q, D, generator=g)
    key, value = (2 * torch.randn(B, H // groups, K, D, generator=g) for _ in range(2))
    module = nn.Identity()
    module.num_key_value_groups = groups
    return attention_hook.Call(0, module, query, key, value, None, causal, D**-0.5)


def weights(call, bias=0.0):
    """Attention as its definition has it, in float64."""
    score = call.query.double() @ expand(call.key.double(), H).mT * call.scale + bias
    return score.masked_fill(~attention_hook.explicit_mask(call), -torch.inf).softmax(-1)


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("dose", [0.05, 0.1, 0.2, 0.3])
def test_the_bias_removes_the_dose_and_nothing_from_the_ratios_of_other_keys(groups, causal, dose):
    call = drawn(groups, causal)
    before = weights(call)
    picked = columns.heaviest(before.mean(2), 0.3)
    real = torch.ones(B, Q, dtype=torch.bool)
    real[1, :3] = False  # padding: rows that do not count
    share = real.double()[:, None, :, None] / real.sum(-1)[:, None, None, None]
    bias, removed = solve(log_odds(call, picked), real, torch.full((B, H), dose))
    after = weights(call, (bias[..., None] * picked)[:, :, None])

    held = (torch.where(picked[:, :, None], x, 0).sum(-1, keepdim=True) for x in (before, after))
    lost = torch.sub(*((x * share).sum((2, 3)) for x in held))
    torch.testing.assert_close(removed, lost, atol=1e-6, rtol=0)
    reached = lost > dose - 1e-5
    torch.testing.assert_close(
        lost[reached], torch.full_like(lost[reached], dose), atol=1e-5, rtol=0
    )
    # Where the dose is not reached, no row has anything left that it could lose.
    left = torch.where(picked[:, :, None], after, 0).sum(-1)  # (b, h, q)
    only = attention_hook.explicit_mask(call).expand(B, H, Q, K) & ~picked[:, :, None]
    stuck = (left > 1e-6) & only.any(-1) & real[:, None]
    assert not stuck[~reached].any()
    assert reached.all() if dose < 0.2 else reached.any()
    # The other keys of a row grow alike.
    grown = torch.where(only, after / before, torch.nan).numpy()
    seen = only.any(-1).numpy()
    spread = np.nanmax(grown[seen], -1) - np.nanmin(grown[seen], -1)
    assert (spread < 1e-9 * np.nanmax(grown[seen], -1)).all()


def test_a_share_next_to_one_can_still_be_lowered():
    """In float32 such a share is 1, and its odds would be infinite."""
    query = torch.tensor([25.0, 0.0]).expand(1, 1, 2, 2)
    key = torch.tensor([[[[1.0, 0.0], [0.0, 0.0]]]])
    call = attention_hook.Call(0, nn.Identity(), query, key, key, None, False, 1.0)
    picked = torch.tensor([[[True, False]]])
    odds = log_odds(call, picked)
    torch.testing.assert_close(odds, torch.full_like(odds, 25.0), atol=1e-4, rtol=0)
    bias, removed = solve(odds, torch.ones(1, 2, dtype=torch.bool), torch.tensor([[0.4]]))
    assert float(removed) == pytest.approx(0.4, abs=1e-5) and bias < -20


def test_a_control_is_drawn_until_it_weighs_as_much():
    weight = torch.tensor([[[0.3, 0.1, 0.1, 0.15, 0.2, 0.2]]]).double()
    picked = torch.tensor([[[True, False, False, False, False, False]]])
    free = ~picked & torch.tensor([True, True, True, True, True, False])
    order = torch.tensor([[0.0, 0.4, 0.3, 0.2, 0.1, 0.05]])  # 5 is not free; then 4, 3, 2, 1
    taken = controls.pick_equal_mass(picked, free, weight, order)
    assert taken[0, 0].tolist() == [False, False, False, True, True, False]
    heavy = torch.tensor([[[0.9, 0.02, 0.02, 0.02, 0.02, 0.02]]]).double()
    assert torch.equal(controls.pick_equal_mass(picked, free, heavy, order), free)


def removed(model, intervention, prompts=PROMPT):
    """Share removed by prompt, step, layer and head; and in float64, of every call."""
    calls = []

    def look(call, proceed):
        bias = 0.0 if call.bias is None else call.bias.double()
        score = call.query.double() @ expand(call.key.double(), model.n_heads).mT * call.scale
        score = score.masked_fill(~attention_hook.explicit_mask(call), -torch.inf)
        chosen = (torch.as_tensor(bias) < 0).expand(*score.shape)
        both = [
            torch.where(chosen, s.softmax(-1), 0).sum(-1).mean(-1) for s in (score, score + bias)
        ]
        calls.append(both[0] - both[1])
        return proceed(call)

    with intervention(model), attention_hook.attach(model.net, look, innermost=True):
        model.generate(prompts, sampler_for(model, length=3, steps=2))
        return model.edits[0].hidden.share, torch.stack(calls)


@pytest.mark.parametrize("family", [*DIFFUSION[:2], *CAUSAL[:2]])
@pytest.mark.parametrize("control", [None, "random"])
def test_in_a_model_every_head_loses_the_dose_at_every_step(models, family, control):
    model = models[family]
    kept, calls = removed(model, fs.interventions.WeakenColumns(dose=0.1, control=control))
    steps, layers = kept.shape[1:3]
    np.testing.assert_allclose(kept[0].reshape(steps * layers, -1), calls[:, 0], atol=1e-5)
    np.testing.assert_allclose(kept[0, 0], 0.1, atol=1e-5)


def test_layers_heads_and_steps_narrow_it(models):
    model = models[DIFFUSION[0]]
    kept, calls = removed(
        model, fs.interventions.WeakenColumns(dose=0.1, layers=0, heads=1, steps=1)
    )
    assert kept.shape[-1] == 1 and np.isnan(kept[0, 0]).all()
    assert kept[0, 1, 0, 0] == pytest.approx(0.1, abs=1e-5)
    moved = (calls.abs() > 1e-9).nonzero()[:, -1]
    assert set(moved.tolist()) == {1}


@pytest.mark.parametrize(
    "wrong",
    [
        {"dose": -0.1},
        {"dose": 0.4},
        {"share": 1.5},
        {"share": 0.0, "dose": 0.0},
        {"control": "mass"},
    ],
)
def test_invalid_settings_are_refused(models, wrong):
    with (
        pytest.raises(fs.FloatscopeError, match="WeakenColumns"),
        fs.interventions.WeakenColumns(**wrong)(models[CAUSAL[0]]),
    ):
        pass
