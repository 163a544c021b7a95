"""Base classes of maskings, which hide keys from attention in chosen layers, heads and steps.

The base classes also choose controls and record the hidden attention. Subclasses choose the keys.
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
from .base import ActiveIntervention, Intervention
from .hidden import Hidden


@lru_cache(maxsize=4096)
def _name(ids: tuple[int, ...]) -> int:
    """Hash a prompt to a number that is the same on every machine; cached, because every layer needs it."""
    return zlib.crc32(repr(ids).encode())


class DoesNotFit(UsageError):
    """Raised if a prompt has too few columns to hide, or too few other columns for a control.

    Args:
        problem: what is wrong.
        remedy: how to fix it.
    """


@dataclass(frozen=True)
class Masking(Intervention):
    """Hide keys from attention in some layers, heads and steps.

    A control hides other keys of the prompt instead, head by head. The other keys match the chosen keys
    in number, position or weight but not in content, so any difference in effect is due to the choice.
    The draws depend only on prompt and seed: the control's keys change over steps and layers only if the
    chosen keys change.

    Args:
        layers: layers in which to act, as a number, a slice or a sequence; all by default.
        heads: heads in which to act, in the same way; all by default.
        steps: steps at which to act, in the same way; all by default.
        control: None (default) hides the chosen keys. The control "random" hides the same number of other
            keys, drawn at random. Control "matched" hides, for each chosen key, the nearest key that is
            not chosen. Control "mass" hides other keys, the strongest first, that together had the same
            share of the head's attention in the first forward without a mask as the chosen keys (all
            other keys if these had less).
        seed: seed of the control's draws, default 0.
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


class ActiveMask(ActiveIntervention):
    """A masking in force. `hidden` records the attention that the mask removed in the latest decoding."""

    def __init__(self, spec: Masking, model: Model, *, preview_first: bool) -> None:
        super().__init__(model, spec.layers, spec.steps)
        self.masking = spec
        self.hidden = Hidden()
        self.preview_first = preview_first
        self.previewing = False
        self.unmasked: dict[int, columns.ColumnSums] = {}  # by layer, of the first forward
        self.head_ids = chosen(spec.heads, model.n_heads, "head")
        self.heads = None
        if len(self.head_ids) < model.n_heads:
            self.heads = torch.zeros(1, model.n_heads, 1, dtype=torch.bool, device=model.device)
            self.heads[:, self.head_ids] = True

    # The preview: the first forward without the mask

    def needs_preview(self, state: State) -> bool:
        """Tell whether the first forward must also be run without the mask."""
        return self.preview_first and state.step == 0 and not state.blind

    def run_preview(self, state: State) -> None:
        """Record the column sums of every layer's attention without this mask in `unmasked`.

        This takes an extra forward. In a masked forward the mask in lower layers would change the
        attention of upper layers, so the keys and their controls would be chosen from different
        attention.
        """
        self.state, self.previewing, self.unmasked = state, True, {}
        try:
            last = torch.tensor([state.canvas.shape[1] - 1], device=state.canvas.device)
            self.model.forward(state.canvas, last, state.visible)
            self.finish_preview()
        finally:
            self.state, self.previewing = None, False

    def finish_preview(self) -> None:
        """Choose keys after the preview, from the column sums of every layer in `unmasked`."""

    def begin(self, state: State) -> None:
        if state.step == 0 and not state.blind:
            self.hidden = Hidden()

    def attention(self, call: attention_hook.Call, proceed: attention_hook.Proceed) -> Tensor:
        if not self.previewing:
            return self.masked(call, proceed)
        if call.layer in self.layers:
            self.unmasked[call.layer] = columns.attended(call, self.visible(call))
        return attention_hook.compute_attention(call)  # without later handlers and observers

    def masked(self, call: attention_hook.Call, proceed: attention_hook.Proceed) -> Tensor:
        """Handle a layer's attention in a regular forward, that is, outside the preview."""
        return proceed(call)

    # Keys

    def visible(self, call: attention_hook.Call) -> Visibility:
        """Return the visibility for the call's layer; without a state, for one forward without padding."""
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
        """Return the control's columns, or the picked columns if there is no control."""
        kind = self.masking.control
        if kind is None:
            return picked
        n_picked, room = picked.sum(-1), (pool & ~picked).sum(-1)  # (b, h)
        short = ((n_picked if kind != "mass" else n_picked.clamp(max=1)) > room).nonzero()
        if len(short):
            b, h = short[0].tolist()
            raise DoesNotFit(
                f"a control needs {int(n_picked[b, h])} other columns, and the prompt has "
                f"{int(room[b, h])} left",
                "Hide fewer columns, or use longer prompts.",
            )
        if total is not None and kind == "mass":
            picked = picked.expand_as(total)
        return controls.pick_controls(kind, picked, pool, self._noise(pool), total)

    def _noise(self, pool: Bool[Tensor, "b 1 k"]) -> Float[Tensor, "b k"]:
        """Return a random number per key, from a generator seeded with the prompt and the control's seed.

        The numbers do not depend on the batch or on later keys.
        """
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
        sums: columns.ColumnSums | None = None,
    ) -> attention_hook.Call:
        """Return the call with the picked keys hidden. `sums` has the column sums if already computed."""
        return columns.hide(call, self.noted(call, picked, rows, sums), rows)

    def noted(
        self,
        call: attention_hook.Call,
        picked: Bool[Tensor, "b #h k"],
        rows: Bool[Tensor, "b q"] | None = None,
        sums: columns.ColumnSums | None = None,
    ) -> Bool[Tensor, "b _ k"]:
        """Return the picked keys within the chosen heads, and record the attention on these keys."""
        picked = picked if self.heads is None else picked & self.heads
        state = self.state
        if state is not None and not state.blind:
            sums = sums or columns.attended(call, state.visible, rows)
            hidden, total, count = (
                x.expand(-1, self.model.n_heads)[:, self.head_ids]
                for x in ((sums.total * picked).sum(-1), sums.total.sum(-1), picked.sum(-1).float())
            )
            self.hidden.add(state.step, call.layer, state.active, hidden, total, count)
        return picked

    def report(self, prompt: int, steps: int) -> dict[str, float]:
        return self.hidden.mean(prompt, steps)
