"""Trace a model's untrained control: a copy with permuted weights and heads as sharp as the model's.

If the model is a bidirectional diffusion model, the control reads the canvases of the run, so that both
networks see the same tokens at every step. The control of any other model decodes the prompt itself.
"""

from dataclasses import replace
from weakref import WeakKeyDictionary

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from ..decode.loop import AnySampler
from ..instrument import Model
from ..models import permuted
from ..models.sharpened import match_sharpness, sharpened
from ..recording.finished import replaying
from ..recording.options import TraceOptions
from ..scenes.parts import spread
from ..sequences.prompt import Encoded
from ..trace import Trace
from .limits import KEEP

_SEED = 0
_TEXTS = 4  # canvases of the run on which the control is made as sharp as the model
_controls: WeakKeyDictionary[nn.Module, Model] = WeakKeyDictionary()


def control_of(model: Model) -> Model:
    """Return a copy of the model with permuted weights; later calls return the same copy."""
    if model.net not in _controls:
        net, name = permuted.copied(model.net, _SEED), permuted.named(model.name, _SEED)
        _controls[model.net] = replace(model, net=net, name=name)
    return _controls[model.net]


def controlled(model: Model, trace: Trace, prompt: Encoded, sampler: AnySampler) -> Trace:
    """Return a trace of the model's control on the run's canvases, or on its own decoding of the prompt."""
    control = control_of(model)
    with sharpened(control, match_sharpness(control, model, *_texts(model, trace))):
        if _reads_canvases(model):
            return replaying(control, trace, TraceOptions(keep=KEEP))
        (decoded,) = control.trace([prompt], sampler, keep=KEEP)
        return decoded


def _reads_canvases(model: Model) -> bool:
    return model.is_diffusion and model.block is None


def _texts(
    model: Model, trace: Trace
) -> tuple[Int[Tensor, "n size"], Bool[Tensor, "n size"] | None]:
    """Return canvases of the run, with a mask of the rows that predict masked positions.

    If the control decodes the prompt itself, return the final text of the run, and None instead of the mask.
    """
    canvas = trace.canvas.values
    if not _reads_canvases(model):
        ids = canvas[-1][canvas[-1] >= 0]
        return torch.from_numpy(np.ascontiguousarray(ids))[None].long(), None
    ids = torch.from_numpy(canvas[spread(trace.n_steps, _TEXTS)]).long()
    rows = torch.eq(ids, model.mask_id or 0)
    rows[:, : int(trace.info["prompt_length"])] = False
    rows = rows.roll(-model.shift, 1)
    rows[:, ids.shape[1] - model.shift :] = False
    return ids, rows
