"""The statistics captured from one forward by layer, and the attention rows that predict revealed tokens.

The positions that a step reveals are known only after the forward. Until then, this module keeps either the
strongest keys of every candidate row, or the queries and keys from which the rows can be computed
(`HeldRows`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..errors import CaptureError
from ..models.devices import moved
from ..models.placing import sent
from .shapes import Arrays, Labels, View, exactly


@dataclass(frozen=True, eq=False)
class Candidates:
    """Strongest keys and region sums of the rows that may be revealed, in one layer or in all layers."""

    key: Int[Tensor, "b *l h w t"]
    weight: Float[Tensor, "b *l h w t"]
    flow: Float[Tensor, "b *l h w r"]


@dataclass(frozen=True, eq=False)
class HeldRows:
    """One layer's held queries, and the keys, mask and bias from which their weights can be computed."""

    query: Float[Tensor, "b h w d"]
    key: Float[Tensor, "b kv k d"]
    scale: float
    mask: Bool[Tensor, "b _ w k"] | None  # None: every key is visible
    bias: Float[Tensor, "b h 1 k"] | None = None


@dataclass(eq=False)
class Layer:
    """The arrays of one layer in one forward, by name, for the chosen heads.

    The shape of an array is (b, *dims) without "layer". Sums are over the queries of this forward. Arrays by
    row contain the rows of this forward.
    """

    values: Arrays = field(default_factory=dict)
    # For `Captured.rows`: the strongest keys of every candidate, or the tensors to compute rows from.
    candidates: Candidates | None = None
    held_rows: HeldRows | None = None


@dataclass(frozen=True, eq=False)
class Rows:
    """Strongest keys and region sums of complete rows; the first axis joins the rows of all prompts."""

    key: Int[Tensor, "n l h t"]
    weight: Float[Tensor, "n l h t"]
    flow: Float[Tensor, "n l h r"]


@dataclass(frozen=True, eq=False)
class Captured:
    """The results of one forward, by layer; complete when the forward has ended."""

    layers: dict[int, Layer]
    labels: Labels
    top: int
    first_predicted: int = 0  # column of the first position with a lens
    settled: dict[int, Layer] | None = None  # of settling rows; None: all rows settle
    partial: bool = False  # only some rows were computed
    # Candidates of all layers, (b, l, h, w, _), copied.
    stacked: Candidates | None = None

    def detached(self) -> "Captured":
        """Return these results with a copy of the candidates for `rows`, which no later forward overwrites.

        If a layer has no candidates, the results are returned without a copy.
        """
        candidates = [layer.candidates for layer in self.layers.values()]
        if self.stacked is not None or any(c is None for c in candidates):
            return self
        for layer in self.layers.values():
            layer.candidates = None
        device = self.labels.region.device  # layers may be on several devices
        layers = [[t.to(device) for t in (c.key, c.weight, c.flow)] for c in candidates if c]
        arrays = [torch.stack(part, dim=1) for part in zip(*layers, strict=True)]
        return replace(self, layers={}, stacked=Candidates(*arrays))

    def rows(self, rows_by_prompt: Sequence[Tensor]) -> Rows:
        """Return strongest keys and region sums of the given rows of each prompt. Call only once.

        Rows are numbered from the first candidate row.
        """
        with exactly(self.labels.region):
            return self._rows(rows_by_prompt)

    def _rows(self, rows_by_prompt: Sequence[Tensor]) -> Rows:
        stacked = self.detached().stacked
        counts = [len(rows) for rows in rows_by_prompt]
        if stacked is not None and stacked.key.shape[-2] == 1 and set(counts) == {1}:  # all rows
            return Rows(stacked.key[..., 0, :], stacked.weight[..., 0, :], stacked.flow[..., 0, :])
        device = self.labels.region.device
        number = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
        prompt = sent(number, device)
        place = sent(torch.cat(list(rows_by_prompt)), device)
        if stacked is not None:
            arrays = (stacked.key.long(), stacked.weight, stacked.flow)
            tensors = [array[prompt, ..., place, :] for array in arrays]
        elif all(layer.held_rows is not None for layer in self.layers.values()):
            tensors = self._computed(list(self.layers.values()), rows_by_prompt)
        else:  # some of the layers do not fit the kernels
            layer_rows = [
                tuple(part[:, 0] for part in self._computed([layer], rows_by_prompt))
                if layer.held_rows is not None
                else _pick_rows(layer, prompt, place)
                for layer in self.layers.values()
            ]
            on_device = moved(tuple(layer_rows), device)  # layers may be on several devices
            tensors = [torch.stack(part, dim=1) for part in zip(*on_device, strict=True)]
        return Rows(*tensors)  # (n, l, h, _) each

    def _computed(self, layers: Sequence[Layer], rows_by_prompt: Sequence[Tensor]) -> list[Tensor]:
        """Return key, weight and flow, (n, l, h, _) each, of the given rows, computed prompt by prompt."""
        device, by_prompt = self.labels.region.device, []
        for b, rows in enumerate(rows_by_prompt):
            if not len(rows):  # no rows chosen in this prompt
                continue
            sources = [layer.held_rows for layer in layers if layer.held_rows is not None]
            parts = [_scores(s, b, rows.to(s.key.device)).to(device) for s in sources]
            weight = torch.stack(parts).softmax(-1).movedim(2, 0)  # (n, l, h, k)
            by_prompt.append((*strongest(weight, self.top), weight @ self.labels.in_region[b]))
        for layer in layers:
            layer.held_rows = None
        return [torch.cat(part) for part in zip(*by_prompt, strict=True)]


