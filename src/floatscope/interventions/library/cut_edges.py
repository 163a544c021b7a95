"""CutEdges: hide some keys from some rows, to find the edges that the answer depends on.

The intervention is attention knock-out as in Geva et al. (2304.14767). The row and the key of an edge are
chosen by region, class or position.
"""

from dataclasses import dataclass, replace

from ...errors import UsageError
from ...models import Model
from ...models.select import Choice
from ..masking import Masking
from ..selection import Names, Selection, check_classes
from ..token_masking import ActiveTokens


@dataclass(frozen=True)
class CutEdges(Masking):
    """Cut the attention from some rows to some keys, both chosen by region, class or position (2304.14767).

    Rows match all settings given for queries, and keys all settings given for keys; queries and keys need
    at least one setting each. A row that would lose all keys is not changed. A control hides other keys
    of the prompt from the same rows.

    Args:
        queries: regions of the rows: names of prompt parts, "gold", "answer", "masked", "revealed", or
            "predicting" for the rows that predict the answer.
        keys: regions of the keys, named in the same way.
        query_classes: token classes of the rows, such as "punctuation"; "structural" is all structural
            classes.
        key_classes: token classes of the keys.
        query_positions: positions of the rows in the prompt, as a number, a slice or a sequence.
        key_positions: positions of the keys in the prompt.
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
            if not selection.is_restricted:
                plural = {"query": "queries", "key": "keys"}[side]
                raise UsageError(
                    f"CutEdges needs queries and keys, but has no {plural}",
                    f"Give {plural}=..., {side}_classes=... or {side}_positions=....",
                )
        check_classes(self.query_classes)
        check_classes(self.key_classes)

    def _rows(self, model: Model) -> Selection:
        return Selection(model, self.queries, self.query_classes, self.query_positions)

    def _keys(self, model: Model) -> Selection:
        return Selection(model, self.keys, self.key_classes, self.key_positions)

    def probe(self) -> "CutEdges":
        """Return a version that hides every second token of the random probe text from all rows."""
        unrestricted = replace(
            self, queries=("prompt", "rest", "answer"), keys="prompt", control=None
        )
        bare = replace(unrestricted, query_classes=(), key_classes=(), steps=None)
        return replace(bare, query_positions=None, key_positions=None)

    def acting(self, model: Model) -> ActiveTokens:
        return ActiveTokens(self, model, self._keys(model), self._rows(model))
