"""Parse a model specified as text: "ours=./dir,family=Llama,direction=bidirectional,mask_id=4".

The text, called a model spec, has an optional name, the model's location, and settings of `load`. The
same text works in Python, on the command line, in a file and in a run; a TOML table of a model has the
same fields. The spec is parsed without loading a model, so errors are reported before a worker starts.
"""

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from ..errors import ModelError, UsageError, did_you_mean
from ..sequences.direction import Direction, Grid
from ..untrusted import exists
from .pair import PAIR
from .twin import TWIN

EMBEDDED = (*PAIR, *TWIN)
_SHIPPED = {name.partition("/")[0] for name in EMBEDDED}
_NUMBERS = ("block", "shift", "mask_id")
_SWITCHES = {"true": True, "false": False}  # values of override_mask in text
# settings that tables and messages show, and their largest length
_SHORT, _LONG = ("name", "family"), 100
_NAME = re.compile(rf"[^=/\\,]{{1,{_LONG}}}")
_NAMED = re.compile(rf"({_NAME.pattern})=(.+)", re.S)
HUB_ID = re.compile(r"(?!\.)[\w.-]+/[\w.-]+")
_FORM = "[NAME=]WHERE[,SETTING=VALUE …]"


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """The settings given in a model spec. A setting that is not given is None."""

    name: str | None = None
    family: str | None = None
    direction: str | None = None
    block: int | None = None
    shift: int | None = None
    mask_id: int | None = None
    override_mask: bool | None = None
    grid: str | None = None

    def over(self, other: "ModelSettings") -> "ModelSettings":
        """Return these settings; for a setting that is None, use the value in `other`.

        If these settings have a direction, their `block` and `grid` are used even if None. If they have a
        `mask_id`, their `override_mask` is used even if None.
        """
        merged = {}
        for field in fields(ModelSettings):
            value = getattr(self, field.name)
            merged[field.name] = getattr(other, field.name) if value is None else value
        if self.direction is not None:
            merged["block"], merged["grid"] = self.block, self.grid
        if self.mask_id is not None:
            merged["override_mask"] = self.override_mask
        return ModelSettings(**merged)


@dataclass(frozen=True)
class ModelSpec(ModelSettings):
    """A model's location and settings. A setting of None is that of checkpoint, floatscope.json or family."""

    where: str
    adapter: str | None = None
    revision: str | None = None
    device: str | None = None
    dtype: str | None = None

    def __post_init__(self) -> None:
        _require(vars(self))

    @classmethod
    def from_value(cls, source: "str | Mapping[str, Any] | ModelSpec") -> "ModelSpec":
        """Make a spec from a text or from a table with the same fields."""
        if isinstance(source, ModelSpec):
            return source
        if isinstance(source, str):
            return cls.parse(source)
        if not isinstance(source, Mapping):
            raise UsageError(
                f"model: {source!r:.80}", f"Write {_FORM}, or a table with {_settings()}."
            )
        unknown = [str(key) for key in source if key not in _settings().split(", ")]
        if unknown or "where" not in source:
            problem = (
                f"no setting {unknown[0]!r:.80}" if unknown else "the location (where) is missing"
            )
            raise UsageError(f"model: {problem}", f"A table has where, and may have {_settings()}.")
        _require(source)
        return cls(**source)

    @classmethod
    def parse(cls, text: str) -> "ModelSpec":
        """Return the spec that a line of text states; raise UsageError if the text is invalid."""
        if not re.search("[=,]", text) or exists(text):  # a path may contain either character
            return cls(text)
        head, *parts = text.split(",")
        settings: dict[str, Any] = {}
        for part in parts:
            key, equals, value = part.partition("=")
            key = key.strip()
            if not equals or key not in _settings().split(", ")[1:] or key in settings:
                why = "is given twice" if key in settings else "is no setting"
                guess = did_you_mean(key, _settings().split(", ")[1:])
                raise UsageError(
                    f"model {text!r:.200}: {part!r:.80} {why}",
                    f"{guess} Write {_FORM} with {_settings().removeprefix('where, ')}; write a "
                    "path with a comma in a table of a --config file.".lstrip(),
                )
            settings[key] = _value(key, value)
        named = None if exists(head) else _NAMED.fullmatch(head)
        if named and "name" in settings:
            raise UsageError(f"model {text!r:.200} has two names", "Leave one out.")
        if named:
            settings["name"] = named[1].strip()
        return cls.from_value({"where": named[2] if named else head, **settings})

    @property
    def text(self) -> str:
        """The spec as one line of text, which parses to an equal spec; UsageError if there is none."""
        pairs = [
            f"{key}={str(value).lower() if isinstance(value, bool) else value}"
            for key, value in self.settings.items()
            if key != "name"
        ]
        begin = f"{self.name}={self.where}" if self.name else self.where
        text = ",".join([begin, *pairs])
        with suppress(UsageError):
            if type(self).parse(text) == self:
                return text
        raise UsageError(
            f"model {self.where!r:.120}: its path or a setting contains a comma or =",
            "Rename it, or make a link to it under another name.",
        )

    @property
    def label(self) -> str:
        """Name of the model if no name is given: its location, with its adapter."""
        return self.where if self.adapter is None else f"{self.where} + {self.adapter}"

    def located(self, folder: Path) -> "ModelSpec":
        """Resolve relative paths against `folder`; names of embedded models and hub ids are unchanged."""
        embedded = self.where in EMBEDDED
        where = self.where if embedded else located(self.where, folder)
        return replace(self, where=where, adapter=self.adapter and located(self.adapter, folder))

    @property
    def settings(self) -> dict[str, Any]:
        """The settings as keyword arguments of `load`."""
        return {k: v for k, v in vars(self).items() if k != "where" and v is not None}

    def require_there(self) -> None:
        """Raise ModelError unless model and adapter are on this machine, or the model is a hub id."""
        if self.where not in EMBEDDED and not is_hub_id(self.where) and not exists(self.where):
            raise no_such_model(self.where)
        if self.adapter and not exists(f"{self.adapter}/adapter_config.json"):
            raise ModelError(
                f"no adapter in {self.adapter}",
                "Give a directory with adapter_config.json and its weights, as PEFT saves them.",
            )


