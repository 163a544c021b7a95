"""Select tokens by region, class and position, for maskings, cuts and patches."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool
from torch import Tensor

from ..decode.state import State
from ..errors import UsageError
from ..models import Model
from ..models.select import Choice, chosen
from ..sequences.prompt import Encoded
from ..sequences.token_classes import CLASSES, STRUCTURAL, token_class

Names = str | Sequence[str]
GOLD, ANSWER, STRUCTURE = "gold", "answer", "structural"
MASKED, REVEALED, PREDICTING = "masked", "revealed", "predicting"
_PLACE = re.compile(r"answer (\d+)")


def names_of(names: Names) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def check_classes(names: Names) -> None:
    for name in names_of(names):
        if name not in (*CLASSES, STRUCTURE):
            raise UsageError(
                f"no token class {name!r}", f"There are: {', '.join((STRUCTURE, *CLASSES))}."
            )


@dataclass(eq=False)
class Selection:
    """Tokens that match all given regions, classes and positions.

    `regions` may name parts of the prompt, and also "gold" (each prompt's gold passage), "answer"
    (positions being generated), "answer 3" (position 3 of the answer, from 0), "masked" and "revealed"
    (answer positions that are masked or revealed at this step), and "predicting" (positions whose rows
    predict the answer: each one position further left if logits are shifted). The class "structural" is
    all structural classes. `positions` index the prompt, as in Python.
    """

    model: Model
    regions: Names = ()
    classes: Names = ()
    positions: Choice = None
    _token_classes: dict[tuple[int, str], str] = field(
        default_factory=dict
    )  # (token, region) → class
    # length of the prompt → positions
    _places: dict[int, frozenset[int]] = field(default_factory=dict)
    _answers: frozenset[int] = frozenset()  # positions in the answer

    def __post_init__(self) -> None:
        self.regions = names_of(self.regions)
        groups = (STRUCTURAL if name == STRUCTURE else (name,) for name in names_of(self.classes))
        self.classes = tuple(dict.fromkeys(name for group in groups for name in group))
        places = (_PLACE.fullmatch(name) for name in self.regions)
        self._answers = frozenset(int(match[1]) for match in places if match)

    @property
    def is_restricted(self) -> bool:
        return bool(self.regions or self.classes) or self.positions is not None

    def find(self, state: State) -> Bool[Tensor, "b k"]:
        """Mark the selected columns of a state's canvas; without any setting, all columns but padding."""
        if not self.is_restricted:
            return state.visible.key_is_real
        flagged = torch.zeros(state.canvas.shape, dtype=torch.bool)
        masked = state.masked.tolist()
        for place, b in enumerate(state.active):
            prompt = state.prompts[b]
            start = state.prompt_end - len(prompt.ids)
            for position, token in enumerate(state.canvas[place, start:].tolist()):
                flagged[place, start + position] = self._has(
                    position, token, masked[place][start + position], prompt
                )
        return flagged.to(state.canvas.device)

    def _has(self, position: int, token: int, masked: bool, prompt: Encoded) -> bool:
        size = len(prompt.ids)
        region = prompt.regions[position] if position < size else ANSWER
        if self.positions is not None and position not in self._placed(size):
            return False
        if self.regions and not self._matches_region(position, region, masked, prompt):
            return False
        return not self.classes or self._class(token, region) in self.classes

    def _placed(self, size: int) -> frozenset[int]:
        if size not in self._places:
            self._places[size] = frozenset(chosen(self.positions, size, "position"))
        return self._places[size]

    def _matches_region(self, position: int, region: str, masked: bool, prompt: Encoded) -> bool:
        size, names = len(prompt.ids), self.regions
        if GOLD in names and prompt.gold is None:
            raise UsageError(
                "regions='gold' needs prompts with a gold passage",
                "Use Prompt.rag(..., gold=...), or name the region.",
            )
        if region in names or (GOLD in names and region == prompt.gold):
            return True
        if PREDICTING in names and position >= size - self.model.shift:
            return True
        if position < size:
            return False
        return (MASKED if masked else REVEALED) in names or position - size in self._answers

    def _class(self, token: int, region: str) -> str:
        if (token, region) not in self._token_classes:
            text = self.model.token_texts([token])[0]
            self._token_classes[token, region] = token_class(text, token, region, self.model)
        return self._token_classes[token, region]
