"""The oracle of interventions: a network's forward in plain torch, every attention a matrix in memory.

It shares the weights and the rotation's angles with the network, and no hook of any kind.
"""

from contextlib import contextmanager

import torch
from torch.nn.functional import linear, silu


def _rotated(x, cos, sin):
    left, right = x.chunk(2, -1)
    return x * cos + torch.cat([-right, left], -1) * sin


def _heads(x, d, norm):
    x = x.unflatten(-1, (-1, d))
    return (x if norm is None else norm(x)).transpose(0, 1)  # (h, s, d)


def plain(model, ids, edit=None, residual=None):
    """Logits and each layer's input for one text without padding, and each layer's attention.

    `edit(layer, weights (h, q, k), value (h, k, d), seen (q, k))` returns the output (h, q, d);
    `residual(layer, x)` returns another input of the layer.
    """
    net, config, n = model.net, model.net.config, len(ids)
    d = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    x = net.model.embed_tokens(torch.tensor(list(ids)))
    cos, sin = (one[0] for one in net.model.rotary_emb(x[None], torch.arange(n)[None]))
    seen = torch.ones(n, n, dtype=torch.bool)
    seen = seen if model.is_diffusion else seen.tril()
    inputs, kept = [], []
    for layer, block in enumerate(net.model.layers):
        x = x if residual is None else residual(layer, x)
        inputs.append(x)
        att, y = block.self_attn, block.input_layernorm(x)
        q, k = (
            _rotated(
                _heads(linear(y, proj.weight, proj.bias), d, getattr(att, norm, None)), cos, sin
            )
            for proj, norm in ((att.q_proj, "q_norm"), (att.k_proj, "k_norm"))
        )
        v = _heads(linear(y, att.v_proj.weight, att.v_proj.bias), d, None)
        k, v = (one.repeat_interleave(len(q) // len(one), 0) for one in (k, v))
        scores = (q @ k.mT * d**-0.5).masked_fill(~seen, -torch.inf)
        weights = scores.softmax(-1)
        kept.append((scores, weights, v))
        out = weights @ v if edit is None else edit(layer, weights, v, seen)
        x = x + linear(out.transpose(0, 1).flatten(1), att.o_proj.weight, att.o_proj.bias)
        mlp, y = block.mlp, block.post_attention_layernorm(x)
        x = x + mlp.down_proj(silu(mlp.gate_proj(y)) * mlp.up_proj(y))
    return net.lm_head(net.model.norm(x)), inputs, kept


@contextmanager
def watched(model):
    """Every forward inside: each layer's input as the layer is given it, (b, q, width)."""
    forwards = []

    def hook(layer):
        def look(module, args, kwargs):
            x = args[0] if args else kwargs["hidden_states"]
            if layer == 0:
                forwards.append([])
            forwards[-1].append(x.clone())

        return look

    hooks = [
        block.register_forward_pre_hook(hook(layer), with_kwargs=True)
        for layer, block in enumerate(model.net.model.layers)
    ]
    hooks.append(
        model.net.model.norm.register_forward_pre_hook(
            lambda module, args: forwards[-1].append(args[0].clone())
        )
    )
    try:
        yield forwards
    finally:
        for one in hooks:
            one.remove()


@torch.inference_mode()
def agrees(model, intervention, prompt, sampler, edit, residual=None, atol=1e-9):
    """Each layer's input, and the last one's output, of every step's forward: plain torch gives the same.

    `edit` and `residual` take the step, and the canvas of the step, before their own arguments.
    """
    with intervention(model):
        with watched(model) as forwards:
            done = model.generate(prompt, sampler)
    assert len(forwards) == done.steps
    for step, layers in enumerate(forwards):
        ids = [int(i) for i in done.canvas[step] if i >= 0]
        _, inputs, _ = plain(
            model,
            ids,
            edit and (lambda *a, step=step, ids=ids: edit(step, ids, *a)),
            residual and (lambda *a, step=step, ids=ids: residual(step, ids, *a)),
        )
        for layer, x in enumerate(inputs):
            new = layers[layer].shape[1]  # with a cache, the newest rows
            torch.testing.assert_close(layers[layer][0], x[-new:], atol=atol, rtol=1e-9)
    return done
