"""Rank layers and heads by the effect that ablating each of them at one step has on one token.

The effect is the decrease of the log-probability of the token, in nats, when the output of a head (or of all
heads of a layer) is set to zero at that step alone. One forward computes many ablations. The probabilities
are those of the model, before temperature and guidance, and the mask token has probability 0.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from ..errors import UsageError
from ..instrument import Model
from ..interventions.branching import ablated_each
from ..trace import Trace

Heads = list[tuple[int, int]]


@torch.inference_mode()
def ranked(
    model: Model,
    trace: Trace,
    touches: Sequence[Mapping[str, Any]],
    step: int,
    position: int,
    progress: Callable[[int, int], None],
) -> dict[str, Any]:
    """Return layers and heads with their effect on the final token of a position, strongest first.

    Args:
        model (Model): The model of the run.
        trace (Trace): The run.
        touches: The edits of the run.
        step: The step whose forward is repeated.
        position: A position of the answer.
        progress: Called with (layers done, layers in all); may raise an exception to end the ranking.
    """
    if model.block is not None:
        raise UsageError(
            f"{model.name} decodes in blocks, whose rows do not see the whole canvas",
            "Rank heads of a model that sees every position, or every earlier one.",
        )
    start = int(trace.info["prompt_length"])
    if step >= trace.n_steps:
        raise UsageError(f"no step {step}", f"Choose from 0 to {trace.n_steps - 1}.")
    canvas, final = trace.canvas.values[step], trace.canvas.values[-1]
    ids = canvas[canvas >= 0].tolist()
    last = len(ids) if model.is_diffusion else len(ids) + 1  # a causal model predicts the next one
    if not start <= position < last:
        raise UsageError(
            f"position {position} is not one of the answer's at this step",
            f"Choose from {start} to {last - 1}.",
        )
    token, row = int(final[position]), max(0, position - model.shift)
    if token in (-1, model.mask_id):
        raise UsageError(f"position {position} has no token in the end", "Choose another.")
    always = _always_ablated(model, touches, step)
    layers, head_range = range(model.n_layers), range(model.n_heads)
    (clean,) = _log_probabilities(model, ids, [always], row, token)
    log_chances: list[Float[np.ndarray, " sets"]] = []
    for layer in layers:
        progress(layer, model.n_layers)
        sets = [[*always, (layer, head)] for head in head_range]
        sets += [[*always, *((layer, head) for head in head_range)]]
        log_chances.append(_log_probabilities(model, ids, sets, row, token))
    effects = float(clean) - np.stack(log_chances)  # (layer, head and the whole layer)

    def entry(effect: float, **where: int) -> dict[str, Any]:
        return {**where, "effect": effect, "p": float(np.exp(clean - effect))}

    heads = [entry(float(effects[i, h]), layer=i, head=h) for i in layers for h in head_range]
    layer_entries = [entry(float(effects[i, -1]), layer=i) for i in layers]
    (text,) = model.token_texts([token])
    return {
        "step": step,
        "position": position,
        "token": {"id": token, "text": text, "p": float(np.exp(clean))},
        "heads": sorted(heads, key=lambda entry: -entry["effect"]),
        "layers": sorted(layer_entries, key=lambda entry: -entry["effect"]),
    }


def _always_ablated(model: Model, touches: Sequence[Mapping[str, Any]], step: int) -> Heads:
    """Return the (layer, head) pairs that the run's edits ablate at `step`.

    Raise UsageError if a forward with ablated heads cannot reproduce an edit of attention.
    """
    heads: Heads = []
    for touch in touches:
        if touch["kind"] in ("force", "remask") or touch["step"] > step:
            continue  # what they did stands on the canvas
        acts_everywhere = (
            model.is_diffusion or touch["step"] == 0
        )  # rows in a cache keep what they were
        if touch["kind"] != "ablate" or touch.get("to", "zero") != "zero" or not acts_everywhere:
            raise UsageError(
                f"the run has an edit ({touch['kind']}) that a single forward does not repeat",
                "Rank in the run that this branch left.",
            )
        heads += [(int(layer), int(head)) for layer, head in touch["heads"]]
    return heads


def _log_probabilities(
    model: Model, ids: Sequence[int], sets: Sequence[Heads], row: int, token: int
) -> Float[np.ndarray, " sets"]:
    logits = ablated_each(model, ids, sets, [row])[:, 0]
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if model.mask_id is not None:
        logits[:, model.mask_id] = -torch.inf
    return logits.log_softmax(-1)[:, token].double().cpu().numpy()
