"""Compute how much attention each key receives, for any attention code and without S×S memory."""

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from ..errors import UsageError
from ..models import Direction, Visibility
from . import backend
from .shapes import Labels, View

OptionalTensor = Tensor | None


@torch.no_grad()
def column_sums(
    query: Tensor,
    key: Tensor,
    *,
    scale: float | None = None,
    mask: Tensor | None = None,
    causal: bool = False,
    groups: Tensor | None = None,
    lse: Tensor | None = None,
) -> Tensor:
    """Sum softmax attention over queries: the attention that each key receives, by group of queries.

    The complete weight matrix is never in memory. On a GPU, the sums are computed by the same kernels as in
    traces. On other devices, and for inputs that the kernels do not support, the sums are computed in tiles
    of rows. In float32, both results agree with a float64 softmax to 1e-5.

    Args:
        query: (b, h, q, d), as passed to attention: after rotation and norms.
        key: (b, kv, k, d); kv divides h, and head i uses key head i // (h / kv).
        scale: factor of the scores; d ** −0.5 by default.
        mask: boolean, broadcast to (b, h, q, k); True where a query sees a key. By default, every query sees
            every key.
        causal: True if the queries are the last q of the k positions and each query sees only the key of its
            own position and the keys before it. False by default.
        groups: (q,) or (b, q), the group of each query, from 0; −1 leaves a query out. By default, all
            queries are in one group.
        lse: (b, h, q), the log-sum-exp of the scaled scores, if attention has computed it; None by
            default.

    Returns:
        (b, g, h, k) float32: Σ A over the queries of group g. A query that sees no key adds nothing.
    """
    _require_shapes(query, key, mask, causal, groups, lse)
    b, _, q, d = query.shape
    k, device = key.shape[2], query.device
    group = torch.zeros(b, q, dtype=torch.long, device=device)
    if groups is not None:
        group = groups.to(device).expand(b, q)
    n_groups = max(int(group.max()) + 1, 1)
    if mask is not None:
        mask, group = _without_empty_rows(mask.expand(b, mask.shape[1], q, k), causal, group)
        causal = False
    direction = Direction.CAUSAL if causal else Direction.BIDIRECTIONAL
    padding = torch.zeros(b, dtype=torch.long, device=device)
    labels = Labels(group, n_groups, padding[:, None].expand(b, k), 1)
    visible = Visibility(direction, None, padding, q, k)
    scale = d**-0.5 if scale is None else scale
    view = View(query, key, scale, mask, causal and q > 1, visible, labels, lse)

    def attend() -> None:
        allowed = mask
        if allowed is None and causal:
            allowed = torch.ones(q, k, dtype=torch.bool, device=device).tril(k - q)
        scaled_dot_product_attention(query, key, key, allowed, scale=scale, enable_gqa=True)

    view = backend.with_lse(view, attend)
    return backend.sums(view, entropy=False, regions=False)["column_sum"]


def _without_empty_rows(
    mask: Bool[Tensor, "b #h q k"], causal: bool, group: Int[Tensor, "b q"]
) -> tuple[Bool[Tensor, "b #h q k"], Int[Tensor, "b q"]]:
    """Return the mask with the causal rule added, and the groups without queries that see no key.

    Such queries get group −1, and the mask lets them see every key, so that their softmax is defined.
    """
    q, k = mask.shape[2:]
    if causal:
        mask = mask & torch.ones(q, k, dtype=torch.bool, device=mask.device).tril(k - q)
    empty = ~mask.any(-1, keepdim=True)  # (b, #h, q, 1)
    if not bool(empty.any()):
        return mask, group
    sees_nothing = empty.all(1)[..., 0]  # (b, q)
    if not torch.equal(sees_nothing, empty.any(1)[..., 0]):
        problem = "a query sees no key in some heads and some keys in others"
        raise UsageError(
            problem, "Call column_sums separately for such heads, each with its own mask."
        )
    return mask | empty, group.masked_fill(sees_nothing, -1)


def _require_shapes(
    query: Tensor,
    key: Tensor,
    mask: OptionalTensor,
    causal: bool,
    groups: OptionalTensor,
    lse: OptionalTensor,
) -> None:
    def refuse(problem: str, remedy: str) -> None:
        raise UsageError(problem, remedy)

    if not all(isinstance(tensor, Tensor) and tensor.numel() for tensor in (query, key)):
        refuse("query and key must be non-empty tensors", "Give (b, h, q, d) and (b, kv, k, d).")
    if query.ndim != 4 or key.ndim != 4 or len(query) != len(key) or query.shape[3] != key.shape[3]:
        remedy = "Give (b, h, q, d) and (b, kv, k, d): heads before positions."
        refuse(f"query {tuple(query.shape)} and key {tuple(key.shape)}", remedy)
    b, h, q, _ = query.shape
    if h % key.shape[1]:
        refuse(f"{h} heads over {key.shape[1]} key heads", "kv must divide h.")
    full_shape = (b, h, q, key.shape[2])
    if causal and q > key.shape[2]:
        refuse(
            f"{q} causal queries for {key.shape[2]} keys",
            "Causal queries are the last of the key positions.",
        )
    if mask is not None and mask.dtype != torch.bool:
        conversions = "mask.bool() for ones and zeros, mask == 0 for numbers added to scores"
        remedy = f"Give booleans, True where a query sees a key: {conversions}."
        refuse(f"a mask of {mask.dtype}", remedy)
    sizes = full_shape if mask is None else tuple(mask.shape)
    if len(sizes) != 4 or any(m not in (1, n) for m, n in zip(sizes, full_shape, strict=True)):
        refuse(f"mask {sizes}", f"Give four dimensions that broadcast to {full_shape}.")
    if groups is not None and (groups.is_floating_point() or groups.shape not in ((q,), (b, q))):
        kind = f"{tuple(groups.shape)} of {groups.dtype}"
        refuse(f"groups {kind}", f"Give whole numbers, ({q},) or ({b}, {q}).")
    if lse is not None and lse.shape != (b, h, q):
        refuse(f"lse {tuple(lse.shape)}", f"Give one number for each row: {(b, h, q)}.")
