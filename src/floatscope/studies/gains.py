"""Compare, question by question, how much two models gain from passages (claim 7).

Answers are given as columns with one value per question. The result is a number, or the reason why the
answers cannot test the claim. This module reads no files.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float

from .claim import Number, format_value
from .numbers import number
from .verdict import LITERATURE, level_of

# id, question, contains, exact_match, f1; if recorded: known, cut
Columns = Mapping[str, np.ndarray]
TWICE = 1.5  # smallest ratio that counts as "about twice"
KNOWS = (0.2, 0.6)  # share right without passages: below is a floor, above little can be gained
CEILING = 0.95


class Unpaired(ValueError):
    """The error for answers that cannot be paired by question."""


def aligned(tables: Sequence[Columns]) -> list[dict[str, np.ndarray]]:
    """Return each table restricted to the questions that all tables share, in the order of the first table.

    Raise `Unpaired` if an id occurs twice in a table or belongs to different questions, or if the tables
    share no question.
    """
    places = []
    for table in tables:
        row_of = {str(name): i for i, name in enumerate(table["id"])}
        if len(row_of) < len(table["id"]):
            names = list(map(str, table["id"]))
            twice = next(name for name in names if names.count(name) > 1)
            raise Unpaired(
                f"The id {twice!r} belongs to several questions: give every record an id of its own."
            )
        places.append(row_of)
    common = [name for name in places[0] if all(name in row_of for row_of in places)]
    if not common:
        raise Unpaired("No question was asked of both models, without and with passages.")
    lines = [[row_of[name] for name in common] for row_of in places]
    chosen = [
        {key: np.asarray(column)[rows] for key, column in table.items()}
        for table, rows in zip(tables, lines, strict=True)
    ]
    for other in chosen[1:]:
        differ = np.flatnonzero(chosen[0]["question"] != other["question"])
        if len(differ):
            raise Unpaired(f"The id {common[differ[0]]!r} belongs to two different questions.")
    return chosen


@dataclass(frozen=True, eq=False)
class Gains:
    """The scores of two models on the same questions, asked without and with passages."""

    mdm_closed: Float[np.ndarray, " n"]
    mdm_read: Float[np.ndarray, " n"]
    arm_closed: Float[np.ndarray, " n"]
    arm_read: Float[np.ndarray, " n"]
    clusters: np.ndarray | None = None  # an id for each question; None: all are independent

    @classmethod
    def from_tables(cls, tables: Sequence[Columns], score: str = "contains") -> "Gains":
        """Create the gains from four aligned tables in the order of the fields, by one column of scores."""
        gains = cls(*(np.asarray(table[score], float) for table in tables))
        return replace(gains, clusters=tables[0].get("cluster"))

    def among(self, selected: Bool[np.ndarray, " n"]) -> "Gains":
        """Return the gains on the questions for which `selected` is True."""
        arrays = {name: x[selected] for name, x in vars(self).items() if x is not None}
        return Gains(**arrays)

    @property
    def mdm(self) -> Float[np.ndarray, " n"]:
        """Gain of the diffusion model by question: score with passages − score without."""
        return self.mdm_read - self.mdm_closed

    @property
    def arm(self) -> Float[np.ndarray, " n"]:
        """Gain of the causal model by question: score with passages − score without."""
        return self.arm_read - self.arm_closed

    def theta(self, factor: float = TWICE) -> Number | None:
        """Return gain of the MDM − `factor` × gain of the ARM, with the interval that decides claim 7."""
        label = f"gain of the MDM − {factor:g} × gain of the ARM"
        return number(
            self.mdm - factor * self.arm,
            label,
            "points",
            level=level_of(LITERATURE),
            null=0.0,
            bounds=(-1 - factor, 1 + factor),
            clusters=self.clusters,
        )

    def bar(self, factor: float = TWICE) -> str:
        """Return why these answers cannot test claim 7, and what to ask instead; "" if they can."""
        shares = {"MDM": self.mdm_closed, "ARM": self.arm_closed}
        for model, closed in shares.items():
            if not KNOWS[0] <= closed.mean() <= KNOWS[1]:
                return (
                    f"Without passages the {model} answers {format_value(closed.mean(), '%')} right, outside "
                    f"{100 * KNOWS[0]:.0f} to {100 * KNOWS[1]:.0f} %: ask what both models know in "
                    "part (for the embedded pair: --data world:mixed)."
                )
        for model, read in {"MDM": self.mdm_read, "ARM": self.arm_read}.items():
            if read.mean() > CEILING:
                return (
                    f"With passages the {model} answers {format_value(read.mean(), '%')} right, near the "
                    "ceiling: ask harder questions, or with more passages (--asked-as)."
                )
        room, required = 1 - self.mdm_closed.mean(), factor * self.arm.mean()
        if required > room:
            return (
                f"The MDM could gain {format_value(room, 'points')} at most, and {factor:g} times the ARM's "
                f"gain is {format_value(required, 'points')}: ask harder questions, or with more passages "
                "(--asked-as)."
            )
        return ""
