"""The oracle of families: each one's forward from its published files alone, in plain torch and float64.

A checkpoint's config.json and its tensors under their published names go in; logits come out, with every
attention matrix, every residual and every router's choice. It uses nothing of transformers, of the attention
hook or of Floatscope's loading. It is written from the papers and the published modelling code that the
families name.
"""

import json
import math
from dataclasses import dataclass, field

import torch
from safetensors.torch import load_file
from torch.nn.functional import gelu, layer_norm, silu


@dataclass
class Layer:
    """What one layer did."""

    x: torch.Tensor  # (s, width): its input
    q: torch.Tensor  # (h, s, d), after norms, rotation and scaling
    k: torch.Tensor  # (kv, s, d)
    v: torch.Tensor
    weights: torch.Tensor  # (h, s, s)
    out: torch.Tensor  # (width, h, d): the output matrix
    y: torch.Tensor | None = None  # (s, width): its output
    experts: torch.Tensor | None = None  # (s, chosen), strongest first
    shares: torch.Tensor | None = None


@dataclass
class Forward:
    logits: torch.Tensor = None  # (s, vocabulary)
    layers: list[Layer] = field(default_factory=list)
    read: list[torch.Tensor] = field(default_factory=list)  # logits from each layer's output


def read(path):
    weights = {k: v.double() for k, v in load_file(path / "model.safetensors").items()}
    return json.loads((path / "config.json").read_text()), weights


def full(n):
    return torch.ones(n, n, dtype=torch.bool)


def rms(x, scale, eps):
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * scale


def rotated(x, frequencies):
    """(h, s, d): pairs (i, i + r/2) of the first r numbers turn; the rest stays."""
    angle = torch.arange(x.shape[1]).double()[:, None] * frequencies
    r = 2 * len(frequencies)
    a, b, rest = x[..., : r // 2], x[..., r // 2 : r], x[..., r:]
    cos, sin = angle.cos(), angle.sin()
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1)


def frequencies(theta, dim):
    return theta ** (-torch.arange(0, dim, 2).double() / dim)


def attended(q, k, v, seen):
    """Weights (h, s, s) and outputs (s, h·d) of grouped heads."""
    group = len(q) // len(k)
    k, v = k.repeat_interleave(group, 0), v.repeat_interleave(group, 0)
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
    return weights, (weights @ v).transpose(0, 1).flatten(1)


def heads(x, dim):
    return x.unflatten(-1, (-1, dim)).transpose(0, 1)  # (h, s, d)


def gated(x, w, name):
    gate, up = x @ w[f"{name}.gate_proj.weight"].T, x @ w[f"{name}.up_proj.weight"].T
    return (silu(gate) * up) @ w[f"{name}.down_proj.weight"].T


def mixture(x, w, name, chosen, shares, layer):
    """Each token's experts, one by one."""
    order = shares.argsort(-1, descending=True)
    layer.experts, layer.shares = chosen.gather(1, order), shares.gather(1, order)
    rows = []
    for t in range(len(x)):
        parts = [
            s * gated(x[t], w, f"{name}.experts.{int(e)}")
            for e, s in zip(chosen[t], shares[t], strict=True)
        ]
        rows.append(sum(parts))
    return torch.stack(rows)


def softmax_router(x, w, name, config, layer, normalised):
    p = (x @ w[f"{name}.gate.weight"].T).softmax(-1)
    best = p.topk(config["num_experts_per_tok"], -1)
    shares = best.values / best.values.sum(-1, keepdim=True) if normalised else best.values
    return mixture(x, w, name, best.indices, shares, layer)


