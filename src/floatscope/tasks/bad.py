"""A record that cannot be used, and what to do about it."""

from dataclasses import dataclass

from ..errors import UsageError


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
