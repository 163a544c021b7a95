"""What all maskings share: layers, heads, steps, controls, and the hiding itself.

Which keys are hidden is the subclasses' business.
"""

import zlib
from dataclasses import dataclass
from functools import lru_cache

import torch
from jaxtyping import Bool
from torch import Tensor

from ..decode.draw import stream
from ..errors import UsageError
from ..models import Model, Visibility, seam
from ..models.select import Choice, chosen
from . import columns
from .base import Acting, Intervention


@lru_cache(maxsize=4096)
def _name(ids: tuple[int, ...]) -> int:
    """A prompt in one number, the same on every machine; worked out once, not at every layer."""
    return zlib.crc32(repr(ids).encode())


class DoesNotFit(UsageError):
    """More columns than a prompt of this length has, or leaves for a control."""


CONTROLS = (None, "random", "matched")


@dataclass(frozen=True)
class Masking(Intervention):
    """Hide keys from attention in some layers, heads and steps (all by default).

    `control` hides other keys instead, as many, head by head: "random" ones, or "matched" ones, each
    the nearest to a chosen key that is not chosen itself. A control has the size and (matched) the
    place of the real thing and not its content: what the two do differently is due to the choice.
    """

    layers: Choice = None
    heads: Choice = None
    steps: Choice = None
    control: str | None = None
    seed: int = 0

    def check(self, model: Model) -> None:
        if self.control not in CONTROLS:
            raise UsageError(f"control = {self.control!r}", "Use None, 'random' or 'matched'.")
        chosen(self.layers, model.n_layers, "layer")
        chosen(self.heads, model.n_heads, "head")


class ActingMask(Acting):
    """A masking at work."""

    def __init__(self, spec: Masking, model: Model) -> None:
        super().__init__(model, spec.layers, spec.steps)
        self.masking = spec
        heads = chosen(spec.heads, model.n_heads, "head")
        self.heads = None
        if len(heads) < model.n_heads:
            self.heads = torch.zeros(1, model.n_heads, 1, dtype=torch.bool, device=model.device)
            self.heads[:, heads] = True

    def visible(self, call: seam.Call) -> Visibility:
        """Who sees whom: as the decoding says, or as a lone forward without padding does it."""
        if self.state is not None:
            return self.state.visible
        padding = torch.zeros(len(call.query), dtype=torch.long, device=call.query.device)
        return self.model.visibility(call.query.shape[2], call.key.shape[2], padding)

    def instead(
        self, picked: Bool[Tensor, "b h k"], there: Bool[Tensor, "b #h k"], layer: int
    ) -> Bool[Tensor, "b h k"]:
        """The control's columns in place of the picked ones, if a control was asked for."""
        kind = self.masking.control
        if kind is None:
            return picked
        wanted, room = picked.sum(-1), there.sum(-1).expand(-1, picked.shape[1])  # (b, h)
        short = (2 * wanted > room).nonzero()
        if len(short):
            b, h = short[0].tolist()
            need, keys = int(wanted[b, h]), int(room[b, h])
            raise DoesNotFit(
                f"no control of {need} other columns fits among {keys} keys",
                "Hide fewer columns, or use longer prompts.",
            )
        if self.state is None:
            names, step = list(range(len(picked))), 0
        else:
            names = [_name(self.state.prompts[b].ids) for b in self.state.active]
            step = self.state.step
        # A stream for each prompt, step and layer: a batch draws what each prompt would draw alone.
        streams = [stream(self.masking.seed, (name, step, layer)) for name in names]
        return columns.control(kind, picked, there, streams)

    def hide(
        self, call: seam.Call, picked: Bool[Tensor, "b #h k"], rows: Tensor | None = None
    ) -> seam.Call:
        return columns.hide(call, picked if self.heads is None else picked & self.heads, rows)