def decoder(w, c, ids, seen, *, theta, qk_norm=False, mlp=None, names=None, eps=None, scaled=None):
    """Llama, Qwen2, Qwen3 and what was made of them."""
    n = {
        "embed": "model.embed_tokens.weight",
        "layer": "model.layers.{}.",
        "norm": "model.norm.weight",
        "head": "lm_head.weight",
    } | (names or {})
    eps = c["rms_norm_eps"] if eps is None else eps
    dim = c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
    turns = theta if isinstance(theta, torch.Tensor) else frequencies(theta, dim)
    x, done = w[n["embed"]][ids], Forward()
    for number in range(c["num_hidden_layers"]):
        b, start = n["layer"].format(number), x
        h = rms(x, w[b + "input_layernorm.weight"], eps)
        q, k, v = (
            heads(
                h @ w[f"{b}self_attn.{one}_proj.weight"].T
                + w.get(f"{b}self_attn.{one}_proj.bias", 0),
                dim,
            )
            for one in "qkv"
        )
        if qk_norm:
            q = rms(q, w[b + "self_attn.q_norm.weight"], eps)
            k = rms(k, w[b + "self_attn.k_norm.weight"], eps)
        q, k = rotated(q, turns), rotated(k, turns)
        q = q if scaled is None else q * scaled(torch.arange(len(x)).double())[:, None]
        weights, out = attended(q, k, v, seen)
        o = w[b + "self_attn.o_proj.weight"]
        layer = Layer(start, q, k, v, weights, o.unflatten(1, (-1, dim)))
        x = x + out @ o.T
        h = rms(x, w[b + "post_attention_layernorm.weight"], eps)
        x = x + (gated(h, w, b + "mlp") if mlp is None else mlp(h, b + "mlp", number, layer))
        layer.y = x
        done.layers.append(layer)
        done.read.append(rms(x, w[n["norm"]], eps) @ w[n["head"]].T)
    done.logits = done.read[-1]
    return done


def llada_moe(w, c, ids, seen):
    def mlp(h, name, number, layer):
        if not c["moe_layer_freq"][number]:
            return gated(h, w, name)
        return softmax_router(h, w, name, c, layer, False)

    return decoder(w, c, ids, seen, theta=c["rope_theta"], qk_norm=True, mlp=mlp)


def rnd1(w, c, ids, seen):
    def mlp(h, name, number, layer):
        return softmax_router(h, w, name, c, layer, c["norm_topk_prob"])

    return decoder(w, c, ids, seen, theta=c["rope_theta"], qk_norm=True, mlp=mlp)


def qwen3(w, c, ids, seen):
    return decoder(w, c, ids, seen, theta=c["rope_theta"], qk_norm=True)


def llama(w, c, ids, seen):  # and Qwen2, whose biases are where they are
    return decoder(w, c, ids, seen, theta=c["rope_theta"])


def in_blocks(n, size):
    """Its own block and every block before, counted from position 0."""
    place = torch.arange(n) // size
    return place[:, None] >= place


