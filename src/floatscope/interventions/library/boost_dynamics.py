"""BoostDynamics: raise the attention of keys whose received attention grows from layer to layer (PAD).

The method of arXiv 2602.15556, which adds a bias to the attention scores and needs no training.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from ...attention.reference import expand
from ...decode.state import State
from ...errors import UsageError
from ...models import Model, Visibility, attention_hook
from ...models.select import Choice
from .. import columns
from ..base import ActiveIntervention, Intervention

_ROWS = 64  # queries whose scores give the median deviation


@dataclass(frozen=True)
class BoostDynamics(Intervention):
    """Raise the scores of keys whose received attention grows over the layers: z + λ·MAD(z)·P.

    The method is PAD (2602.15556). z are the scaled scores of a head. P_j is the mean positive change of
    key j's received attention (averaged over heads) over the layers below in the same forward, divided by
    the largest such change of any key. MAD(z) is the median absolute deviation of the head's scores over
    the visible keys of up to 64 evenly spaced queries. The first two layers have no earlier change and
    are not boosted. The paper gives λ = 0.1 and leaves the scale of P open.

    Args:
        strength: λ, default 0.1; 0 changes nothing.
        layers: layers to change, as a number, a slice or a sequence; all by default.
        steps: steps at which to act, as a number, a slice or a sequence; all by default.
    """

    strength: float = 0.1
    layers: Choice = None
    steps: Choice = None

    def check(self, model: Model) -> None:
        if model.n_layers < 3:
            raise UsageError(
                f"BoostDynamics needs 3 layers; {model.name} has {model.n_layers}",
                "Use a model with three or more layers: each boost uses the change between the two "
                "layers below.",
            )

    def acting(self, model: Model) -> "_Active":
        return _Active(self, model)

    def probe(self) -> "BoostDynamics":
        return replace(self, steps=None)

    def prove(self, model: Model) -> None:
        if self.strength:
            super().prove(model)


class _Active(ActiveIntervention):
    cacheable = False  # sums over rows are accumulated over forwards, each row once

    def __init__(self, spec: BoostDynamics, model: Model) -> None:
        super().__init__(model, spec.layers, spec.steps)
        self.strength = spec.strength
        # by layer, with a cache: sums over the rows so far
        self.sums: dict[int, columns.ColumnSums] = {}
        self.last: Tensor | None = None  # received attention in the layer below
        self.rise: Tensor | None = None  # sum of positive changes so far

    def begin(self, state: State) -> None:
        self.last = self.rise = None
        if state.step == 0 or not state.cached:
            self.sums = {}

    def attention(self, call: attention_hook.Call, proceed: attention_hook.Proceed) -> Tensor:
        if self.state is None or not self.strength:
            return proceed(call)
        rise = self.rise
        edited = call
        if rise is not None and self.acts(call.layer):
            largest = rise.amax(-1, keepdim=True).clamp_min(1e-30)
            bias = (
                self.strength
                * _deviation(call, self.state.visible)
                * (rise / largest)[:, None, None]
            )
            bias = bias if call.bias is None else bias + call.bias
            edited = replace(call, bias=bias.to(torch.float32))
        self._follow(call)
        return proceed(edited)

    def _follow(self, call: attention_hook.Call) -> None:
        """Record the attention that this layer's keys receive without the boost."""
        assert self.state is not None
        visible = self.state.visible.within(self.model.reaches[call.layer])
        sums = columns.attended(call, visible)
        if self.state.cached:
            if call.layer in self.sums:
                sums = self.sums[call.layer].plus(sums)
            self.sums[call.layer] = sums
        received = (sums.total / sums.viewers.clamp_min(1)).mean(1)  # (b, k)
        if self.last is not None:
            up = (received - self.last).clamp_min(0)
            self.rise = up if self.rise is None else self.rise + up
        self.last = received


def _deviation(call: attention_hook.Call, visible: Visibility) -> Float[Tensor, "b h 1 1"]:
    """Return the median absolute deviation of each head's scaled scores over the visible keys."""
    b, h, q, d = call.query.shape
    # Evenly spaced over each prompt's rows without padding.
    first = (visible.padding - (visible.keys - visible.queries)).clamp(min=0)[:, None]
    spread = torch.linspace(0, 1, _ROWS, device=call.query.device)
    sampled = first + ((q - 1 - first) * spread).round().long()  # (b, rows)
    query = call.query.float().gather(2, sampled[:, None, :, None].expand(b, h, _ROWS, d))
    score = query @ expand(call.key.float(), h).mT * call.scale  # (b, h, rows, k)
    mask = attention_hook.explicit_mask(call)
    mask = mask.expand(b, *mask.shape[1:])
    index = sampled[:, None, :, None].expand(b, mask.shape[1], _ROWS, mask.shape[3])
    score = score.masked_fill(~mask.gather(2, index), torch.nan).flatten(2)
    middle = score.nanmedian(-1, keepdim=True).values
    return (score - middle).abs().nanmedian(-1).values[..., None, None]
