"""What was found, as the tables of BENCHMARKS.md."""

import json
from collections.abc import Callable
from typing import Any

from table_parts import scale

PARTS: dict[str, Callable[[Any], str]] = {
    "workers": scale.workers,
    "ceiling": scale.ceiling,
    "store": scale.stored,
    "capacity": scale.capacity,
}


def rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: rounded(v) for k, v in value.items()}
    if isinstance(value, list):
        return [rounded(v) for v in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


def show(found: dict[str, Any]) -> None:
    for part, write in PARTS.items():
        if found.get(part):
            print(f"\n{part}\n\n{write(found[part])}")
    for part in ("start", "study"):
        print(part, json.dumps(rounded(found.get(part, {})), indent=1))