def active_block(n, size, start):
    """A causal context, and from `start` on blocks that see themselves whole."""
    row, key = torch.arange(n)[:, None], torch.arange(n)
    return torch.where(row >= start, (row - start) // size >= (key - start) // size, key <= row)


def llada2(w, c, ids, seen):
    """Under its own names; groups of experts by their two best, scores with a bias for the choice alone."""
    dim, eps = c["head_dim"], c["rms_norm_eps"]
    split = [c["num_attention_heads"] * dim, *[c["num_key_value_heads"] * dim] * 2]
    other = dict(w)
    for number in range(c["num_hidden_layers"]):
        theirs, ours = f"model.layers.{number}.attention.", f"model.layers.{number}.self_attn."
        for one, part in zip("qkv", w[theirs + "query_key_value.weight"].split(split), strict=True):
            other[f"{ours}{one}_proj.weight"] = part
        other[ours + "q_norm.weight"] = w[theirs + "query_layernorm.weight"]
        other[ours + "k_norm.weight"] = w[theirs + "key_layernorm.weight"]
        other[ours + "o_proj.weight"] = w[theirs + "dense.weight"]

    def mlp(h, name, number, layer):
        if number < c["first_k_dense_replace"]:
            return gated(h, w, name)
        score = (h @ w[f"{name}.gate.weight"].T).sigmoid()
        wanted = score + w[f"{name}.gate.expert_bias"]
        of_group = wanted.unflatten(1, (c["n_group"], -1))
        best = of_group.topk(2, -1).values.sum(-1).topk(c["topk_group"], -1).indices
        looked = torch.zeros(of_group.shape[:2], dtype=torch.bool).scatter(1, best, True)
        wanted = of_group.masked_fill(~looked[..., None], -torch.inf).flatten(1)
        chosen = wanted.topk(c["num_experts_per_tok"], -1).indices
        shares = score.gather(1, chosen)
        shares = shares / shares.sum(-1, keepdim=True) * c["routed_scaling_factor"]
        return mixture(h, w, name, chosen, shares, layer) + gated(h, w, name + ".shared_experts")

    turns = frequencies(c["rope_theta"], int(dim * c["partial_rotary_factor"]))
    names = {"embed": "model.word_embeddings.weight"}
    return decoder(other, c, ids, seen, theta=turns, qk_norm=True, mlp=mlp, names=names, eps=eps)


def nemotron(w, c, ids, seen):
    """YaRN (2309.00071, §3): slow turns are stretched, fast ones kept, those between mixed."""
    r, dim = c["rope_parameters"], c["head_dim"]
    base, long = r["rope_theta"], r["original_max_position_embeddings"]

    def place(turns):  # the pair of numbers that turns so often over the original context
        return dim * math.log(long / (turns * 2 * math.pi)) / (2 * math.log(base))

    low = max(math.floor(place(r["beta_fast"])), 0)
    high = min(math.ceil(place(r["beta_slow"])), dim - 1)
    mixed = ((torch.arange(dim // 2).double() - low) / max(high - low, 1e-3)).clamp(0, 1)
    plain = frequencies(base, dim)
    turns = plain / r["factor"] * mixed + plain * (1 - mixed)

    def scaled(position):
        return 1 + r["llama_4_scaling_beta"] * torch.log(1 + torch.floor(position / long))

    names = {
        "embed": "encoder.embed_tokens.weight",
        "layer": "encoder.layers.{}.",
        "norm": "encoder.norm.weight",
        "head": "diffusion_head.weight",
    }
    return decoder(w, c, ids, seen, theta=turns, names=names, scaled=scaled)


def linear(x, w, name):
    return x @ w[name + ".weight"].T + w.get(name + ".bias", 0)


def normed(x, w, name, eps):
    return layer_norm(x, x.shape[-1:], w[name + ".weight"], w.get(name + ".bias"), eps)


def gelu_new(x):
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def encoder(w, x, seen, n_layers, n_heads, eps, act, names, read):
    """Layers that add and then norm: BERT's. `names(layer)` are the places of its ten matrices."""
    done = Forward()
    for number in range(n_layers):
        at, start = names(number), x
        dim = x.shape[-1] // n_heads
        q, k, v = (heads(linear(x, w, at[one]), dim) for one in "qkv")
        weights, out = attended(q, k, v, seen)
        o = w[at["o"] + ".weight"]
        layer = Layer(start, q, k, v, weights, o.unflatten(1, (-1, dim)))
        x = normed(x + linear(out, w, at["o"]), w, at["norm1"], eps)
        x = normed(x + linear(act(linear(x, w, at["up"])), w, at["down"]), w, at["norm2"], eps)
        layer.y = x
        done.layers.append(layer)
        done.read.append(read(x))
    done.logits = done.read[-1]
    return done


def _bert_names(prefix):
    def names(number):
        b = f"{prefix}.encoder.layer.{number}."
        a = b + "attention."
        return {
            **{one[0]: f"{a}self.{one}" for one in ("query", "key", "value")},
            "o": a + "output.dense",
            "norm1": a + "output.LayerNorm",
            "up": b + "intermediate.dense",
            "down": b + "output.dense",
            "norm2": b + "output.LayerNorm",
        }

    return names


def _embedded(w, ids, prefix, first, eps):
    e = prefix + ".embeddings."
    place = torch.arange(len(ids)) + first
    x = w[e + "word_embeddings.weight"][ids] + w[e + "position_embeddings.weight"][place]
    kinds = w.get(e + "token_type_embeddings.weight")
    x = x if kinds is None else x + kinds[0]
    return normed(x, w, e + "LayerNorm", eps)


def bert(w, c, ids, seen):
    eps, words = c["layer_norm_eps"], w["bert.embeddings.word_embeddings.weight"]

    def head(x):
        t = "cls.predictions.transform."
        x = normed(gelu(linear(x, w, t + "dense")), w, t + "LayerNorm", eps)
        return x @ words.T + w["cls.predictions.bias"]

    x = _embedded(w, ids, "bert", 0, eps)
    size = c["num_hidden_layers"], c["num_attention_heads"]
    return encoder(w, x, seen, *size, eps, gelu, _bert_names("bert"), head)


def roberta(w, c, ids, seen):
    eps, words = c["layer_norm_eps"], w["roberta.embeddings.word_embeddings.weight"]

    def head(x):
        x = normed(gelu(linear(x, w, "lm_head.dense")), w, "lm_head.layer_norm", eps)
        return x @ words.T + w["lm_head.bias"]

    x = _embedded(w, ids, "roberta", c["pad_token_id"] + 1, eps)
    size = c["num_hidden_layers"], c["num_attention_heads"]
    return encoder(w, x, seen, *size, eps, gelu, _bert_names("roberta"), head)


def distilbert(w, c, ids, seen):
    eps, words = 1e-12, w["distilbert.embeddings.word_embeddings.weight"]

    def names(number):
        b = f"distilbert.transformer.layer.{number}."
        return {
            **{one: f"{b}attention.{one}_lin" for one in "qkv"},
            "o": b + "attention.out_lin",
            "norm1": b + "sa_layer_norm",
            "up": b + "ffn.lin1",
            "down": b + "ffn.lin2",
            "norm2": b + "output_layer_norm",
        }

    def head(x):
        x = normed(gelu(linear(x, w, "vocab_transform")), w, "vocab_layer_norm", eps)
        return x @ words.T + w["vocab_projector.bias"]

    x = _embedded(w, ids, "distilbert", 0, eps)
    return encoder(w, x, seen, c["n_layers"], c["n_heads"], eps, gelu, names, head)


def albert(w, c, ids, seen):
    """One layer's weights for all; embeddings are narrower than the layers."""
    eps, words = c["layer_norm_eps"], w["albert.embeddings.word_embeddings.weight"]
    b = "albert.encoder.albert_layer_groups.0.albert_layers.0."

    def names(number):
        return {
            **{one[0]: f"{b}attention.{one}" for one in ("query", "key", "value")},
            "o": b + "attention.dense",
            "norm1": b + "attention.LayerNorm",
            "up": b + "ffn",
            "down": b + "ffn_output",
            "norm2": b + "full_layer_layer_norm",
        }

    def head(x):
        x = normed(gelu_new(linear(x, w, "predictions.dense")), w, "predictions.LayerNorm", eps)
        return x @ words.T + w["predictions.bias"]

    x = _embedded(w, ids, "albert", 0, eps)
    x = linear(x, w, "albert.encoder.embedding_hidden_mapping_in")
    size = c["num_hidden_layers"], c["num_attention_heads"]
    return encoder(w, x, seen, *size, eps, gelu_new, names, head)


def modernbert(w, c, ids, seen):
    """Norm first, a gated MLP, and two rotations: every third layer sees all, the others a window."""
    eps, words = c["norm_eps"], w["model.embeddings.tok_embeddings.weight"]
    dim = c["hidden_size"] // c["num_attention_heads"]
    x, done = normed(words[ids], w, "model.embeddings.norm", eps), Forward()
    far = (torch.arange(len(ids)) - torch.arange(len(ids))[:, None]).abs()

    def head(x):
        x = normed(gelu(linear(x, w, "head.dense")), w, "head.norm", eps)
        return x @ words.T + w["decoder.bias"]

    for number in range(c["num_hidden_layers"]):
        b, start = f"model.layers.{number}.", x
        whole = number % c["global_attn_every_n_layers"] == 0
        theta = c["global_rope_theta"] if whole else c["local_rope_theta"]
        h = x if number == 0 else normed(x, w, b + "attn_norm", eps)
        q, k, v = (heads(one, dim) for one in linear(h, w, b + "attn.Wqkv").chunk(3, -1))
        q, k = rotated(q, frequencies(theta, dim)), rotated(k, frequencies(theta, dim))
        may = seen if whole else seen & (far <= c["local_attention"] // 2)
        weights, out = attended(q, k, v, may)
        o = w[b + "attn.Wo.weight"]
        layer = Layer(start, q, k, v, weights, o.unflatten(1, (-1, dim)))
        x = x + out @ o.T
        a, gate = linear(normed(x, w, b + "mlp_norm", eps), w, b + "mlp.Wi").chunk(2, -1)
        x = layer.y = x + (gelu(a) * gate) @ w[b + "mlp.Wo.weight"].T
        done.layers.append(layer)
        done.read.append(head(normed(x, w, "model.final_norm", eps)))
    done.logits = done.read[-1]
    return done


FORWARDS = {
    "LLaDA-MoE": llada_moe,
    "RND1": rnd1,
    "LLaDA2": llada2,
    "SDAR": qwen3,
    "SDAR-MoE": rnd1,
    "Fast-dLLM": llama,
    "Nemotron": nemotron,
    "A2D-Qwen3": qwen3,
    "A2D-Qwen2": llama,
    "A2D-Llama": llama,
    "BERT": bert,
    "RoBERTa": roberta,
    "ALBERT": albert,
    "DistilBERT": distilbert,
    "ModernBERT": modernbert,
}
