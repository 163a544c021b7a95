"""MaskTokens: tokens of some region, class or place are hidden. What does the model read them for?"""

from dataclasses import dataclass, replace

from ...models import Model
from ..selection import Names, Selection
from ..token_masking import ActingTokens, TokenMasking


@dataclass(frozen=True)
class MaskTokens(TokenMasking):
    """Hide the tokens of some regions ("passage 2", "gold"), classes ("punctuation") or positions.

    "gold" is each prompt's gold passage, "answer" the positions being generated, "structural" all
    structural classes. `positions` are places in the prompt, as Python counts them: MaskTokens(
    positions=0) hides the first token alone, a causal model's sink. Of several, tokens that are in all.
    `queries` hides them from the rows of some regions only: `MaskTokens(regions="gold",
    queries="answer")` cuts the path from the gold passage to the answer and leaves what other positions
    have read there. All rows of all forwards are meant otherwise, a causal model's prompt included.
    """

    queries: Names = ()

    def probe(self) -> "MaskTokens":
        every = replace(self, regions="prompt", classes=(), queries=(), positions=None)
        return replace(every, steps=None, control=None)

    def acting(self, model: Model) -> ActingTokens:
        rows = Selection(model, self.queries) if self.queries else None
        return ActingTokens(self, model, self.selection(model), rows)
