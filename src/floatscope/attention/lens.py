"""The logit lens: what the network would predict if it ended after a layer.

The final norm and the head of the network are applied to the output of a layer, a few rows at a time. The
first forward raises an error if the logits of the network are not the result of its final norm and head on
the output of its last layer.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn

from ..errors import CaptureError
from ..models import Model, parts

_CELLS = 1 << 24  # logits at once
_proven: "WeakSet[nn.Module]" = WeakSet()


@contextmanager
def proving(model: Model) -> Iterator[None]:
    """Return a context that checks the logits of the first forward against a lens on the last layer.

    Raises CaptureError if the logits are not the final norm and head applied to the last layer's output.
    """
    net = model.net
    if net in _proven:
        yield
        return
    readout = parts.readout(net)
    if readout is None:
        problem = f"the final norm and head of {model.name}, which a lens needs, were not found"
        raise CaptureError(problem, "Trace it without 'lens'.")
    last: list[Tensor] = []

    def hold(module: nn.Module, args: Any, output: Any) -> None:
        last[:] = [output_of(output)]

    def compare(module: nn.Module, args: Any, kwargs: dict[str, Any], output: Any) -> None:
        if net in _proven:
            return
        keep = kwargs.get("logits_to_keep", 0)  # these rows, or the last `keep` rows, or all if 0
        first = last[0].shape[1] - keep if isinstance(keep, int) and keep else 0
        row = [first] if isinstance(keep, int) else keep[:1]
        expected, logits = readout(last[0][:, row]).float(), output.logits[:, :1].float()
        last.clear()
        if not torch.allclose(expected, logits, rtol=1e-2, atol=1e-2 * float(logits.abs().max())):
            problem = f"the logits of {model.name} are not its final norm and head alone"
            raise CaptureError(problem, "A lens would differ from them: trace without 'lens'.")
        _proven.add(net)

    block = parts.layers(net)[-1]
    with block.register_forward_hook(hold), net.register_forward_hook(compare, with_kwargs=True):
        yield


def output_of(block: Any) -> Tensor:
    """Return a layer's output tensor, which may come in a tuple."""
    tensor: Tensor = block[0] if isinstance(block, tuple) else block
    return tensor


def predicted(
    model: Model, x: Float[Tensor, "b q d"], rows: Int[Tensor, " w"], selected: Bool[Tensor, "b w"]
) -> dict[str, Shaped[Tensor, "b w"]]:
    """Return the tokens that rows of a layer's output predict, their probability, and the entropy in nats.

    The mask token is never predicted. Positions that are not selected get token −1, and NaN for probability
    and entropy.
    """
    readout = parts.readout(model.net)
    assert readout is not None  # proven
    chosen = x[:, rows][selected]  # (n, d)
    batches = []
    for part in chosen.split(max(1, _CELLS // model.vocab_size)):
        logits = readout(part)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        if model.mask_id is not None:
            logits[:, model.mask_id] = -torch.inf
        p = logits.softmax(-1)
        best = p.max(-1)
        nats = torch.special.entr(p).sum(-1)
        batches.append((best.indices, best.values.float(), nats.float()))
    arrays = {}
    names = ("lens_token", "lens_probability", "lens_entropy")
    for name, values in zip(names, map(torch.cat, zip(*batches, strict=True)), strict=True):
        nothing = torch.nan if values.is_floating_point() else -1
        arrays[name] = values.new_full(selected.shape, nothing).masked_scatter(selected, values)
    return arrays
