"""Compute every statistic by its definition, in float64, with the complete attention matrix.

The code is short and slow on purpose. Only tests and self-checks use this module.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from .shapes import Arrays, View


def expand(key: Float[Tensor, "b kv k d"], heads: int) -> Float[Tensor, "b h k d"]:
    """Repeat keys for the heads that share them: head i uses key head i // (h / kv)."""
    return key.repeat_interleave(heads // key.shape[1], dim=1)


def may_look(view: View) -> Bool[Tensor, "#b #h q k"]:
    """Return which keys each row may see."""
    if view.mask is not None:
        return view.mask
    q, k = view.query.shape[2], view.key.shape[2]
    full = torch.ones(q, k, dtype=torch.bool, device=view.query.device)
    return (full.tril(k - q) if view.causal else full)[None, None]


def scores(view: View) -> Float[Tensor, "b h q k"]:
    """Return the scaled scores before mask and softmax."""
    q = view.query.double()
    score = q @ expand(view.key.double(), q.shape[1]).mT * view.scale
    return score if view.bias is None else score + view.bias.double()


def attention(view: View) -> Float[Tensor, "b h q k"]:
    """Return the matrix of attention weights."""
    return scores(view).masked_fill(~may_look(view), -torch.inf).softmax(-1)


def sums(view: View) -> Arrays:
    """Compute column sums, row entropies, region sums and, if the view has a state, weights times state."""
    a = attention(view)
    labels = view.labels
    groups = torch.arange(labels.n_groups, device=a.device)
    regions = torch.arange(labels.n_regions, device=a.device)
    of_group = (labels.group[:, None, :] == groups[:, None]).double()  # (b, g, q)
    in_region = (labels.region[:, :, None] == regions).double()  # (b, k, r)
    arrays = {
        "column_sum": torch.einsum("bgq,bhqk->bghk", of_group, a),
        "entropy": -torch.where(a > 0, a * a.log(), 0.0).sum(-1),
        "region_sum": torch.einsum("bhqk,bkr->bhqr", a, in_region),
    }
    if view.state is not None:
        arrays["rolled"] = torch.einsum("bqk,bkr->bqr", a.mean(1), view.state.double())
    return arrays


def columns(view: View) -> Arrays:
    """Compute score, cosine and query norm of each key, summed over its viewers; key norm and viewers."""
    q = view.query.double()
    k = expand(view.key.double(), q.shape[1])
    counted, real = view.labels.group >= 0, view.labels.region >= 0
    counts = view.visible.matrix & counted[:, :, None] & real[:, None, :]
    weight = counts[:, None].double()  # (b, 1, q, k)
    score = q @ k.mT
    norms = q.norm(dim=-1)[..., None] * k.norm(dim=-1)[..., None, :]
    cosine = torch.where(norms > 0, score / norms, 0.0)
    return {
        "score": (score * weight).sum(2),
        "cosine": (cosine * weight).sum(2),
        "query_norm": (q.norm(dim=-1)[..., None] * weight).sum(2),
        "key_norm": k.norm(dim=-1),
        "viewers": counts.sum(1),
    }


def massive(x: Float[Tensor, "b n d"]) -> Float[Tensor, "b n"]:
    """Return, for each position, the largest absolute channel divided by the median absolute channel."""
    size = x.double().abs()
    return size.amax(-1) / size.quantile(0.5, dim=-1)


def cosine_distance(
    a: Float[Tensor, "b kv k d"], b: Float[Tensor, "b kv k d"]
) -> Float[Tensor, "b k"]:
    """Return 1 − cos of each key (or value) between two forwards, averaged over heads."""
    a, b = a.double(), b.double()
    return (1 - (a * b).sum(-1) / (a.norm(dim=-1) * b.norm(dim=-1))).mean(1)
