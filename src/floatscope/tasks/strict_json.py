"""JSON from bytes, with every way in which it can be unreadable as one kind of error.

Python's parser takes more than JSON allows, and stops for reasons of its own. A field that is given
twice would lose the first; half a surrogate pair is no text that could be asked or written down.
"""

import json
import sys
from typing import Any


class Unreadable(ValueError):
    """What is wrong, what to do about it, and on which line of the bytes, from 1."""

    def __init__(self, what: str, remedy: str, line: int = 1) -> None:
        super().__init__(what)
        self.what, self.remedy, self.line = what, remedy, line


class Twice(dict[str, Any]):
    """An object that names a field more than once."""

    field = ""


def parse(raw: bytes) -> Any:
    """What the bytes say, or Unreadable. `check` tells whether it may be used."""
    try:
        return json.loads(raw.decode("utf-8"), object_pairs_hook=_object)
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise Unreadable("is not UTF-8", "Convert it: iconv -t utf-8.", line) from None
    except json.JSONDecodeError as error:
        raise Unreadable(
            f"is not JSON: {error.msg} at column {error.colno}",
            "Repair it: one whole JSON object per line, or one JSON document per file.",
            error.lineno,
        ) from None
    except ValueError:
        most = sys.get_int_max_str_digits()
        what = f"cannot be read: a whole number has more than {most} digits"
        raise Unreadable(what, "Shorten it, or write it as text.") from None
    except RecursionError:
        raise Unreadable("is nested too deeply", "Flatten it.") from None


def check(data: Any) -> None:
    """Refuse, at any depth, a field given twice and text that is none."""
    left = [data]  # a list, not calls: data may be nested deeper than calls may
    while left:
        one = left.pop()
        if isinstance(one, Twice):
            raise Unreadable(f"has the field {one.field!r} twice", "Keep one of them.")
        if isinstance(one, dict):
            left += [*one.keys(), *one.values()]
        elif isinstance(one, list):
            left += one
        elif isinstance(one, str) and not one.isascii():
            try:
                one.encode("utf-8")
            except UnicodeEncodeError:
                what = "holds half a surrogate pair"
                raise Unreadable(what, "Write whole characters.") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) == len(pairs):
        return data
    names = [name for name, _ in pairs]
    twice = Twice(data)
    twice.field = next(name for i, name in enumerate(names) if name in names[:i])
    return twice
