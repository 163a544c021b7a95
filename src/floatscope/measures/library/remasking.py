"""Re-mask sensitivity: mask a revealed token again, and measure how other predictions change.

The computation needs the model. `remasking` is therefore a function of a model and its traces, and is not in
the list of measures. No token is decoded: each effect is measured with one additional forward over a stored
canvas.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float
from torch import Tensor

from ...errors import UsageError
from ...models import Model
from ...models.select import Choice, chosen
from ...plots import POSITIVE, Figure, lines
from ...recording.finished import TraceStep
from ...trace import Trace
from ..base import Measure
from ..result import Result


@dataclass(frozen=True)
class Remasking(Measure):
    """The measure that `remasking` computes: effect of a revealed token on masked positions, by step.

    - `moved`: total variation between the predictions at a masked position with and without the token, mean
      over masked positions and over revealed tokens
    - `flipped`: share of masked positions whose arg-max changes
    - `returned`: share of tokens that the model would predict again; no null

    The null is the same value if random tokens of the prompt, equally many per step, are masked instead of
    revealed tokens.

    Args:
        seed (int): Seed for drawing the tokens of the prompt.
    """

    seed: int = 0
    units: ClassVar[dict[str, str]] = {
        "moved": "total variation",
        **dict.fromkeys(("flipped", "returned"), "share"),
    }

    def plot(self, result: Result) -> Figure:
        return lines(
            result,
            ("predictions move (TV)", "moved", POSITIVE),
            ("arg-max changes", "flipped", POSITIVE),
            ("same token put back", "returned", POSITIVE),
            note=": one token re-masked (dotted: one of the prompt)",
            width=2.5,
        )


def remasking(
    model: Model,
    traces: Trace | Sequence[Trace],
    *,
    steps: Choice = None,
    batch_size: int = 8,
    seed: int = 0,
) -> Result:
    """Measure how predictions change if one revealed token is masked again, at chosen steps of traces.

    The function runs a forward for each revealed position at each chosen step, and equally many forwards for
    the control.

    Args:
        model (Model): The model that was traced, without interventions.
        traces (Trace or sequence of Trace): The traces of this model.
        steps (int, slice or sequence of int): The steps at which to mask; by default all.
        batch_size (int): Number of forwards computed together; 8 by default.
        seed (int): Seed for drawing the control's tokens; 0 by default.

    Returns:
        A result with the values `moved`, `flipped` and `returned` by step, which `Remasking` describes. A
            step without revealed positions, or without masked positions, is NaN.
    """
    trace_list = [traces] if isinstance(traces, Trace) else list(traces)
    measure = Remasking(seed=seed)
    examples = []
    for trace in trace_list:
        effects = remasked(model, trace, steps, batch_size=batch_size, seed=seed)
        answer = effects["region"] == "answer"
        values = {name: effects[name].where(answer).mean("key") for name in measure.units}
        for name in ("moved", "flipped"):
            values[f"{name}_null"] = effects[name].where(~answer).mean("key")
        example = xr.Dataset(values).drop_vars("region", errors="ignore")
        examples.append(example.astype(np.float64).assign_attrs(id=trace.prompt))
    return measure.summarise(examples, model.name)


def remasked(
    model: Model, trace: Trace, steps: Choice = None, *, batch_size: int = 8, seed: int = 0
) -> xr.Dataset:
    """Measure the effect of masking each position on the predictions at masked positions: (step, key).

    `moved` is the mean total variation of the predictions at masked positions. `flipped` is the share of
    masked positions with another arg-max. `returned` is 1 where the model would predict the same token again.
    Values are given at the revealed positions of the answer and at the control positions of the prompt, and
    are NaN at all other positions.
    """
    if model.mask_id is None:
        raise UsageError(f"{model.name} has no mask token", "Give a diffusion model.")
    numbers = chosen(steps, trace.n_steps, "step")
    size = trace.data.sizes["key"]
    values = np.full((len(Remasking.units), len(numbers), size), np.nan)
    for row, number in enumerate(numbers):
        step = TraceStep(model, trace, number)
        masked, revealed = np.flatnonzero(step.masked), np.flatnonzero(~step.masked)
        revealed = revealed[revealed >= step.prompt_length]
        if len(masked) and len(revealed):
            order = np.random.default_rng((seed, number)).permutation(step.prompt_length)
            places = np.concatenate([revealed, np.sort(order[: len(revealed)])])
            values[:, row, places] = _effects(step, masked, places, batch_size)
    region = ("key", trace.data["region"].values)
    coords = {"step": numbers, "key": np.arange(size), "region": region}
    arrays = zip(Remasking.units, values, strict=True)
    return xr.Dataset({name: (("step", "key"), array) for name, array in arrays}, coords)


@torch.inference_mode()
def _effects(
    step: TraceStep, masked: np.ndarray, places: np.ndarray, batch_size: int
) -> Float[np.ndarray, "3 p"]:
    """Return `moved`, `flipped` and `returned` for each of `places`, which are masked one at a time."""
    device, mask = step.model.device, step.model.mask_id
    assert mask is not None
    ids, masked_places, all_places = (
        torch.from_numpy(a).to(device) for a in (step.ids, masked, places)
    )
    unchanged = _predictions(step, ids[None], masked_places)[0].softmax(-1)  # (m, v)
    best, effects = unchanged.argmax(-1), []
    for part in all_places.split(batch_size):
        changed = ids.repeat(len(part), 1)
        changed[torch.arange(len(part), device=device), part] = mask
        logits = _predictions(step, changed, torch.cat([masked_places, part]))
        # one at a time, because each masked position needs logits of the whole vocabulary
        for i, place in enumerate(part):
            predicted = logits[i, : len(masked_places)].softmax(-1)
            moved = (predicted - unchanged).abs().sum(-1).mean() / 2
            flipped = (predicted.argmax(-1) != best).float().mean()
            returned = logits[i, len(masked_places) + i].argmax() == ids[place]
            effects.append((float(moved), float(flipped), float(returned)))
    return np.array(effects).T


def _predictions(step: TraceStep, ids: Tensor, positions: Tensor) -> Float[Tensor, "b p v"]:
    """Return the logits of the rows that predict these positions, with −∞ for the mask token."""
    model = step.model
    rows = (positions - model.shift).clamp(min=0)
    logits = model.forward(ids, rows, step.visibility(len(ids))).float()
    logits[..., model.mask_id] = -torch.inf
    return logits