def is_hub_id(text: str) -> bool:
    """Tell whether a text can be a hub id: "owner/name", where owner is no prefix of an embedded model."""
    return bool(HUB_ID.fullmatch(text)) and text.partition("/")[0] not in _SHIPPED


def _value(setting: str, text: str) -> Any:
    """Convert a setting's text to its value; invalid text is returned unchanged and refused later."""
    if setting in _NUMBERS and text.strip().isdecimal():
        return int(text)
    return _SWITCHES.get(text.strip(), text) if setting == "override_mask" else text


def expected_of(setting: str, value: Any) -> str:
    """Return a description of the values that a setting expects, or "" if `value` is valid.

    The same rules apply to typed text, Python arguments and floatscope.json.
    """
    if setting in _NUMBERS:
        return "" if type(value) is int and value >= 0 else "a whole number, 0 or more"
    if setting == "override_mask":
        return "" if isinstance(value, bool) else "true or false"
    if setting == "direction":
        return "" if value in list(Direction) else f"one of {', '.join(Direction)}"
    if setting == "grid":
        return "" if value in list(Grid) else f"one of {', '.join(Grid)}"
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        return "a text of one line"
    return f"at most {_LONG} characters" if setting in _SHORT and len(value) > _LONG else ""


def _require(values: Mapping[str, Any]) -> None:
    """Raise UsageError, which names the field, if a value is invalid."""
    for field, value in values.items():
        if (value is not None or field == "where") and (expected := expected_of(field, value)):
            raise UsageError(f"model: {field} = {value!r:.120}", f"Give {expected}.")
    name = values.get("name")
    if name is not None and not _NAME.fullmatch(name):  # a name precedes = in the text form
        raise UsageError(f"model: name = {name!r:.120}", "Use a name without = , / \\.")


def no_such_model(where: object) -> ModelError:
    return ModelError(
        f"no such model: {where}",
        f"{did_you_mean(str(where), EMBEDDED)} Give a directory with config.json and *.safetensors, "
        "a .gguf file, a hub id 'owner/name', "
        f"or one of the embedded {', '.join(EMBEDDED)}.".lstrip(),
    )


def located(text: str, folder: Path) -> str:
    """Resolve a relative path against `folder` if the file exists; return other text unchanged."""
    if folder == Path() or text.startswith("~") or not exists(folder / text):
        return text
    return str(folder / text)


def _settings() -> str:
    return ", ".join(
        ["where", *(field.name for field in fields(ModelSpec) if field.name != "where")]
    )
