"""The logit lens: what the network would predict if it ended after a layer.

A layer's output goes through the final norm and the head, a few rows at a time, so that the logits of
many rows or of all layers are never in memory at once. The first forward of each network checks that its
logits are only the final norm and head of the last layer; a network that does more is refused.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ..errors import CaptureError
from ..models import Model, parts

_CELLS = 1 << 24  # logits at once
_proven: "WeakSet[nn.Module]" = WeakSet()


@dataclass(frozen=True, eq=False)
class Predicted:
    """The predictions at the requested positions; −1 and NaN elsewhere."""

    token: Int[Tensor, "b w"]
    probability: Float[Tensor, "b w"]  # of that token
    entropy: Float[Tensor, "b w"]  # of the whole distribution, in nats


@contextmanager
def proving(model: Model) -> Iterator[None]:
    """Check in the first forward that the network's logits are norm and head of its last layer."""
    net = model.net
    if net in _proven:
        yield
        return
    readout = parts.readout(net)
    if readout is None:
        raise CaptureError(
            f"{model.name} has no final norm and head where a lens looks for them",
            "Trace it without 'lens'.",
        )
    last: list[Tensor] = []

    def hold(module: nn.Module, args: Any, output: Any) -> None:
        last[:] = [output_of(output)]

    def compare(module: nn.Module, args: Any, kwargs: dict[str, Any], output: Any) -> None:
        if net in _proven:
            return
        wanted = kwargs.get("logits_to_keep", 0)  # these rows, or so many last ones, or all
        first = last[0].shape[1] - wanted if isinstance(wanted, int) and wanted else 0
        row = [first] if isinstance(wanted, int) else wanted[:1]
        own, logits = readout(last[0][:, row]).float(), output.logits[:, :1].float()
        last.clear()
        if not torch.allclose(own, logits, rtol=1e-2, atol=1e-2 * float(logits.abs().max())):
            raise CaptureError(
                f"the logits of {model.name} are not its final norm and head alone",
                "A lens would show another distribution: trace it without 'lens'.",
            )
        _proven.add(net)

    hooks = [
        parts.layers(net)[-1].register_forward_hook(hold),
        net.register_forward_hook(compare, with_kwargs=True),
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def output_of(block: Any) -> Tensor:
    """Return a layer's output tensor, which may come in a tuple."""
    tensor: Tensor = block[0] if isinstance(block, tuple) else block
    return tensor


def predicted(
    model: Model, x: Float[Tensor, "b q d"], rows: Int[Tensor, " w"], wanted: Bool[Tensor, "b w"]
) -> Predicted:
    """Predict from a layer's output at the requested rows. The mask is never predicted."""
    readout = parts.readout(model.net)
    assert readout is not None  # proven
    chosen = x[:, rows][wanted]  # (n, d)
    token = torch.full(wanted.shape, -1, device=x.device)
    probability, entropy = (torch.full(wanted.shape, torch.nan, device=x.device) for _ in "pe")
    best, sure, nats = [], [], []
    for part in chosen.split(max(1, _CELLS // model.vocab_size)):
        logits = readout(part)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        if model.mask_id is not None:
            logits[:, model.mask_id] = -torch.inf
        p = logits.softmax(-1)
        most = p.max(-1)
        best.append(most.indices)
        sure.append(most.values.float())
        nats.append(torch.special.entr(p).sum(-1).float())
    if len(chosen):
        token[wanted], probability[wanted] = torch.cat(best), torch.cat(sure)
        entropy[wanted] = torch.cat(nats)
    return Predicted(token, probability, entropy)
