"""A table in Markdown, and numbers as the tables write them. Nothing here knows what was measured."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

BENCH = Path(__file__).parent.parent


def raw(name: str) -> Any:
    """The results of a run: `bench/NAME.json`."""
    return json.loads((BENCH / f"{name}.json").read_text())


def table(head: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """`left`: how many columns hold words."""
    lines = [head, ["---"] * left + ["---:"] * (len(head) - left), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def times(ratio: float | None) -> str:
    return "out of memory" if ratio is None else f"{ratio:.3f}×" if ratio < 2 else f"{ratio:.2f}×"


def between(ratio: float, edges: Sequence[float] | None, digits: int = 3) -> str:
    """A median, and the lowest and highest of its rounds where they were kept."""
    whole = f"{ratio:.{digits}f}×"
    return whole if edges is None else f"{whole} ({edges[0]:.2f}–{edges[1]:.2f})"


def megabytes(n: float) -> str:
    return f"{n / 1e6:.0f} MB"