def _pick_rows(layer: Layer, prompt: Tensor, place: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return key, weight and flow, (n, h, _) each, of the given rows from one layer's candidates."""
    candidates, layer.candidates = layer.candidates, None
    if candidates is None:
        raise CaptureError("no rows were kept", "Include 'rows' in keep.")
    prompt, place = moved((prompt, place), candidates.key.device)
    key = candidates.key[prompt, :, place].long()
    return key, candidates.weight[prompt, :, place], candidates.flow[prompt, :, place]


def hold(view: View, start: int, stop: int) -> HeldRows:
    """Keep the tensors from which the weights of rows start … stop − 1 can be computed later.

    Queries are copied, so that the full query tensor can be freed.
    """
    mask = view.mask
    if mask is not None:
        mask = mask[:, :, start:stop].expand(len(view.query), -1, -1, -1)
    elif view.causal:
        keys = torch.arange(view.visible.keys, device=view.query.device)
        mask = keys <= view.visible.last_visible[:, None, start:stop, None]
    return HeldRows(view.query[:, :, start:stop].clone(), view.key, view.scale, mask, view.bias)


def _scores(source: HeldRows, b: int, rows: Int[Tensor, " n"]) -> Float[Tensor, "h n k"]:
    """Compute the scaled scores of some held rows of prompt `b`; −inf for keys that a row does not see."""
    query = source.query[b, :, rows].float() * source.scale  # (h, n, d)
    key = source.key[b].float()  # (kv, k, d)
    n_heads, n, d = query.shape
    score = (query.reshape(len(key), -1, d) @ key.mT).view(n_heads, n, -1)
    if source.bias is not None:
        score = score + source.bias[b]
    if source.mask is not None:
        score = score.masked_fill(~source.mask[b][:, rows], -torch.inf)
    return score


def strongest(
    weight: Float[Tensor, "*h n k"], top: int
) -> tuple[Int[Tensor, "*h n t"], Float[Tensor, "*h n t"]]:
    """Return the `top` keys with the largest weights, and these weights; −1 and 0 for missing keys."""
    best = weight.topk(min(top, weight.shape[-1]), dim=-1)
    missing = top - best.values.shape[-1]
    key = best.indices.masked_fill(best.values == 0, -1)
    key = torch.nn.functional.pad(key, (0, missing), value=-1)
    return key, torch.nn.functional.pad(best.values, (0, missing))
