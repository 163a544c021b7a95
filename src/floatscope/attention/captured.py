"""What was captured of one forward: each layer's statistics, and rows behind what was revealed.

Shapes and names; the numbers come from `capture.py`, and rows are picked out or computed on request.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..errors import CaptureError
from ..models.devices import moved
from ..models.placing import sent
from .rows import Held, scores, strongest
from .shapes import Arrays, Labels, exactly


@dataclass(frozen=True, eq=False)
class Candidates:
    """The rows that may be revealed, of one layer or of all: their strongest keys and region sums."""

    key: Int[Tensor, "b *l h w t"]
    weight: Float[Tensor, "b *l h w t"]
    flow: Float[Tensor, "b *l h w r"]


@dataclass(eq=False)
class Layer:
    """One layer in one forward: its arrays by name, as `floatscope.statistics` lists them.

    A tensor is (b, *dims) without "layer". Heads are the chosen ones. Sums run over this forward's queries,
    and values of rows are of this forward's rows.
    """

    values: Arrays = field(default_factory=dict)
    # What `Captured.rows` needs: the strongest keys of every candidate, or what to compute rows from.
    candidates: Candidates | None = None
    held: Held | None = None


@dataclass(frozen=True, eq=False)
class Rows:
    """Whole rows, one prompt's after another's, as their strongest keys and region sums."""

    key: Int[Tensor, "n l h t"]
    weight: Float[Tensor, "n l h t"]
    flow: Float[Tensor, "n l h r"]


@dataclass(frozen=True, eq=False)
class Captured:
    """What was captured of one forward, by layer; filled when the forward has ended."""

    layers: dict[int, Layer]
    labels: Labels
    top: int
    first_predicted: int = 0  # column of the first position that a lens was asked for
    settled: dict[int, Layer] | None = None  # of the rows that settle; None: of all
    partial: bool = False  # of some rows alone
    # Candidates of all layers, (b, l, h, w, _), in memory of their own.
    stacked: Candidates | None = None

    def detached(self) -> "Captured":
        """The same for `rows`, as it will be when the next forward has overwritten the rest."""
        kept = [one.candidates for one in self.layers.values()]
        if self.stacked is not None or any(one is None for one in kept):
            return self
        for one in self.layers.values():
            one.candidates = None
        device = self.labels.region.device  # layers may lie on several
        names = ("key", "weight", "flow")
        every = (
            torch.stack([getattr(one, name).to(device) for one in kept], dim=1) for name in names
        )
        return replace(self, layers={}, stacked=Candidates(*every))

    def rows(self, which: Sequence[Tensor]) -> Rows:
        """For each prompt the rows `which` (counted from the forward's first candidate, as many as
        each has; not all may have none). Once: what they are computed from is let go."""
        with exactly(self.labels.region):
            return self._rows(which)

    def _rows(self, which: Sequence[Tensor]) -> Rows:
        kept = self.detached().stacked
        counts = [len(some) for some in which]
        if kept is not None and kept.key.shape[-2] == 1 and set(counts) == {1}:  # all there are
            return Rows(kept.key[..., 0, :], kept.weight[..., 0, :], kept.flow[..., 0, :])
        device = self.labels.region.device
        prompt = sent(torch.arange(len(which)).repeat_interleave(torch.tensor(counts)), device)
        place = sent(torch.cat(list(which)), device)
        if kept is not None:
            tensors = [
                one[prompt, ..., place, :] for one in (kept.key.long(), kept.weight, kept.flow)
            ]
        elif all(one.held is not None for one in self.layers.values()):
            tensors = self._computed(list(self.layers.values()), which)
        else:  # some of the layers do not fit the kernels
            some = [
                tuple(part[:, 0] for part in self._computed([one], which))
                if one.held is not None
                else _picked(one, prompt, place)
                for one in self.layers.values()
            ]
            here = moved(tuple(some), device)  # layers may lie on several
            tensors = [torch.stack(part, dim=1) for part in zip(*here, strict=True)]
        return Rows(*tensors)  # (n, l, h, _) each

    def _computed(self, layers: Sequence[Layer], which: Sequence[Tensor]) -> list[Tensor]:
        """Rows of all prompts in these layers, (all, l, h, _): scores one by one, and the rest together."""
        device, every = self.labels.region.device, []
        for b, some in enumerate(which):
            if not len(some):  # its keys need not be looked at
                continue
            parts = [
                scores(one.held, b, some.to(one.held.key.device)).to(device)
                for one in layers
                if one.held is not None
            ]
            whole = torch.stack(parts).softmax(-1).movedim(2, 0)  # (n, l, h, k)
            every.append((*strongest(whole, self.top), whole @ self.labels.in_region[b]))
        for one in layers:
            one.held = None
        return [torch.cat(part) for part in zip(*every, strict=True)]


def _picked(
    layer: Layer, prompt: Int[Tensor, " all"], place: Int[Tensor, " all"]
) -> tuple[Tensor, Tensor, Tensor]:
    """One layer's rows of all prompts, (all, h, _), from its candidates."""
    kept, layer.candidates = layer.candidates, None
    if kept is None:
        raise CaptureError("no rows were held", "Capture with keep including 'rows'.")
    prompt, place = moved((prompt, place), kept.key.device)
    key = kept.key[prompt, :, place].long()
    return key, kept.weight[prompt, :, place], kept.flow[prompt, :, place]
