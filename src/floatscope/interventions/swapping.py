"""Run many patches between two texts in one forward: each entry of the batch has its own patch.

A clean text and a corrupted text of equal length are entries 0 and 1 of the batch. Each patch begins at
the first layer where rows of the other text are inserted: there, a copy of the residual stream of the text
that it changes is added to the batch. The layers below are computed once. A call runs one pair of texts,
and no token is decoded. `Patch` patches decodings, one patch at a time.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..decode.state import State
from ..errors import UsageError
from ..models import Model, attention_hook, parts
from ..sequences.prompt import Encoded

CLEAN, CORRUPTED = 0, 1


@dataclass(frozen=True)
class Swap:
    """A patch that replaces rows of chosen layers' inputs in one run by the same rows of the other run.

    Args:
        layers: layers whose inputs are changed, from 0, at least one.
        positions: positions of the rows that are replaced.
        into: run that is changed: CORRUPTED (1, default) or CLEAN (0).
    """

    layers: tuple[int, ...]
    positions: tuple[int, ...]
    into: int = CORRUPTED


@torch.inference_mode()
def patched_each(
    model: Model,
    clean: Sequence[int],
    corrupted: Sequence[int],
    swaps: Sequence[Swap],
    rows: Sequence[int],
    *,
    batch_size: int = 64,
) -> Float[Tensor, "n r v"]:
    """Return the logits of some rows in the clean run, in the corrupted run, and in each patched run.

    Args:
        model (Model): the model to run, with no intervention in force.
        clean, corrupted: token ids of two texts of equal length, masks included.
        swaps: patches, each of which is applied separately.
        rows: indices of the rows whose logits are returned, as the network computes them (not shifted).
        batch_size: swaps per forward, default 64.

    Returns:
        Logits of shape (2 + swaps, rows, vocabulary).
    """
    if model.edits:
        raise UsageError(
            "patched_each runs its own forwards, but an intervention is in force",
            "Call it outside the `with` block.",
        )
    if len(clean) != len(corrupted):
        raise UsageError(
            f"patched_each: the clean text has {len(clean)} tokens, the corrupted text {len(corrupted)}",
            "Give texts of equal length.",
        )
    wrong = [
        s for s in swaps if not s.layers or not 0 <= min(s.layers) <= max(s.layers) < model.n_layers
    ]
    if wrong or batch_size < 1:
        problem = f"layers = {wrong[0].layers}" if wrong else f"batch_size = {batch_size}"
        raise UsageError(
            f"patched_each: {problem}",
            f"Use layers 0 to {model.n_layers - 1}, and batches of 1 or more.",
        )
    order = sorted(range(len(swaps)), key=lambda n: min(swaps[n].layers))
    logits: list[Tensor | None] = [None] * (2 + len(swaps))
    for start in range(0, max(1, len(order)), batch_size):
        members = order[start : start + batch_size]
        found_here = _Entries(model, [swaps[n] for n in members]).run(clean, corrupted, rows)
        for n, output in zip((-2, -1, *members), found_here, strict=True):
            logits[n + 2] = output
    return torch.stack([output for output in logits if output is not None])


class _Entries:
    """Run one forward of the clean and the corrupted text, to which each swap adds an entry.

    At the first layer of each swap, a copy of the text that it changes is added to the batch.
    """

    def __init__(self, model: Model, swaps: list[Swap]) -> None:
        self.model, self.swaps = model, swaps
        self.positions = [
            torch.tensor(s.positions, dtype=torch.long, device=model.device) for s in swaps
        ]

    def run(self, clean: Sequence[int], corrupted: Sequence[int], rows: Sequence[int]) -> Tensor:
        model, size = self.model, len(clean)
        texts = torch.tensor([list(clean), list(corrupted)], device=model.device)
        # The visibility of one text applies to every entry.
        prompt = Encoded(tuple(int(i) for i in clean), ("prompt",) * size)
        state = State.build(model, [prompt], texts[:1], (size, size), prompt_end=size)
        with attention_hook.lock_network(model.net), self._swapping():
            return model.forward(
                texts, torch.tensor(list(rows), device=model.device), state.visible
            )

    @contextmanager
    def _swapping(self) -> Iterator[None]:
        with ExitStack() as stack:
            for layer in sorted({layer for swap in self.swaps for layer in swap.layers}):
                block = parts.layers(self.model.net)[layer]
                hook = block.register_forward_pre_hook(self._hook(layer), with_kwargs=True)
                stack.callback(hook.remove)
            yield

    def _hook(self, layer: int) -> Any:
        begins = [swap.into for swap in self.swaps if min(swap.layers) == layer]

        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            x = args[0] if args else kwargs["hidden_states"]
            x = torch.cat([x, x[begins]])
            for n, (swap, positions) in enumerate(zip(self.swaps, self.positions, strict=True)):
                if layer in swap.layers:
                    x[2 + n, positions] = x[1 - swap.into, positions]
            return ((x, *args[1:]), kwargs) if args else (args, kwargs | {"hidden_states": x})

        return hook
