"""MaskTokens: tokens of some region, class or place are hidden. What does the model read them for?"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool
from torch import Tensor

from ...decode.state import State
from ...errors import UsageError
from ...models import Model, seam
from ...models.select import Choice, chosen
from ...sequences.prompt import Encoded
from ...sequences.token_classes import CLASSES, STRUCTURAL, token_class
from ..masking import ActingMask, Masking

GOLD, ANSWER, STRUCTURE = "gold", "answer", "structural"


@dataclass(frozen=True)
class MaskTokens(Masking):
    """Hide the tokens of some regions ("passage 2", "gold"), classes ("punctuation") or positions.

    "gold" is each prompt's gold passage, "answer" the positions being generated, "structural" all
    structural classes. `positions` are places in the prompt, as Python counts them: MaskTokens(
    positions=0) hides the first token alone, a causal model's sink. Of several, tokens that are in all.
    `queries` hides them from the rows of some regions only: `MaskTokens(regions="gold",
    queries="answer")` cuts the path from the gold passage to the answer and leaves what other positions
    have read there. All rows of all forwards are meant otherwise, a causal model's prompt included.
    """

    regions: str | Sequence[str] = ()
    classes: str | Sequence[str] = ()
    queries: str | Sequence[str] = ()
    positions: Choice = None

    def check(self, model: Model) -> None:
        super().check(model)
        if not self.regions and not self.classes and self.positions is None:
            raise UsageError(
                "MaskTokens needs something to hide",
                "Give regions=..., classes=... or positions=....",
            )
        for name in _names(self.classes):
            if name not in (*CLASSES, STRUCTURE):
                raise UsageError(
                    f"no token class {name!r}", f"There are: {', '.join((STRUCTURE, *CLASSES))}."
                )

    def probe(self) -> "MaskTokens":
        every = replace(self, regions="prompt", classes=(), queries=(), positions=None)
        return replace(every, steps=None, control=None)

    def acting(self, model: Model) -> "_Acting":
        return _Acting(self, model)


def _names(given: str | Sequence[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


class _Acting(ActingMask):
    def __init__(self, spec: MaskTokens, model: Model) -> None:
        super().__init__(spec, model, looks_first=spec.control == "mass")
        self.spec = spec
        self.regions, self.queries = _names(spec.regions), _names(spec.queries)
        names = _names(spec.classes)
        self.classes = frozenset(
            c for name in names for c in (STRUCTURAL if name == STRUCTURE else (name,))
        )
        self.known: dict[tuple[int, str], str] = {}  # (token, region) → class
        self.places: dict[int, frozenset[int]] = {}  # prompt's length → positions
        self.columns = self.from_rows = torch.empty(0)
        self.drawn: dict[int | None, Tensor] = {}  # by layer, where they differ: what is hidden now

    def begin(self, state: State) -> None:
        """The columns of this step: the same for all layers and heads, and for guidance's blank."""
        super().begin(state)
        if state.blind:
            return
        self.drawn = {}
        where = [self._regions(state, b) for b in range(len(state.active))]
        self.columns = self._at(state, where, self._hidden)
        self.from_rows = self._at(state, where, self._looking)[:, -state.visible.queries :]

    def masked(self, call: seam.Call, proceed: seam.Proceed) -> Tensor:
        if not self.acts(call.layer):
            return proceed(call)
        if self.state is None:
            raise UsageError(
                "MaskTokens knows the regions of a prompt only while it is decoded or read",
                "Use generate, trace or read inside the `with`.",
            )
        rows = self.from_rows if self.queries else None
        return proceed(self.hide(call, self._columns(self.state, call.layer), rows))

    def _columns(self, state: State, layer: int) -> Bool[Tensor, "b _ k"]:
        weighed = self.spec.control == "mass"  # by what this layer's keys held in the first forward
        place = layer if weighed else None
        if place not in self.drawn:
            total = None
            if weighed:
                total = self.unmasked[layer].of(state.active).widened(self.columns.shape[-1]).total
            picked = self.columns[:, None]
            self.drawn[place] = self.instead(picked, self.prompt_keys(state), total)
        return self.drawn[place]

    def _regions(self, state: State, place: int) -> list[str]:
        """The region of every position, padding left out."""
        prompt = state.prompts[state.active[place]]
        return [*prompt.regions, *[ANSWER] * (state.canvas.shape[1] - state.prompt_end)]

    def _at(
        self, state: State, where: list[list[str]], test: Callable[[int, int, str, Encoded], bool]
    ) -> Bool[Tensor, "b k"]:
        flagged = torch.zeros(state.canvas.shape, dtype=torch.bool)
        for place, regions in enumerate(where):
            prompt = state.prompts[state.active[place]]
            start = state.canvas.shape[1] - len(regions)
            ids = state.canvas[place, start:].tolist()
            flags = [
                test(at, *one, prompt) for at, one in enumerate(zip(ids, regions, strict=True))
            ]
            flagged[place, start:] = torch.tensor(flags)
        return flagged.to(state.canvas.device)

    def _hidden(self, at: int, token: int, region: str, prompt: Encoded) -> bool:
        if self.spec.positions is not None and at not in self._places(len(prompt.ids)):
            return False
        if self.regions and not self._in(self.regions, region, prompt):
            return False
        return not self.classes or self._class(token, region) in self.classes

    def _places(self, size: int) -> frozenset[int]:
        if size not in self.places:
            self.places[size] = frozenset(chosen(self.spec.positions, size, "position"))
        return self.places[size]

    def _looking(self, at: int, token: int, region: str, prompt: Encoded) -> bool:
        return self._in(self.queries, region, prompt)

    def _in(self, names: tuple[str, ...], region: str, prompt: Encoded) -> bool:
        if GOLD in names and prompt.gold is None:
            raise UsageError(
                "MaskTokens(regions='gold') needs prompts that say which passage is gold",
                "Use Prompt.rag(..., gold=...), or name the region.",
            )
        return region in names or (GOLD in names and region == prompt.gold)

    def _class(self, token: int, region: str) -> str:
        if (token, region) not in self.known:
            text = self.model.token_texts([token])[0]
            self.known[token, region] = token_class(text, token, region, self.model)
        return self.known[token, region]
