"""One forward over contexts and their targets: logits there, and the targets' ln p.

It does not choose masks, and decodes nothing; interventions in force see the forward.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..models import Model
from ..prompt import Encoded
from .steps import State, told


def look(
    model: Model,
    contexts: Sequence[Encoded],
    target: Int[Tensor, "b w"],
    masked: Bool[Tensor, "b w"] | None,
) -> Float[Tensor, "b w v"]:
    """Logits at the target's positions; behind a diffusion model's masks where some are masked."""
    start = max(len(c.ids) for c in contexts)
    stop = start + target.shape[1]
    canvas = torch.zeros((len(contexts), stop), dtype=torch.long)  # padding: any id will do
    for b, context in enumerate(contexts):
        canvas[b, start - len(context.ids) : start] = torch.tensor(context.ids, dtype=torch.long)
    canvas = canvas.to(target.device)
    hollow = torch.zeros_like(canvas, dtype=torch.bool)
    canvas[:, start:] = target
    if masked is not None:
        assert model.mask_id is not None
        hollow[:, start:] = masked
        canvas[hollow] = model.mask_id
    padding = torch.tensor([start - len(c.ids) for c in contexts], device=target.device)
    visible = model.visibility(stop, stop, padding)
    # One forward alone: for an intervention it is the first step, with none before it.
    state = State(
        step=0,
        prompts=contexts,
        rows=range(len(contexts)),
        canvas=canvas,
        hollow=hollow,
        visible=visible,
        prompt_end=start,
        window=(start, stop),
        predicting=(start - model.shift, stop - model.shift),
        cached=False,
    )
    with told(model, state):
        return model.predict(canvas, start, stop, visible)


def log_p(
    model: Model, logits: Float[Tensor, "*n v"], target: Int[Tensor, "*n"]
) -> Float[Tensor, "*n"]:
    """ln p of each target token, in float32 at least; the mask is never a prediction."""
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if model.mask_id is not None:
        wide[..., model.mask_id] = -torch.inf
    return wide.log_softmax(-1).gather(-1, target[..., None]).squeeze(-1)
