"""What a person types becomes what the library takes; what cannot is an error that names it."""

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from .decode import SAMPLERS
from .errors import UsageError


def texts_of(prompt: str | None, data: Path | None, limit: int | None) -> list[str]:
    if (prompt is None) == (data is None):
        raise UsageError("give a prompt or a data file", "Use either --prompt or --data.")
    if prompt is not None:
        return [prompt]
    assert data is not None
    texts = []
    try:
        lines = data.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{data} cannot be read: {error}", "Check the path.") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            text = json.loads(line)["prompt"]
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(
                f"{data}, line {number}: no JSON object with a `prompt` field", "Mend the line."
            ) from error
        if not isinstance(text, str) or not text.strip():
            raise UsageError(f"{data}, line {number}: the prompt is empty", "Mend the line.")
        texts.append(text)
    if not texts:
        raise UsageError(f"{data} holds no prompts", "Give one JSON object a line.")
    return texts[:limit]


def paths_for(save: Path | None, count: int, *, single: bool, overwrite: bool) -> list[Path]:
    """Where each trace goes; what is there already is noticed before any work is done."""
    if save is None:
        return []
    paths = [save] if single else [save / f"{i:05d}.zarr" for i in range(count)]
    there = [path for path in paths if path.exists()]
    if there and not overwrite:
        raise UsageError(f"{there[0]} exists", "Choose another --out, or pass --overwrite.")
    return paths


def sampler_of(name: str, common: dict[str, Any], options: list[str]) -> Any:
    if name not in SAMPLERS:
        raise UsageError(f"no sampler {name!r}", f"There are: {', '.join(SAMPLERS)}.")
    cls = SAMPLERS[name]
    known = {f.name: f for f in fields(cls)}
    settings = {}
    for key, value in common.items():
        if key in known:
            settings[key] = value
        elif value:
            raise UsageError(f"{name} takes no {key}", "Leave it out.")
    for text in options:
        key, _, value = text.partition("=")
        if key not in known or not value:
            raise UsageError(
                f"--set {text}: {name} has no such field", f"It has: {', '.join(known)}."
            )
        settings[key] = value_of(value)
    return cls(**settings)


def measures_of(text: str | None) -> dict[str, Any]:
    """Measures by name, each with its default configuration."""
    if not text:
        return {}
    from .measures import MEASURES

    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in MEASURES:
            raise UsageError(f"no measure {name!r}", f"There are: {', '.join(MEASURES)}.")
    return {name: MEASURES[name]() for name in names}


def value_of(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(text.lower(), text)


def choice_of(text: str | None, name: str) -> Any:
    if text is None:
        return None
    try:
        if ":" in text:
            return slice(*(int(part) if part else None for part in text.split(":")))
        return [int(part) for part in text.split(",")]
    except (ValueError, TypeError) as error:
        raise UsageError(f"{name} {text}", "Write 3, or 0,5,11, or 0:4.") from error


def condition_of(text: str, seed: int) -> Any:
    """A condition as it is written; what it draws follows the seed, unless it names one itself."""
    from .tasks.conditions import Condition

    condition = Condition.parse(text)
    return condition if "seed=" in text else replace(condition, seed=seed)


def template_of(name: str, chat: bool | None) -> Any:
    """A template by name; "auto" leaves the choice to the records."""
    from .tasks import PlainTemplate, WorldTemplate

    if name == "plain" or (name == "auto" and chat is not None):
        return PlainTemplate(chat=chat)
    if name not in ("auto", "world"):
        raise UsageError(f"no template {name!r}", "There are: auto, plain, world.")
    if name == "world" and chat:
        raise UsageError("the world's template has no chat form", "Drop --chat.")
    return WorldTemplate() if name == "world" else None


def intervention_of(text: str) -> Any:
    """ "mask-columns:k=5,rule=excess(3),layers=0:4"; several joined by " + " act together."""
    from .interventions import Together

    parts = [_one_intervention(part.strip()) for part in text.replace(";", ",").split(" + ")]
    return parts[0] if len(parts) == 1 else Together(tuple(parts))


def _one_intervention(text: str) -> Any:
    from .interventions import INTERVENTIONS

    name, _, rest = text.partition(":")
    if name not in INTERVENTIONS:
        raise UsageError(f"no intervention {name!r}", f"There are: {', '.join(INTERVENTIONS)}.")
    cls = INTERVENTIONS[name]
    known = [f.name for f in fields(cls)]
    settings: dict[str, Any] = {}
    for item in rest.split(",") if rest else []:
        key, _, value = item.partition("=")
        if key not in known or not value:
            raise UsageError(
                f"--intervene {text}: {name} has no such field as {item!r}",
                f"It has: {', '.join(known)}.",
            )
        if key in ("layers", "heads", "steps"):
            settings[key] = choice_of(value.replace("|", ","), key)
        elif key == "rule":
            settings[key] = _rule_of(value)
        elif key in ("regions", "classes", "queries"):
            settings[key] = tuple(value.split("|"))
        else:
            settings[key] = value_of(value)
    return cls(**settings)


def _rule_of(text: str) -> Any:
    """ "excess" or "excess(3)"."""
    from .anchors import RULES

    name, _, number = text.rstrip(")").partition("(")
    rules = {rule.__name__.lower(): rule for rule in RULES}
    if name.lower() not in rules:
        raise UsageError(f"no rule {text!r}", f"There are: {', '.join(rules)}.")
    try:
        return rules[name.lower()](*([float(number)] if number else []))
    except ValueError as error:
        raise UsageError(f"rule {text!r}", "Write excess, or excess(3).") from error
