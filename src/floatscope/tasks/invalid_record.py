"""Describe a record that cannot be used, with the reason and a remedy."""

import reprlib
from dataclasses import dataclass
from typing import Any

from ..errors import UsageError

_LONG = 60


def shown(value: Any) -> str:
    """Return the repr of a value from a file, for a message, in at most 60 characters."""
    short = reprlib.Repr()
    short.maxstring = short.maxother = short.maxlong = _LONG
    text = short.repr(value)
    return text if len(text) <= _LONG else f"{text[: _LONG - 3]}..."


@dataclass(frozen=True)
class InvalidRecord:
    """A record that could not be used.

    Args:
        where (str): The place of the record: its file and line, or its id.
        field (str): The field that is wrong; "" for the whole record.
        problem (str): What is wrong.
        remedy (str): How to correct the record.
    """

    where: str
    field: str
    problem: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.where}: {f'field {self.field} ' if self.field else ''}{self.problem}"

    def error(self, *, skippable: bool = False) -> UsageError:
        """Return a UsageError with the problem of this record and its remedy.

        Args:
            skippable (bool): Whether the remedy mentions `skip_bad`; False by default.
        """
        hint = " Or leave such records out with skip_bad (--skip-bad)." if skippable else ""
        return UsageError(str(self), f"{self.remedy}{hint}")
