"""What was captured of one forward: each layer's statistics, and rows behind what was revealed.

Shapes and names; the numbers come from `capture.py`, and rows are picked out or computed on request.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..errors import CaptureError
from ..models.devices import moved
from ..models.placing import sent
from .rows import Held, scores, strongest
from .statistics import Columns, Labels


@dataclass(frozen=True, eq=False)
class Candidates:
    """The rows that may be revealed, of one layer or of all: their strongest keys and region sums."""

    key: Int[Tensor, "b *l h w t"]
    weight: Float[Tensor, "b *l h w t"]
    flow: Float[Tensor, "b *l h w r"]


@dataclass(eq=False)
class LayerStatistics:
    """One layer in one forward. Heads are the chosen ones; sums run over this forward's queries."""

    column_sum: Float[Tensor, "b g h k"] | None = None
    entropy: Float[Tensor, "b h q"] | None = None  # over ln of the number of visible keys
    flow_sum: Float[Tensor, "b h r r"] | None = None  # summed over the queries of each region
    rollout_sum: Float[Tensor, "b r r"] | None = None
    columns: Columns | None = None
    value_norm: Float[Tensor, "b h q"] | None = None  # of this forward's rows, like the three below
    residual_norm: Float[Tensor, "b q"] | None = None
    massive: Float[Tensor, "b q"] | None = None
    massive_channel: Int[Tensor, "b q"] | None = None
    lens_token: Int[Tensor, "b w"] | None = None  # of the positions that the forward predicts
    lens_probability: Float[Tensor, "b w"] | None = None
    lens_entropy: Float[Tensor, "b w"] | None = None
    key_drift: Float[Tensor, "b k"] | None = None
    value_drift: Float[Tensor, "b k"] | None = None
    expert: Int[Tensor, "b c q"] | None = None  # of this forward's rows, strongest first
    expert_weight: Float[Tensor, "b c q"] | None = None
    # What `Captured.rows` needs: the strongest keys of every candidate, or what to compute rows from.
    candidates: Candidates | None = None
    held: Held | None = None

    def with_rows(self, whole: "LayerStatistics", n: int) -> "LayerStatistics":
        """These sums, and of what belongs to single rows the first n."""
        names = ("entropy", "value_norm", "residual_norm", "massive", "massive_channel")
        rows = {name: getattr(whole, name) for name in names}
        return replace(self, **{k: None if v is None else v[..., :n] for k, v in rows.items()})


@dataclass(frozen=True, eq=False)
class Rows:
    """Whole rows, one prompt's after another's, as their strongest keys and region sums."""

    key: Int[Tensor, "n l h t"]
    weight: Float[Tensor, "n l h t"]
    flow: Float[Tensor, "n l h r"]


@dataclass(frozen=True, eq=False)
class Captured:
    """What was captured of one forward, by layer; filled when the forward has ended."""

    layers: dict[int, LayerStatistics]
    labels: Labels
    top: int
    first_predicted: int = 0  # column of the first position that a lens was asked for
    settled: dict[int, LayerStatistics] | None = None  # of the rows that settle; None: of all
    partial: bool = False  # of some rows alone
    # Candidates of all layers, (b, l, h, w, _), in memory of their own.
    stacked: Candidates | None = None
    together: dict[str, Tensor] | None = None  # statistics of all layers, where they are already

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

    def copied(self) -> "Captured":
        """With what is together in memory of its own."""
        if self.together is None:
            return self
        return replace(self, together={name: one.clone() for name, one in self.together.items()})

    def rows(self, which: Sequence[Tensor]) -> Rows:
        """For each prompt the rows `which` (counted from the forward's first candidate, as many as
        each has; not all may have none). Once: what they are computed from is let go."""
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

    def _computed(self, layers: Sequence[LayerStatistics], which: Sequence[Tensor]) -> list[Tensor]:
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
    layer: LayerStatistics, prompt: Int[Tensor, " all"], place: Int[Tensor, " all"]
) -> tuple[Tensor, Tensor, Tensor]:
    """One layer's rows of all prompts, (all, h, _), from its candidates."""
    kept, layer.candidates = layer.candidates, None
    if kept is None:
        raise CaptureError("no rows were held", "Capture with keep including 'rows'.")
    prompt, place = moved((prompt, place), kept.key.device)
    key = kept.key[prompt, :, place].long()
    return key, kept.weight[prompt, :, place], kept.flow[prompt, :, place]
