"""Check a newly loaded model before any statistic is computed.

The checks are: no weight is NaN; the logits are finite and not all equal; the attention direction is the
stated one; padding does not change the logits; captured rows sum to one and agree with the float64 reference;
an edit at the attention hook changes the logits. If a check fails, the error names it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ..errors import ModelError
from ..models import Model, attention_hook
from .capture import Capture, Forward
from .reference import attention, scores
from .shapes import Labels, View

_SIZE = 12
# Share of the largest logit or weight: rounding error of a whole network in each dtype.
_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 0.1, torch.float16: 0.02}
_ROUTED = 1e-5


def check(model: Model) -> None:
    """Run every check; raise ModelError at the first that fails."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, model.vocab_size, (1, _SIZE), generator=generator).to(model.device)
    probe = Probe(model, ids)
    for name, find_problem in CHECKS.items():
        if problem := find_problem(probe):
            description, remedy = problem
            raise ModelError(f"self-check '{name}' failed for {model.name}: {description}", remedy)


@dataclass(eq=False)
class Probe:
    """A model, the token ids of a short text, and their logits."""

    model: Model
    ids: Tensor

    @cached_property
    def logits(self) -> Tensor:
        return self.model.logits(self.ids)


Problem = tuple[str, str] | None


def _no_nan(probe: Probe) -> Problem:
    for name, weight in probe.model.net.named_parameters():
        if not bool(torch.isfinite(weight).all()):
            return (
                f"{name} contains NaN or infinity",
                "The weights are damaged: download them again.",
            )
    return None


def _finite(probe: Probe) -> Problem:
    """Check that logits are finite and not all equal.

    Large weights may cause an overflow, which a norm layer turns into zeros.
    """
    logits = probe.logits
    if not bool(torch.isfinite(logits).all()):
        problem = "logits are NaN or infinite"
    elif bool((logits == logits.flatten()[0]).all()):
        problem = f"every logit is {float(logits.flatten()[0]):g}"
    else:
        return None
    largest = max(float(weight.detach().abs().max()) for weight in probe.model.net.parameters())
    dtype = str(probe.model.dtype).removeprefix("torch.")
    return f"{problem}, with weights of up to {largest:.3g} in {dtype}", (
        "The weights are damaged or too large for this dtype, or a number of config.json (such as an "
        "epsilon) is wrong: copy the checkpoint again, or use a wider dtype."
    )


def _direction(probe: Probe) -> Problem:
    """Check that changing the last token changes exactly the rows that see this token."""
    model, other = probe.model, probe.ids.clone()
    other[0, -1] = (other[0, -1] + 1) % model.vocab_size
    moved = (probe.logits - model.logits(other)).abs().amax(-1)[0]  # (s,)
    sees = model.visibility(_SIZE, _SIZE, torch.zeros(1, dtype=torch.long)).matrix[0, :, -1]
    sees = sees.to(moved.device)
    remedy = "Load it with the right direction=..., or report the family as broken."
    if bool((moved[~sees] > 0).any()):
        return (
            f"attention should be {model.direction}, but a later token changes earlier rows",
            remedy,
        )
    if not bool((moved[sees] > 0).all()):
        blind = "no row" if not bool((moved[sees][:-1] > 0).any()) else "not every expected row"
        return f"attention should be {model.direction}, but {blind} sees the last token", remedy
    return None


def _padding(probe: Probe) -> Problem:
    model, ids, pad = probe.model, probe.ids, 3
    padded = torch.cat([ids[:, :1].expand(1, pad), ids], dim=1)
    visible = model.visibility(_SIZE + pad, _SIZE + pad, torch.tensor([pad], device=ids.device))
    rows = torch.arange(pad, _SIZE + pad, device=ids.device)
    moved = (model.forward(padded, rows, visible) - probe.logits).abs().max()
    # A router may compute in float32 whatever the model's dtype.
    share = max(_TOLERANCE[model.dtype], _ROUTED if model.n_experts else 0.0)
    limit = share * float(probe.logits.abs().max().clamp_min(1e-3))
    if float(moved) > limit:
        return f"left padding changes a logit by {float(moved):.2g}", "Decode with batch_size=1."
    return None


def _rows_sum_to_one(probe: Probe) -> Problem:
    """Compare the capture's column sums with the float64 reference, on the attention hook's q and k."""
    model, ids = probe.model, probe.ids
    visible = model.visibility(_SIZE, _SIZE, torch.zeros(1, dtype=torch.long, device=ids.device))
    zeros = torch.zeros_like(ids)
    labels = Labels(zeros, 1, zeros, 1)
    layers = sorted({0, model.n_layers - 1})
    capture = Capture(model, {"mass"}, layers, range(model.n_heads))
    truth: dict[int, tuple[Tensor, float]] = {}

    def compare(call: attention_hook.Call, proceed: attention_hook.Proceed) -> Tensor:
        if call.layer in layers:
            view = View.from_call(call, visible, labels)
            largest = float(scores(view).abs().max())
            truth[call.layer] = attention(view).sum(2), largest  # (b, h, k)
        return proceed(call)

    forward = Forward(visible, labels, (0, 1), cached=False)
    with attention_hook.attach(model.net, compare), capture, capture.forward(forward) as captured:
        model.logits(ids)
    for layer, (expected, largest) in truth.items():
        column = captured.layers[layer].values["column_sum"]
        total = column.sum(-1) / _SIZE
        error = float((column[:, 0] - expected).abs().max())
        if not float((total - 1).abs().max()) <= 1e-3:
            problem = f"rows of layer {layer} sum to {float(total.flatten()[0]):.4g}"
        elif not error <= max(_TOLERANCE[model.dtype], 1e-5):  # statistics are float32 at best
            problem = f"column sums of layer {layer} are off by {error:.2g}"
        else:
            continue
        if largest > _LARGEST_SCORE:
            return f"attention scores reach {largest:.2g}, so that {problem}", _SCORES
        return problem, _TRANSFORMERS
    return None


# Statistics are computed in float32, which resolves scores of this size to 3e-5. Trained models have
# scores of up to a few hundred.
_LARGEST_SCORE = 300.0
_SCORES = (
    "float32 cannot distinguish such scores, so statistics would be wrong. Trained weights do not give "
    "them: copy the checkpoint again, or look for a wrong scale in its config.json or adapter."
)
_TRANSFORMERS = "This transformers version may call attention in another way; use the tested one."


def _edit_bites(probe: Probe) -> Problem:
    """Check that setting one layer's attention output to zero changes the logits."""

    def silence(call: attention_hook.Call, proceed: attention_hook.Proceed) -> Tensor:
        output = proceed(call)
        return torch.zeros_like(output) if call.layer == 0 else output

    with attention_hook.attach(probe.model.net, silence):
        after = probe.model.logits(probe.ids)
    if torch.equal(probe.logits, after):
        return "an edit at the attention hook does not change the logits", _TRANSFORMERS
    return None


CHECKS: dict[str, Callable[[Probe], Problem]] = {
    "no weight is NaN": _no_nan,
    "logits are finite": _finite,
    "direction": _direction,
    "padding changes nothing": _padding,
    "captured rows sum to one": _rows_sum_to_one,
    "an edit changes the logits": _edit_bites,
}
