"""MaskTokens: hide tokens of a region, class or position, to test whether the model reads them."""

from dataclasses import dataclass, replace

from ...models import Model
from ..selection import Names, Selection
from ..token_masking import ActiveTokens, TokenMasking


@dataclass(frozen=True)
class MaskTokens(TokenMasking):
    """Hide the tokens of some regions, classes or positions from attention.

    Tokens that match all given settings are hidden from all rows of all forwards, including the rows of a
    causal model's prompt. `MaskTokens(positions=0)` hides only the first token, the sink of a causal
    model.

    Args:
        queries: regions of the rows from which the tokens are hidden; all rows by default.
            `MaskTokens(regions="gold", queries="answer")` cuts the direct path from the gold passage to
            the answer, while other positions still read the passage.
    """

    queries: Names = ()

    def probe(self) -> "MaskTokens":
        unrestricted = replace(self, regions="prompt", classes=(), queries=(), positions=None)
        return replace(unrestricted, steps=None, control=None)

    def acting(self, model: Model) -> ActiveTokens:
        rows = Selection(model, self.queries) if self.queries else None
        return ActiveTokens(self, model, self.selection(model), rows)
