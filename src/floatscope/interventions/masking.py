"""What all maskings share: layers, heads, steps, controls, the hiding itself, and what it took away.

Which keys are hidden is the subclasses' business.
"""

import zlib
from dataclasses import dataclass
from functools import lru_cache

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..decode.draw import stream
from ..decode.state import State
from ..errors import UsageError
from ..models import Model, Visibility, attention_hook
from ..models.select import Choice, chosen
from . import columns, controls
from .base import Acting, Intervention
from .hidden import Hidden


@lru_cache(maxsize=4096)
def _name(ids: tuple[int, ...]) -> int:
    """A prompt in one number, the same on every machine; worked out once, not at every layer."""
    return zlib.crc32(repr(ids).encode())


class DoesNotFit(UsageError):
    """More columns than a prompt of this length has, or leaves for a control."""


@dataclass(frozen=True)
class Masking(Intervention):
    """Hide keys from attention in some layers, heads and steps (all by default).

    `control` hides other keys of the prompt instead, head by head.

    - "random": as many keys, each chosen key replaced by another at random.
    - "matched": as many keys, each the nearest to a chosen key that is not chosen itself.
    - "mass": keys that together hold the same share of that head's attention as the chosen ones did in the
      first forward without a mask, the strongest first, as many as it takes. Where all others hold less
      than that, all of them are hidden (`Decoding.info` records what was).

    A control has the size, the place or the weight of the real thing and not its content: what the two do
    differently is due to the choice. What is drawn depends on prompt and seed: it stays the same over
    steps, and over layers, as long as what was chosen does.
    """

    layers: Choice = None
    heads: Choice = None
    steps: Choice = None
    control: str | None = None
    seed: int = 0

    def check(self, model: Model) -> None:
        if self.control not in (None, *controls.KINDS):
            raise UsageError(
                f"control = {self.control!r}", "Use None, 'random', 'matched' or 'mass'."
            )
        chosen(self.layers, model.n_layers, "layer")
        chosen(self.heads, model.n_heads, "head")


