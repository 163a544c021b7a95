"""Traces against what transformers' own eager attention says, for every family and every statistic."""

import numpy as np
import pytest
import torch
from tiny_models import FAMILIES, sampler_for

import floatscope as fs
from floatscope.attention.reference import expand
from floatscope.models import attention_hook

PROMPT = fs.Prompt.rag("Who?", ["Ada did it.", "No, Bob."], gold=0, instruction="Say.")
TOLERANCE = {"rtol": 1e-5, "atol": 1e-6}


def eager(model, ids):
    """Attention of every layer from transformers' eager path, with the q, k, v that made it."""
    net, seen = model.net, []

    def look(call, proceed):
        seen.append((call.query.clone(), call.key.clone(), call.value.clone()))
        return proceed(call)

    with attention_hook.attach(net, look):
        model.logits(ids)
    size = ids.shape[1]
    mask = torch.zeros(1, 1, size, size)
    if not model.is_diffusion:
        mask = mask.masked_fill(torch.ones(size, size).triu(1).bool(), -torch.inf)
    before = net.config._attn_implementation
    net.set_attn_implementation("eager")
    try:
        with torch.no_grad():
            out = net(
                ids,
                attention_mask=mask,
                output_attentions=True,
                output_hidden_states=True,
                use_cache=False,
            )
    finally:
        net.set_attn_implementation(before)
    return out.attentions, seen, out.hidden_states


@pytest.mark.parametrize("family", FAMILIES)
def test_every_statistic_equals_the_eager_one(models, family):
    model = models[family]
    trace = model.trace(PROMPT, sampler_for(model, length=6, steps=3), groups="regions")
    data = trace.data
    for t in range(trace.n_steps):
        canvas = data["canvas"].values[t]
        ids = torch.from_numpy(canvas[canvas >= 0]).long()[None]
        n = ids.shape[1]
        attentions, qkv, hidden = eager(model, ids)
        labels = positions(trace, t, n)
        state = {name: (labels == name).astype(np.float64) for name in data["source"].values}
        rolled = np.stack([state[name] for name in data["target"].values], axis=1)  # (n, r)
        for layer in range(model.n_layers):
            at = {"step": t, "layer": layer}
            a = attentions[layer][0].double().numpy()  # (h, n, n)
            sees = a.sum(0) > 0
            check(trace.mass.isel(at), a.sum(1) / n, n)
            check(trace.received.isel(at), a.sum(1) / sees.sum(0), n)
            with np.errstate(invalid="ignore", divide="ignore"):
                nats = -np.where(a > 0, a * np.log(a), 0).sum(-1)
                check(trace.entropy.isel(at), nats / np.log(sees.sum(1)), n)
            for group in data["group"].values:
                rows = labels == group
                if rows.any():
                    mass = a[:, rows].sum(1) / rows.sum()
                    check(trace.mass_from(str(group)).isel(at), mass, n)
                    for target in data["target"].values:
                        flow = a[:, rows][:, :, labels == target].sum(-1).mean(-1)
                        found = trace.flow.isel(at).sel(source=group, target=target)
                        np.testing.assert_allclose(found, flow, **TOLERANCE)
            rolled = (a.mean(0) @ rolled + rolled) / 2
            for group in data["source"].values:
                rows = labels == group
                if rows.any():
                    found = trace.rollout.isel(at).sel(source=group)
                    np.testing.assert_allclose(found, rolled[rows].mean(0), **TOLERANCE)
            q, k, v = (x[0].double() for x in qkv[layer])
            k = expand(k[None], len(q))[0]
            v = expand(v[None], len(q))[0]
            pairs, weight = (q @ k.mT).numpy(), sees / sees.sum(0)
            norms = q.norm(dim=-1)[..., None] * k.norm(dim=-1)[:, None]
            # A mean of large terms that cancel: rounding is in units of the terms.
            check(trace.score.isel(at), (pairs * weight).sum(1), n, float(norms.max()))
            check(trace.cosine.isel(at), (pairs / norms.numpy() * weight).sum(1), n)
            check(trace.query_norm.isel(at), (q.norm(dim=-1).numpy()[..., None] * weight).sum(1), n)
            check(trace.key_norm.isel(at), k.norm(dim=-1).numpy(), n)
            out = model.net.model.layers[layer].self_attn.o_proj.weight.detach().double()
            by_head = out.unflatten(1, (len(q), -1))  # (model, h, d)
            written = torch.einsum("mhd,hnd->hnm", by_head, v).norm(dim=-1)
            check(trace.value_norm.isel(at), written.numpy(), n)
            residual = hidden[layer][0].double().norm(dim=-1).numpy()
            check(trace.residual_norm.isel(at), residual, n)
        revealed_rows(trace, t, model, attentions, labels)


def positions(trace, t, n):
    """The label of every position at step t: its region, or the state of the answer."""
    region = trace.data["region"].values[:n].copy()
    masked = trace.data["masked"].values[t, :n]
    return np.where(region == "answer", np.where(masked, "masked", "revealed"), region)


def revealed_rows(trace, t, model, attentions, labels):
    rows = trace.rows.where(trace.data["event_step"] == t, drop=True)
    assert len(rows["event"]) == int((trace.change.values[t] == 1).sum()) > 0
    for event in rows["event"].values:
        one = rows.sel(event=event) if "event" in rows.indexes else rows.isel(event=event)
        position = int(one["event_position"])
        for layer in range(model.n_layers):
            a = attentions[layer][0, :, position - model.shift].double().numpy()  # (h, n)
            key = one["row_key"].values[layer].astype(int)
            weight = one["row_weight"].values[layer]
            np.testing.assert_allclose(np.take_along_axis(a, key, 1), weight, **TOLERANCE)
            np.testing.assert_allclose(
                np.sort(a, 1)[:, ::-1][:, : key.shape[1]], weight, **TOLERANCE
            )
            for i, target in enumerate(trace.data["target"].values):
                found = one["row_flow"].values[layer][:, i]
                np.testing.assert_allclose(found, a[:, labels == target].sum(1), **TOLERANCE)


def check(found, expected, n, unit=1.0):
    """Equal where there is something; NaN at positions not reached yet."""
    values = found.values
    tolerance = {"rtol": TOLERANCE["rtol"], "atol": TOLERANCE["atol"] * unit}
    np.testing.assert_allclose(values[..., :n], expected, equal_nan=True, **tolerance)
    assert np.isnan(values[..., n:]).all()


def test_mass_null_and_lift(models):
    for model in models.values():
        trace = model.trace(PROMPT, sampler_for(model))
        np.testing.assert_allclose(trace.mass.sum("key"), 1, atol=1e-5)
        np.testing.assert_allclose(trace.null.sum("key"), 1, atol=1e-5)
        weighted = (trace.lift * trace.null).sum("key")
        np.testing.assert_allclose(weighted, 1, atol=1e-5)
