"""Many ablations in one forward: every entry of the batch has its own, and shares what comes before it.

Below its lowest ablated layer a forward is the clean one. So entry 0 is the clean forward, and the others
leave it, as copies of its residual, at the layer where they begin to differ: each head of a network of L
layers costs half a forward on average, in large batches. One text at a time; nothing is decoded here.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..decode.state import State
from ..errors import UsageError
from ..models import Model, parts, seam
from ..sequences.prompt import Encoded
from .head_outputs import HeadMeans, HeadRows, Heads, by_layer
from .library.ablate_heads import AblateHeads, Fills


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
    batch_size: int = 64,
) -> Float[Tensor, "n r v"]:
    """Logits of some rows of one text, once for each set of heads, as AblateHeads would give them.

    Args:
        ids: the text, masks included.
        sets: heads ((layer, head), …) that are ablated together; an empty set is the clean forward.
        rows: which rows' logits, as the network computes them (not shifted).
        to, reference, seed: as in AblateHeads.
        batch_size: sets of a forward.
    """
    if model.edits:
        raise UsageError(
            "ablated_each runs forwards of its own, and an intervention is in force",
            "Call it outside the `with`; put what acts everywhere into every set.",
        )
    if batch_size < 1 or not sets:
        raise UsageError(
            f"ablated_each: {len(sets)} sets, batch_size = {batch_size}", "Give 1 or more of both."
        )
    wanted = []
    for heads in sets:
        spec = AblateHeads(tuple(heads) or ((0, 0),), to, None, reference, seed)
        spec.check(model)
        wanted.append(by_layer(heads, model, "ablated_each"))
    fills = Fills(AblateHeads((), to, None, reference, seed), model)
    first = [min(one, default=model.n_layers) for one in wanted]
    order = sorted(range(len(sets)), key=first.__getitem__)
    logits: list[Tensor | None] = [None] * len(sets)
    for at in range(0, len(order), batch_size):
        some = order[at : at + batch_size]
        found = _Branches(model, [wanted[n] for n in some], [first[n] for n in some], fills)
        for n, one in zip(some, found.run(ids, rows), strict=True):
            logits[n] = one
    return torch.stack([one for one in logits if one is not None])


class _Branches:
    """One forward of a batch that grows: sets of heads in the order in which they begin."""

    def __init__(
        self, model: Model, sets: list[dict[int, list[int]]], first: list[int], fills: Fills
    ) -> None:
        self.model, self.sets, self.first, self.fills = model, sets, first, fills
        self.state: State | None = None

    def run(self, ids: Sequence[int], rows: Sequence[int]) -> list[Tensor]:
        model = self.model
        prompt = Encoded(tuple(int(i) for i in ids), ("prompt",) * len(ids))
        canvas = torch.tensor([prompt.ids], device=model.device)
        size = canvas.shape[1]
        self.state = State.of(model, [prompt], canvas, (size, size), prompt_end=size)
        at = torch.tensor(list(rows), device=model.device)
        net = model.net
        with seam.alone(net), seam.attached(net, self._attention), self._growing():
            logits = model.forward(canvas, at, self.state.visible)
        # One that begins nowhere is the clean entry itself.
        return [logits[n + 1 if one < model.n_layers else 0] for n, one in enumerate(self.first)]

    @contextmanager
    def _growing(self) -> Iterator[None]:
        with ExitStack() as stack:
            for layer in sorted({one for one in self.first if one < self.model.n_layers}):
                block = parts.layers(self.model.net)[layer]
                hook = block.register_forward_pre_hook(self._grow(layer), with_kwargs=True)
                stack.callback(hook.remove)
            yield

    def _grow(self, layer: int) -> Any:
        more = self.first.count(layer)

        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            x = args[0] if args else kwargs["hidden_states"]
            x = torch.cat([x, x[:1].expand(more, -1, -1)])
            return ((x, *args[1:]), kwargs) if args else (args, kwargs | {"hidden_states": x})

        return hook

    def _attention(self, call: seam.Call, proceed: seam.Proceed) -> Tensor:
        output = proceed(call)
        here = [(n, self.sets[n].get(call.layer)) for n in range(len(output) - 1)]
        if any(heads for _, heads in here):
            output = output.clone()
        for n, heads in here:
            if heads:
                output[1 + n, :, heads] = self.fills.of(call.layer, heads, self.state, output)[0]
        return output
