"""Run many head ablations of one text, each starting from the clean forward at its first ablated layer.

Below the first ablated layer an ablated forward equals the clean forward. The clean forward runs once and
stores the inputs of the layers at which ablations begin. An ablation therefore takes half a forward on
average. Several ablations run in one batch. No token is decoded.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..decode.state import State
from ..errors import UsageError
from ..models import Model, attention_hook, parts
from ..sequences.prompt import Encoded
from .head_outputs import HeadMeans, HeadRows, Heads, by_layer
from .layers import hooked
from .library.ablate_heads import AblateHeads, Fills

# Largest number of elements in a forward's widest tensor, on a CPU and on a GPU. Beyond 8 MB a CPU takes
# longer per element.
_AT_ONCE = (1 << 21, 1 << 25)


@torch.inference_mode()
def ablated_each(
    model: Model,
    ids: Sequence[int],
    sets: Sequence[Heads],
    rows: Sequence[int],
    *,
    to: str = "zero",
    reference: HeadMeans | HeadRows | None = None,
    seed: int = 0,
    batch_size: int | None = None,
) -> Float[Tensor, "n r v"]:
    """Return the logits of some rows of one text for each set of heads, ablated as by AblateHeads.

    Args:
        model (Model): the model to run, with no intervention in force.
        ids: token ids of the text, masks included.
        sets: sets of heads ((layer, head), …) that are ablated together; an empty set is the clean
            forward.
        rows: indices of the rows whose logits are returned, as the network computes them (not shifted).
        to: replacement of a head's output: "zero" (default), "mean" or "resample", as in AblateHeads.
        reference: HeadMeans for "mean", HeadRows for "resample", None for "zero".
        seed: seed of the draws of "resample", default 0.
        batch_size: sets per forward; None (default) is as many sets as fit a CPU's cache, and more sets on a
            GPU.

    Returns:
        Logits of shape (sets, rows, vocabulary).
    """
    if model.edits:
        raise UsageError(
            "ablated_each runs its own forwards, but an intervention is in force",
            "Call it outside the `with` block, and add heads that are always ablated to every set.",
        )
    if batch_size is None:
        batch_size = max(1, _AT_ONCE[model.device.type != "cpu"] // (len(ids) * _width(model)))
    if batch_size < 1 or not sets:
        raise UsageError(
            f"ablated_each: {len(sets)} sets, batch_size = {batch_size}", "Give 1 or more of both."
        )
    ablations = []
    for heads in sets:
        spec = AblateHeads(tuple(heads) or ((0, 0),), to, None, reference, seed)
        spec.check(model)
        ablations.append(by_layer(heads, model, "ablated_each"))
    first = [min(ablation, default=model.n_layers) for ablation in ablations]
    clean = _Clean(model, ids, rows, frozenset(first))
    fills = Fills(AblateHeads((), to, None, reference, seed), model)
    # An empty set is the clean forward.
    logits = clean.logits.repeat(len(sets), 1, 1)
    order = sorted(
        (n for n, layer in enumerate(first) if layer < model.n_layers), key=first.__getitem__
    )
    for start in range(0, len(order), batch_size):
        members = order[start : start + batch_size]
        logits[members] = _Branches(
            clean, fills, [ablations[n] for n in members], first=first[members[0]]
        ).run()
    return logits


def _width(model: Model) -> int:
    """Return the width of a layer's widest activation."""
    return max(model.net.config.hidden_size, getattr(model.net.config, "intermediate_size", 0))


class _Clean:
    """The forward without ablations: the logits, and the inputs of the layers where ablations begin."""

    def __init__(
        self, model: Model, ids: Sequence[int], rows: Sequence[int], layers: frozenset[int]
    ) -> None:
        self.model, self.layers = model, parts.layers(model.net)
        prompt = Encoded(tuple(int(i) for i in ids), ("prompt",) * len(ids))
        self.canvas = torch.tensor([prompt.ids], device=model.device)
        self.rows = torch.tensor(list(rows), device=model.device)
        size = len(prompt.ids)
        self.state = State.build(model, [prompt], self.canvas, (size, size), prompt_end=size)
        self.inputs: dict[int, Tensor] = {}
        with ExitStack() as stack:
            stack.enter_context(attention_hook.lock_network(model.net))
            for layer in layers - {model.n_layers}:
                stack.enter_context(hooked(self.layers[layer], partial(self._keep, layer)))
            self.logits = self.forward()

    def _keep(self, layer: int, x: Float[Tensor, "1 s w"]) -> Float[Tensor, "1 s w"]:
        self.inputs[layer] = x
        return x

    def forward(self) -> Float[Tensor, "n r v"]:
        return self.model.forward(self.canvas, self.rows, self.state.visible)


class _Branches:
    """A forward that starts at layer `first`; an entry for each set is added at its first ablated layer."""

    def __init__(
        self, clean: _Clean, fills: Fills, sets: list[dict[int, list[int]]], first: int
    ) -> None:
        self.clean, self.fills, self.sets, self.first = clean, fills, sets, first

    def run(self) -> Float[Tensor, "n r v"]:
        net, layers = self.clean.model.net, self.clean.layers
        joining = Counter(min(ablation) for ablation in self.sets)
        with ExitStack() as stack:
            stack.enter_context(attention_hook.lock_network(net))
            stack.enter_context(attention_hook.attach(net, self._attention))
            for layer in range(self.first):
                stack.enter_context(_identity(layers[layer]))
            for layer, count in joining.items():
                stack.enter_context(hooked(layers[layer], partial(self._join, layer, count)))
            return self.clean.forward()

    def _join(self, layer: int, count: int, x: Float[Tensor, "b s w"]) -> Float[Tensor, "n s w"]:
        new = self.clean.inputs[layer].expand(count, -1, -1)
        return new if layer == self.first else torch.cat([x, new])

    def _attention(self, call: attention_hook.Call, proceed: attention_hook.Proceed) -> Tensor:
        output = proceed(call)
        ablated = [(n, self.sets[n].get(call.layer)) for n in range(len(output))]
        if any(heads for _, heads in ablated):
            output = output.clone()
        for n, heads in ablated:
            if heads:
                filled = self.fills.compute(call.layer, heads, self.clean.state, output)
                output[n, :, heads] = filled[0]
        return output


@contextmanager
def _identity(block: nn.Module) -> Iterator[None]:
    """Replace a layer by the identity while a `with` block runs, because its output is already stored."""
    block.forward = lambda hidden_states, *args, **kwargs: hidden_states
    try:
        yield
    finally:
        del block.forward
