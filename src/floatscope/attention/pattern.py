"""Whole attention patterns of chosen heads: the S×S matrices that nothing else here ever makes.

One forward over one sequence without padding; each head's matrix is computed by itself and goes to the
host at once. A trace never holds these: it is small because they are computed again when asked for.
"""

from collections.abc import Collection, Sequence

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..models import Model, Visibility, attention_hook


def pattern(
    model: Model,
    ids: Int[Tensor, " s"],
    layers: Collection[int],
    heads: Sequence[int],
    visible: Visibility,
) -> Float[np.ndarray, "l h s s"]:
    """A_ij of the chosen layers (in their order) and heads, in float32."""
    size = len(ids)
    found = np.empty((len(layers), len(heads), size, size), np.float32)
    place = {layer: i for i, layer in enumerate(sorted(layers))}

    def look(call: attention_hook.Call, proceed: attention_hook.Proceed) -> Tensor:
        if call.layer in place:
            for i, head in enumerate(heads):
                found[place[call.layer], i] = weights(call, head).float().cpu().numpy()
        return proceed(call)

    last = torch.tensor([size - 1], device=model.device)
    with (
        attention_hook.lock_network(model.net),
        attention_hook.attach(model.net, look, innermost=True),
    ):
        model.forward(ids[None].to(model.device), last, visible)
    return found


def weights(call: attention_hook.Call, head: int) -> Float[Tensor, "q k"]:
    """One head's matrix of a call; with a cache, of the rows that are new."""
    wide = torch.promote_types(call.query.dtype, torch.float32)
    group = call.query.shape[1] // call.key.shape[1]
    score = call.query[0, head].to(wide) @ call.key[0, head // group].to(wide).mT * call.scale
    if call.bias is not None:
        score = score + call.bias[0, head].to(wide)
    allowed = attention_hook.explicit_mask(call)[0]
    mask = allowed[head] if len(allowed) > 1 else allowed[0]
    return score.masked_fill(~mask, -torch.inf).softmax(-1)
