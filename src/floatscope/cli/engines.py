"""Parse `--engine`: the engine that computes a run's shards, and the time to wait for a worker."""

from typing import Any

from ..errors import UsageError, did_you_mean

_WAITS: dict[str, Any] = {"patience": float, "shard_limit": float}
ENGINES: dict[str, dict[str, Any]] = {
    "local": _WAITS,
    "ray": {"address": str, "gpus": float, **_WAITS},
}


def engine_of(text: str) -> tuple[str, dict[str, Any]]:
    """Return the engine's name and its settings by name, parsed from the value of `--engine`."""
    name, *parts = (part.strip() for part in text.split(","))
    if name not in ENGINES:
        raise UsageError(
            f"no engine {name!r:.80}",
            f"{did_you_mean(name, ENGINES)} There are: local, ray.".lstrip(),
        )
    how: dict[str, Any] = {}
    for part in parts:
        key, _, value = part.partition("=")
        if key not in ENGINES[name] or not value:
            guess = did_you_mean(key, ENGINES[name])
            listed = f"It has: {', '.join(ENGINES[name])}."
            raise UsageError(f"--engine {text:.100}: {part!r:.80}", f"{guess} {listed}".lstrip())
        try:
            how[key] = ENGINES[name][key](value)
        except ValueError as error:
            raise UsageError(f"--engine {text:.100}: {part!r:.80}", "Give a number.") from error
    return name, how
