"""A step of a trace with one token put back to mask: what else would the model predict?

For each revealed position, and for as many tokens of the prompt as a control, one forward over the stored
canvas with that one position masked. Nothing is decoded: it says what one token holds up at one step.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float, Int
from torch import Tensor

from ..errors import UsageError
from ..models import Model, Visibility
from ..models.select import Choice, chosen
from ..trace import Trace
from .again import canvas_of, require_same, visibility_of

VALUES = ("moved", "flipped", "returned")


def remasked(
    model: Model, trace: Trace, steps: Choice = None, *, batch_size: int = 8, seed: int = 0
) -> xr.Dataset:
    """(step, key): what masking that position does to the other masked positions; NaN at the rest.

    `moved`: total variation of their predictions, mean; `flipped`: share of them with another arg-max;
    `returned`: 1 where the model would put the same token back. Positions of the answer are the revealed
    ones, positions of the prompt the control's.
    """
    if model.mask_id is None:
        raise UsageError(
            f"{model.name} has no mask token", "Give a diffusion model and its traces."
        )
    require_same(model, trace)
    at = chosen(steps, trace.n_steps, "step")
    start, size = int(trace.info["prompt_length"]), trace.data.sizes["key"]
    found = {name: np.full((len(at), size), np.nan) for name in VALUES}
    for i, step in enumerate(at):
        canvas = canvas_of(model, trace, step)
        masked = np.flatnonzero(canvas == model.mask_id)
        masked = masked[masked >= start]
        revealed = np.setdiff1d(np.arange(start, len(canvas)), masked)
        if not len(masked) or not len(revealed):
            continue
        dealt = np.random.default_rng((seed, step)).permutation(start)[: len(revealed)]
        places = np.concatenate([revealed, np.sort(dealt)])
        visible = partial(visibility_of, model, trace, step)
        effects = _effects(model, canvas, masked, places, batch_size, visible)
        for name, values in zip(VALUES, effects, strict=True):
            found[name][i, places] = values
    coords = {"step": at, "key": np.arange(size), "region": ("key", trace.data["region"].values)}
    return xr.Dataset({name: (("step", "key"), v) for name, v in found.items()}, coords)


@torch.inference_mode()
def _effects(
    model: Model,
    canvas: np.ndarray,
    masked: np.ndarray,
    places: np.ndarray,
    batch_size: int,
    visible: Callable[[int], Visibility],
) -> tuple[list[float], list[float], list[float]]:
    """For each place: moved, flipped, returned."""
    device, mask = model.device, model.mask_id
    assert mask is not None
    ids = torch.from_numpy(canvas).to(device)
    others = torch.from_numpy(masked).to(device)
    usual = _predictions(model, ids[None], others, visible)[0].softmax(-1)  # (m, v)
    best = usual.argmax(-1)
    effects: tuple[list[float], list[float], list[float]] = ([], [], [])
    for part in torch.from_numpy(places).to(device).split(batch_size):
        changed = ids.repeat(len(part), 1)
        changed[torch.arange(len(part), device=device), part] = mask
        logits = _predictions(model, changed, torch.cat([others, part]), visible)
        for i, place in enumerate(part):  # one at a time: a vocabulary for each masked position
            now = logits[i, : len(others)].softmax(-1)
            effects[0].append(float((now - usual).abs().sum(-1).mean() / 2))
            effects[1].append(float((now.argmax(-1) != best).float().mean()))
            effects[2].append(float(logits[i, len(others) + i].argmax() == ids[place]))
    return effects


def _predictions(
    model: Model,
    ids: Int[Tensor, "b s"],
    positions: Int[Tensor, " p"],
    visible: Callable[[int], Visibility],
) -> Float[Tensor, "b p v"]:
    """Logits of the rows that predict these positions; the mask is never a prediction."""
    logits = model.forward(ids, (positions - model.shift).clamp(min=0), visible(len(ids))).float()
    logits[..., model.mask_id] = -torch.inf
    return logits
