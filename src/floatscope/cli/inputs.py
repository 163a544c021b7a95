"""Parse command-line values; an error message contains the value that is wrong."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..tasks.files import items
from ..trace.store import rehearse, require_free


def texts_of(prompt: str | None, data: Path | None, limit: int | None) -> list[str]:
    """Return the text of `--prompt`, or the `prompt` field of up to `limit` lines of a data file."""
    if (prompt is None) == (data is None):
        raise UsageError("give a prompt or a data file", "Use either --prompt or --data.")
    if prompt is not None:
        return [prompt]
    assert data is not None
    texts = []
    for item in items(data):
        if item.bad:
            raise item.bad.error()
        text = item.data.get("prompt") if isinstance(item.data, dict) else None
        if not isinstance(text, str):
            raise UsageError(
                f"{item.where}: expected a JSON object with a `prompt` field that is text",
                "Correct the line.",
            )
        if not text.strip():
            raise UsageError(f"{item.where}: the prompt is empty", "Correct the line.")
        texts.append(text)
        if len(texts) == limit:
            break
    return texts


def common_settings(
    samplers: Sequence[str], flags: Mapping[str, int | None]
) -> tuple[list[str], dict[str, int | None]]:
    """Return the texts of samplers without settings that apply to all models, and the removed settings.

    `flags` maps the name of each setting that applies to all models, for example `length`, to the value of
    its option (None if the option is not given). Such a setting may be given by its option and in the text of
    any sampler, but different values raise UsageError.
    """
    given_values: dict[str, set[int]] = {
        key: set() if flag is None else {flag} for key, flag in flags.items()
    }
    remaining = []
    for text in samplers:
        settings = []
        for part in text.split(","):
            key, _, value = (word.strip() for word in part.partition("="))
            if key not in given_values:
                settings.append(part.strip())
            elif value.isdecimal():
                given_values[key].add(int(value))
            else:
                raise UsageError(f"{key} = {value!r:.40}", "Give a whole number.")
        remaining.append(",".join(settings))
    for key, values in given_values.items():
        if len(values) > 1:
            raise UsageError(
                f"{key} has {len(values)} different values: {', '.join(map(str, sorted(values)))}",
                f"It applies to all models: give --{key} once.",
            )
    return remaining, {key: next(iter(values), None) for key, values in given_values.items()}


def paths_for(save: Path | None, count: int, *, single: bool, overwrite: bool) -> list[Path]:
    """Return a path for each of `count` traces; raise an error for a path that cannot be used.

    Without `save`, no paths are returned. If `single` is set, `save` is the path of the trace; otherwise
    `save` is a directory. An existing path can be used only if `overwrite` is set.
    """
    if save is None:
        return []
    paths = [save] if single else [save / f"{i:05d}.zarr" for i in range(count)]
    for path in paths:
        if path.exists() and not overwrite:
            raise UsageError(f"{path} exists", "Choose another --out, or pass --overwrite.")
        require_free(path, overwrite)
    for path in paths[-1:]:
        rehearse(path)
    return paths


def measures_of(text: str | None) -> dict[str, Any]:
    """Return the measures of a comma-separated list by name, with their default fields; {} for no list."""
    if not text:
        return {}
    from ..measures import MEASURES

    names = [name.strip() for name in text.split(",")]
    return {name: MEASURES.named(name)() for name in names}
