"""Score targets in one forward: compute the logits at the targets' positions, and ln p of their tokens.

The caller chooses which positions are masked. No token is decoded. Interventions in force change the
forward.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..models import Model
from ..sequences.prompt import Encoded
from .state import State, lay_out, notify_edits


def target_logits(
    model: Model,
    contexts: Sequence[Encoded],
    target: Int[Tensor, "b w"],
    masked: Bool[Tensor, "b w"] | None,
) -> Float[Tensor, "b w v"]:
    """Return the logits at the positions of each target, which follows its context.

    `masked` marks the target's positions that a diffusion model sees as masks; it is None for a causal
    model.
    """
    canvas = lay_out(model, contexts, target.shape[1])
    start, stop = canvas.shape[1] - target.shape[1], canvas.shape[1]
    canvas[:, start:] = target
    if masked is not None:
        assert model.mask_id is not None
        canvas[:, start:][masked] = model.mask_id
    # A single forward: interventions treat it as the first step of a decoding.
    state = State.build(model, contexts, canvas, (start, stop), prompt_end=start)
    with notify_edits(model, state):
        return model.predict(canvas, start, stop, state.visible)


def log_p(
    model: Model, logits: Float[Tensor, "*n v"], target: Int[Tensor, "*n"]
) -> Float[Tensor, "*n"]:
    """Return ln p of each target token, in float32 or wider. The mask token gets probability 0."""
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if model.mask_id is not None:
        wide[..., model.mask_id] = -torch.inf
    return wide.log_softmax(-1).gather(-1, target[..., None]).squeeze(-1)
