"""Base classes of maskings that choose their keys by region, class or position, with controls.

Subclasses define how the keys are changed. MaskColumns chooses keys by attention instead.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool
from torch import Tensor

from ..decode.state import State
from ..errors import UsageError
from ..models import Model, attention_hook
from ..models.select import Choice
from .masking import ActiveMask, Masking
from .selection import Names, Selection, check_classes


@dataclass(frozen=True)
class TokenMasking(Masking):
    """Base class of maskings that choose tokens by region, class or position.

    Tokens that match all given settings are chosen; at least one setting is required.

    Args:
        regions: names of prompt parts, such as "passage 2"; "gold" is each prompt's gold passage,
            "answer" the positions being generated.
        classes: token classes, such as "punctuation"; "structural" is all structural classes.
        positions: positions in the prompt, as a number, a slice or a sequence.
    """

    regions: Names = ()
    classes: Names = ()
    positions: Choice = None

    def check(self, model: Model) -> None:
        super().check(model)
        if not self.regions and not self.classes and self.positions is None:
            raise UsageError(
                f"{type(self).__name__} selects no tokens",
                "Give regions=..., classes=... or positions=....",
            )
        check_classes(self.classes)

    def selection(self, model: Model) -> Selection:
        return Selection(model, self.regions, self.classes, self.positions)


class ActiveTokens(ActiveMask):
    """A token masking in force: it changes the chosen keys for all rows or for the chosen rows."""

    def __init__(
        self, spec: Masking, model: Model, keys: Selection, rows: Selection | None = None
    ) -> None:
        super().__init__(spec, model, preview_first=spec.control == "mass")
        self.keys, self.rows = keys, rows
        self.columns = torch.empty(0)
        self.from_rows: Tensor | None = None
        # hidden columns of this step, by layer if layers differ
        self.drawn: dict[int | None, Tensor] = {}

    def begin(self, state: State) -> None:
        """Select this step's columns, for all layers and heads; guidance's second forward keeps them."""
        super().begin(state)
        if state.blind:
            return
        self.drawn = {}
        self.columns = self.keys.find(state)
        if self.rows is not None:
            self.from_rows = self.rows.find(state)[:, -state.visible.queries :]

    def masked(self, call: attention_hook.Call, proceed: attention_hook.Proceed) -> Tensor:
        if not self.acts(call.layer):
            return proceed(call)
        if self.state is None:
            raise UsageError(
                f"{type(self.masking).__name__} knows a prompt's regions only while the prompt is "
                "decoded or read",
                "Use generate, trace or read inside the `with` block.",
            )
        return proceed(self.changed(call, self._columns(self.state, call.layer)))

    def changed(
        self, call: attention_hook.Call, picked: Bool[Tensor, "b #h k"]
    ) -> attention_hook.Call:
        """Return the call with the chosen keys hidden."""
        return self.hide(call, picked, self.from_rows)

    def _columns(self, state: State, layer: int) -> Bool[Tensor, "b _ k"]:
        # uses the attention on a layer's keys in the first forward
        weighed = self.masking.control == "mass"
        place = layer if weighed else None
        if place not in self.drawn:
            total = None
            if weighed:
                total = (
                    self.unmasked[layer].select(state.active).widened(self.columns.shape[-1]).total
                )
            picked = self.columns[:, None]
            self.drawn[place] = self.instead(picked, self.prompt_keys(state), total)
        return self.drawn[place]
