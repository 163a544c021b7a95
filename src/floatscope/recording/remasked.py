"""One step of a trace with one token masked again: what else would the model predict?

For each revealed position, and for as many tokens of the prompt as a control, one forward over the stored
canvas with that position masked. Nothing is decoded; the result shows what depends on one token at one
step.
"""

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float, Int
from torch import Tensor

from ..errors import UsageError
from ..models import Model
from ..models.select import Choice, chosen
from ..trace import Trace
from .trace_step import TraceStep

VALUES = ("moved", "flipped", "returned")


def remasked(
    model: Model, trace: Trace, steps: Choice = None, *, batch_size: int = 8, seed: int = 0
) -> xr.Dataset:
    """Measure what masking one position does to the predictions at the other masked positions.

    Returns (step, key); NaN at positions that were not masked this way. `moved` is the mean total
    variation of the predictions, `flipped` the share with another arg-max, `returned` is 1 if the model
    would restore the token. Positions of the answer are the revealed ones, positions of the prompt the
    control.
    """
    if model.mask_id is None:
        raise UsageError(
            f"{model.name} has no mask token", "Give a diffusion model and its traces."
        )
    numbers = chosen(steps, trace.n_steps, "step")
    size = trace.data.sizes["key"]
    values = np.full((len(VALUES), len(numbers), size), np.nan)
    for row, number in enumerate(numbers):
        step = TraceStep(model, trace, number)
        masked, revealed = np.flatnonzero(step.masked), np.flatnonzero(~step.masked)
        revealed = revealed[revealed >= step.prompt_length]
        if len(masked) and len(revealed):
            order = np.random.default_rng((seed, number)).permutation(step.prompt_length)
            places = np.concatenate([revealed, np.sort(order[: len(revealed)])])
            values[:, row, places] = _effects(step, masked, places, batch_size)
    coords = {
        "step": numbers,
        "key": np.arange(size),
        "region": ("key", trace.data["region"].values),
    }
    arrays = zip(VALUES, values, strict=True)
    return xr.Dataset({name: (("step", "key"), array) for name, array in arrays}, coords)


@torch.inference_mode()
def _effects(
    step: TraceStep, masked: np.ndarray, places: np.ndarray, batch_size: int
) -> Float[np.ndarray, "3 p"]:
    """Compute VALUES for each place."""
    device, mask = step.model.device, step.model.mask_id
    assert mask is not None
    ids, others, every = (torch.from_numpy(a).to(device) for a in (step.ids, masked, places))
    usual = _predictions(step, ids[None], others)[0].softmax(-1)  # (m, v)
    best, effects = usual.argmax(-1), []
    for part in every.split(batch_size):
        changed = ids.repeat(len(part), 1)
        changed[torch.arange(len(part), device=device), part] = mask
        logits = _predictions(step, changed, torch.cat([others, part]))
        for i, place in enumerate(part):  # singly: a vocabulary for each masked position
            now = logits[i, : len(others)].softmax(-1)
            moved = (now - usual).abs().sum(-1).mean() / 2
            flipped = (now.argmax(-1) != best).float().mean()
            returned = logits[i, len(others) + i].argmax() == ids[place]
            effects.append((float(moved), float(flipped), float(returned)))
    return np.array(effects).T


def _predictions(
    step: TraceStep, ids: Int[Tensor, "b s"], positions: Int[Tensor, " p"]
) -> Float[Tensor, "b p v"]:
    """Compute logits of the rows that predict these positions; the mask is never a prediction."""
    model = step.model
    rows = (positions - model.shift).clamp(min=0)
    logits = model.forward(ids, rows, step.visibility(len(ids))).float()
    logits[..., model.mask_id] = -torch.inf
    return logits
