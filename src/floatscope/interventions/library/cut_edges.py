"""CutEdges: these rows do not look at those keys. Along which edges does the answer come about?

Attention knock-out as in Geva et al. (2304.14767), with both ends of an edge chosen alike.
"""

from dataclasses import dataclass, replace

from ...errors import UsageError
from ...models import Model
from ...models.select import Choice
from ..masking import Masking
from ..selection import Names, Selection, check_classes
from ..token_masking import ActingTokens


@dataclass(frozen=True)
class CutEdges(Masking):
    """Cut the attention from some rows to some keys, both by region, class or position (2304.14767).

    `queries` and `keys` are regions ("gold", "question", "answer", "masked", "predicting": the rows from
    which the answer is predicted); `query_classes`, `key_classes`, `query_positions` and `key_positions`
    narrow either side, or choose by themselves. A row that would see nothing keeps what it saw. A control
    cuts the same rows off from other keys of the prompt.
    """

    queries: Names = ()
    keys: Names = ()
    query_classes: Names = ()
    key_classes: Names = ()
    query_positions: Choice = None
    key_positions: Choice = None

    def check(self, model: Model) -> None:
        super().check(model)
        for side, selection in (("query", self._rows(model)), ("key", self._keys(model))):
            if not selection.given:
                many = {"query": "queries", "key": "keys"}[side]
                raise UsageError(
                    f"CutEdges needs two ends, and has no {many}",
                    f"Give {many}=..., {side}_classes=... or {side}_positions=....",
                )
        check_classes(self.query_classes)
        check_classes(self.key_classes)

    def _rows(self, model: Model) -> Selection:
        return Selection(model, self.queries, self.query_classes, self.query_positions)

    def _keys(self, model: Model) -> Selection:
        return Selection(model, self.keys, self.key_classes, self.key_positions)

    def probe(self) -> "CutEdges":
        """All rows from half of the keys."""
        every = replace(self, queries=("prompt", "rest", "answer"), keys="prompt", control=None)
        bare = replace(every, query_classes=(), key_classes=(), steps=None)
        return replace(bare, query_positions=None, key_positions=None)

    def acting(self, model: Model) -> ActingTokens:
        return ActingTokens(self, model, self._keys(model), self._rows(model))