class ActingMask(Acting):
    """A masking at work. `hidden` says what it took away in the decoding that ran last."""

    def __init__(self, spec: Masking, model: Model, *, looks_first: bool) -> None:
        super().__init__(model, spec.layers, spec.steps)
        self.masking = spec
        self.hidden = Hidden()
        self.looks_first = looks_first
        self.looking = False
        self.unmasked: dict[int, columns.ColumnSums] = {}  # by layer, of the first forward
        self.head_ids = chosen(spec.heads, model.n_heads, "head")
        self.heads = None
        if len(self.head_ids) < model.n_heads:
            self.heads = torch.zeros(1, model.n_heads, 1, dtype=torch.bool, device=model.device)
            self.heads[:, self.head_ids] = True

    # The first forward, once more and without the mask

    def looks(self, state: State) -> bool:
        return self.looks_first and state.step == 0 and not state.blind

    def look(self, state: State) -> None:
        """What every layer would attend to if this mask were not there.

        A forward of its own: in a masked one the upper layers have already lost what the lower ones
        hid, and what an intervention chooses would differ from what its controls are held against.
        """
        self.state, self.looking, self.unmasked = state, True, {}
        try:
            last = torch.tensor([state.canvas.shape[1] - 1], device=state.canvas.device)
            self.model.forward(state.canvas, last, state.visible)
            self.looked()
        finally:
            self.state, self.looking = None, False

    def looked(self) -> None:
        """`unmasked` is filled."""

    def begin(self, state: State) -> None:
        if state.step == 0 and not state.blind:
            self.hidden = Hidden()

    def attention(self, call: attention_hook.Call, proceed: attention_hook.Proceed) -> Tensor:
        if not self.looking:
            return self.masked(call, proceed)
        if call.layer in self.layers:
            self.unmasked[call.layer] = columns.attended(call, self.visible(call))
        return attention_hook.compute_attention(
            call
        )  # those who act later, and whoever looks on, are not meant

    def masked(self, call: attention_hook.Call, proceed: attention_hook.Proceed) -> Tensor:
        """The call of a forward that counts."""
        return proceed(call)

    # Keys

    def visible(self, call: attention_hook.Call) -> Visibility:
        """Who sees whom: as the decoding says, or as a lone forward without padding does it."""
        if self.state is not None:
            visible = self.state.visible
        else:
            padding = torch.zeros(len(call.query), dtype=torch.long, device=call.query.device)
            visible = self.model.visibility(call.query.shape[2], call.key.shape[2], padding)
        return visible.within(self.model.reaches[call.layer])

    def prompt_keys(self, state: State) -> Bool[Tensor, "b 1 k"]:
        real = state.visible.key_is_real
        return (real & (torch.arange(real.shape[1], device=real.device) < state.prompt_end))[
            :, None
        ]

    def instead(
        self,
        picked: Bool[Tensor, "b h k"],
        pool: Bool[Tensor, "b 1 k"],
        total: Float[Tensor, "b all_h k"] | None = None,
    ) -> Bool[Tensor, "b _ k"]:
        """The control's columns in place of the picked ones, if a control was asked for."""
        kind = self.masking.control
        if kind is None:
            return picked
        wanted, room = picked.sum(-1), (pool & ~picked).sum(-1)  # (b, h)
        short = ((wanted if kind != "mass" else wanted.clamp(max=1)) > room).nonzero()
        if len(short):
            b, h = short[0].tolist()
            raise DoesNotFit(
                f"no control of {int(wanted[b, h])} other columns fits among the "
                f"{int(room[b, h])} that are left of the prompt",
                "Hide fewer columns, or use longer prompts.",
            )
        if total is not None and kind == "mass":
            picked = picked.expand_as(total)
        return controls.others(kind, picked, pool, self._noise(pool), total)

    def _noise(self, pool: Bool[Tensor, "b 1 k"]) -> Float[Tensor, "b k"]:
        """A stream for each prompt, a number for each of its keys: a batch draws what each would alone,
        and keys that come later change nothing."""
        n_key = pool.shape[-1]
        noise = torch.zeros(len(pool), n_key)
        for b in range(len(pool)):
            name, padding = b, 0
            if self.state is not None:
                name = _name(self.state.prompts[self.state.active[b]].ids)
                padding = int(self.state.visible.padding[b])
            generator = stream(self.masking.seed, (name,))
            noise[b, padding:] = torch.rand(n_key - padding, generator=generator)
        return noise.to(pool.device)

    # Hiding

    def hide(
        self,
        call: attention_hook.Call,
        picked: Bool[Tensor, "b #h k"],
        rows: Bool[Tensor, "b q"] | None = None,
        now: columns.ColumnSums | None = None,
    ) -> attention_hook.Call:
        """The call without these keys; `now`: what they hold, where that is known already."""
        return columns.hide(call, self.noted(call, picked, rows, now), rows)

    def noted(
        self,
        call: attention_hook.Call,
        picked: Bool[Tensor, "b #h k"],
        rows: Bool[Tensor, "b q"] | None = None,
        now: columns.ColumnSums | None = None,
    ) -> Bool[Tensor, "b _ k"]:
        """These keys in the chosen heads; what they hold goes into the record."""
        picked = picked if self.heads is None else picked & self.heads
        state = self.state
        if state is not None and not state.blind:
            now = now or columns.attended(call, state.visible, rows)
            held, of, count = (
                x.expand(-1, self.model.n_heads)[:, self.head_ids]
                for x in ((now.total * picked).sum(-1), now.total.sum(-1), picked.sum(-1).float())
            )
            self.hidden.add(state.step, call.layer, state.active, held, of, count)
        return picked

    def report(self, prompt: int, steps: int) -> dict[str, float]:
        return self.hidden.mean(prompt, steps)
