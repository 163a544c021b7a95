"""Choosing layers, heads and steps the way Python chooses: a number, a slice, a sequence, or all."""

from collections.abc import Sequence

from .errors import UsageError

Choice = int | slice | Sequence[int] | None


def chosen(choice: Choice, total: int, what: str) -> list[int]:
    """The indices meant, in order; negative ones count from the end."""
    everything = range(total)
    if choice is None:
        return list(everything)
    if isinstance(choice, slice):
        found = sorted(everything[choice])
    else:
        wanted = [choice] if isinstance(choice, int) else list(choice)
        wrong = [i for i in wanted if not -total <= i < total]
        if wrong:
            raise UsageError(
                f"no {what} {wrong[0]}: there are {total}", f"Choose from 0 to {total - 1}."
            )
        found = sorted({i % total for i in wanted})
    if not found:
        raise UsageError(f"{what}s = {choice} chooses none of {total}", "Choose at least one.")
    return found


def within(choice: Choice, index: int, what: str) -> bool:
    """Whether an index is chosen, where the total is not known: counted from the first only."""
    if choice is None:
        return True
    if isinstance(choice, slice):
        ends = [end for end in (choice.start, choice.stop, choice.step) if end is not None]
        if any(end < 0 for end in ends):
            raise UsageError(f"{what}s = {choice}", "Count from the first: 0, 1, …")
        start, step = choice.start or 0, choice.step or 1
        stop = index + 1 if choice.stop is None else choice.stop
        return index in range(start, stop, step)
    wanted = [choice] if isinstance(choice, int) else list(choice)
    if any(i < 0 for i in wanted):
        raise UsageError(f"{what}s = {choice}", "Count from the first: 0, 1, …")
    return index in wanted
