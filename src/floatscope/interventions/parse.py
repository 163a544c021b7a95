"""Parse interventions typed as text: "mask-columns,k=5,rule=excess(3),layers=0:4"."""

from dataclasses import fields
from typing import Any

from ..errors import UsageError, did_you_mean
from ..models.select import choice_of, value_of
from ..stats.anchors import RULES
from .base import Combined, Intervention
from .library import INTERVENTIONS


def intervention_of(text: str) -> Intervention:
    """Return the intervention that a text such as "mask-columns,k=5" names; Combined for "… + …"."""
    parts = [_one_intervention(part.strip()) for part in text.replace(";", ",").split(" + ")]
    return parts[0] if len(parts) == 1 else Combined(tuple(parts))


def _one_intervention(text: str) -> Intervention:
    name, _, settings_text = text.partition(",")
    if ":" in name:
        written = text.replace(":", ",", 1)
        raise UsageError(f"intervention {text!r}: settings follow a comma", f"Write {written}.")
    cls = INTERVENTIONS.named(name)
    defaults = {f.name: f.default for f in fields(cls)}
    settings: dict[str, Any] = {}
    for item in settings_text.split(",") if settings_text else []:
        key, _, value = item.partition("=")
        if key not in defaults or not value:
            raise UsageError(
                f"--intervene {text}: {name} has no such field as {item!r}",
                f"{did_you_mean(key, defaults)} It has: {', '.join(defaults)}.".strip(),
            )
        if key == "heads" and "." in value:
            settings[key] = tuple(_head_of(head) for head in value.split("|"))
        elif key in ("layers", "heads", "steps") or key.endswith("positions"):
            settings[key] = choice_of(value.replace("|", ","), key)
        elif key == "rule":
            settings[key] = _rule_of(value)
        elif defaults[key] == ():  # names
            settings[key] = tuple(value.split("|"))
        else:
            settings[key] = value_of(value)
    return cls(**settings)


def _head_of(text: str) -> tuple[int, int]:
    """Return the layer and the head that a text such as "3.1" (layer 3, head 1) names."""
    layer, _, head = text.partition(".")
    try:
        return int(layer), int(head)
    except ValueError as error:
        raise UsageError(f"heads: {text!r}", "Write layer.head: 3.1, or 3.1|4.0.") from error


def _rule_of(text: str) -> Any:
    """Return the anchor rule that a text names, such as "excess", or "excess(3)" with its threshold."""
    name, _, number = text.rstrip(")").partition("(")
    rules = {rule.__name__.lower(): rule for rule in RULES}
    if name.lower() not in rules:
        raise UsageError(f"no rule {text!r}", f"There are: {', '.join(rules)}.")
    try:
        return rules[name.lower()](*([float(number)] if number else []))
    except ValueError as error:
        raise UsageError(f"rule {text!r}", "Write excess, or excess(3).") from error
