"""Select layers, heads and steps by number, slice or sequence, or by typed text such as 3, 0:4 or 0,5,11."""

from collections.abc import Sequence
from typing import Any

from ..errors import UsageError

Choice = int | slice | Sequence[int] | None


def chosen(choice: Choice, total: int, noun: str) -> list[int]:
    """Return the chosen indices below `total` in ascending order; negative indices count from the end."""
    everything = range(total)
    if choice is None:
        return list(everything)
    if isinstance(choice, slice):
        indices = sorted(everything[choice])
    else:
        requested = [choice] if isinstance(choice, int) else list(choice)
        wrong = [i for i in requested if not -total <= i < total]
        if wrong:
            raise UsageError(
                f"no {noun} {wrong[0]}: there are {total}", f"Choose from 0 to {total - 1}."
            )
        indices = sorted({i % total for i in requested})
    if not indices:
        raise UsageError(f"{noun}s = {choice} chooses none of the {total}", "Choose at least one.")
    return indices


def within(choice: Choice, index: int, noun: str) -> bool:
    """Tell whether `choice` contains an index. Negative numbers are refused, as the total is unknown."""
    if choice is None:
        return True
    if isinstance(choice, slice):
        ends = [end for end in (choice.start, choice.stop, choice.step) if end is not None]
        if any(end < 0 for end in ends):
            raise UsageError(f"{noun}s = {choice}", "Count from the first: 0, 1, …")
        start, step = choice.start or 0, choice.step or 1
        stop = index + 1 if choice.stop is None else choice.stop
        return index in range(start, stop, step)
    requested = [choice] if isinstance(choice, int) else list(choice)
    if any(i < 0 for i in requested):
        raise UsageError(f"{noun}s = {choice}", "Count from the first: 0, 1, …")
    return index in requested


def choice_of(text: str | None, name: str) -> Choice:
    if text is None:
        return None
    try:
        if ":" in text:
            return slice(*(int(part) if part else None for part in text.split(":")))
        return [int(part) for part in text.split(",")]
    except (ValueError, TypeError) as error:
        raise UsageError(f"{name} {text}", "Write 3, or 0,5,11, or 0:4.") from error


def value_of(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(text.lower(), text)
