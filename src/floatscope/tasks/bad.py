"""A record that cannot be used, and what to do about it."""

import reprlib
from dataclasses import dataclass
from typing import Any

from ..errors import UsageError

_LONG = 60


def shown(value: Any) -> str:
    """A value of a file in a message: neither its length nor its depth is ours to trust."""
    short = reprlib.Repr()
    short.maxstring = short.maxother = short.maxlong = _LONG
    text = short.repr(value)
    return text if len(text) <= _LONG else f"{text[: _LONG - 3]}..."


@dataclass(frozen=True)
class Bad:
    """A record that could not be read: where, which field ("" for the whole), what, and a remedy."""

    where: str
    field: str
    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.where}: {f'field {self.field} ' if self.field else ''}{self.what}"

    def error(self, *, skippable: bool = False) -> UsageError:
        """As an error; `skippable` where leaving it out would help, and was not asked for."""
        others = " Or leave such records out with skip_bad (--skip-bad)." if skippable else ""
        return UsageError(str(self), f"{self.remedy}{others}")
