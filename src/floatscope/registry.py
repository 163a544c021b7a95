"""Registries of measures, samplers, interventions, families and studies, by name.

Each kind of object has one Registry, an attribute of the kind's base class. The library of a kind lists
the names of its objects, which are imported when they are used; `register` adds a user's object. User
code comes from a module that the user names (`load_plugin`) or from an installed package with the entry
point group `floatscope`, never from a checkpoint, a trace or a run directory.
"""

import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, Generic, TypeVar

from .errors import UsageError, did_you_mean

T = TypeVar("T")
V = TypeVar("V")
GROUP = "floatscope"  # group of entry points


class Registry(Mapping[str, V], Generic[V]):
    """A registry of the objects of one kind, by the names that users type, in display order."""

    def __init__(
        self, kind: str, library: str, make: Callable[[Any], V] = lambda value: value
    ) -> None:
        self.kind, self._library, self._make = kind, library, make
        self._builtin: dict[str, tuple[str, str]] = {}  # name → package and attribute
        self._added: dict[str, Any] = {}

    def _ready(self) -> None:
        """Import the library and the plugins of installed packages, so that all names are registered."""
        import_module(self._library)
        _installed()

    def offer(
        self, package: str, attributes: Iterable[str], called: Mapping[str, str] | None = None
    ) -> None:
        """Register built-in objects by package and attribute name, without importing them.

        Each object is registered under its attribute name in dashed form, or under its name in `called`.
        """
        for attribute in attributes:
            self._builtin[(called or {}).get(attribute) or dashed(attribute)] = package, attribute

    def add(self, value: Any) -> None:
        """Add a user's object. It may replace a user's object of this name, but no built-in object."""
        import_module(self._library)  # so that all built-in names are known
        name = getattr(value, "name", None)
        name = name.lower() if isinstance(name, str) else dashed(value.__name__)
        if name in self._builtin:
            raise UsageError(
                f"{name!r} is already a {self.kind} of Floatscope", "Choose another name."
            )
        self._added[name] = value

    @property
    def builtin(self) -> list[str]:
        """Names of the built-in objects, without names added by users or installed packages."""
        import_module(self._library)
        return list(self._builtin)

    def named(self, name: str) -> V:
        """Return the object with this name; raise UsageError, which lists the names, for an unknown name."""
        self.require(name)
        return self[name]

    def require(self, name: str) -> None:
        """Raise UsageError for an unknown name, without importing the object of a known name."""
        if name not in self:
            remedy = f"{did_you_mean(name, self)} There are: {', '.join(self)}.".strip()
            raise UsageError(f"no {self.kind} {name!r:.80}", remedy)

    def __getitem__(self, name: str) -> V:
        self._ready()
        if name in self._builtin:
            package, attribute = self._builtin[name]
            return self._make(getattr(import_module(package), attribute))
        return self._make(self._added[name])

    def __contains__(self, name: object) -> bool:
        return name in [*iter(self)]

    def __iter__(self) -> Iterator[str]:
        self._ready()
        return iter([*self._builtin, *self._added])

    def __len__(self) -> int:
        return len([*iter(self)])

    def home(self, name: str) -> tuple[str, str] | None:
        """Return the package and attribute of a built-in object, not imported; None for other names."""
        import_module(self._library)
        return self._builtin.get(name)


# One registry per kind, stored on the base class of the kind.
FAMILIES: Registry[Any] = Registry("family", "floatscope.models.families")
SAMPLERS: Registry[type] = Registry("sampler", "floatscope.decode.samplers")
INTERVENTIONS: Registry[Any] = Registry("intervention", "floatscope.interventions.library")
MEASURES: Registry[Any] = Registry("measure", "floatscope.measures.library")
STUDIES: Registry[Any] = Registry("study", "floatscope.studies.library", lambda study: study())


class Configured:
    """Base class of settings dataclasses. The error for an unknown setting suggests the closest name."""

    def __new__(cls, *args: Any, **settings: Any) -> Any:
        if is_dataclass(cls):
            names = [field.name for field in fields(cls) if field.init]
            for setting in settings:
                if setting not in names:
                    raise UsageError(
                        f"{cls.__name__} has no setting {setting!r:.80}",
                        f"{did_you_mean(setting, names)} It has: {', '.join(names) or 'none'}.".lstrip(),
                    )
        return super().__new__(cls)


def dashed(name: str) -> str:
    """Convert a class name to its command-line form: MaskColumns → mask-columns."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", name).lower()


def described(spec: Any, always: tuple[str, ...] = ()) -> str:
    """Format a dataclass as a Python call, with the fields in `always` and all non-default fields."""
    arguments = [
        f"{f.name}={getattr(spec, f.name)!r}"
        for f in fields(spec)
        if f.name in always or getattr(spec, f.name) != f.default
    ]
    return f"{type(spec).__name__}({', '.join(arguments)})"


def register(extension: T) -> T:
    """Register a measure, sampler, intervention, study, family or statistic under its name.

    Use it as a decorator of a class, or call it with a Family or Statistic. On the command line and in
    TOML files, users refer to the object by its `name`, or by its class name with dashes if it has no
    `name`: `MaskColumns` is `mask-columns`.

    Args:
        extension: a subclass of fs.Measure, fs.Sampler, fs.Intervention or fs.Study, an fs.Family, or a
            `floatscope.statistics.Statistic`.

    Returns:
        The argument, unchanged.

    Example:
        ```python
        @fs.register
        @dataclass(frozen=True)
        class LeftToRight(fs.Sampler):
            def score(self, guess):
                return -guess.place.float()
        ```
    """
    registry = getattr(extension, "registry", None)
    if not isinstance(registry, Registry):
        raise UsageError(
            f"expected a measure, sampler, intervention, study or family, got {extension!r}",
            "Subclass fs.Measure, fs.Sampler, fs.Intervention or fs.Study, or make an fs.Family.",
        )
    registry.add(extension)
    return extension


def placed(where: str) -> str:
    """Return a plugin's name in a form that other processes can import: a `.py` file as absolute path."""
    path = Path(where).expanduser()
    return str(path.resolve()) if path.suffix == ".py" else where


def load_plugin(where: str) -> None:
    """Import a user's module, which registers its objects.

    Args:
        where: name of an importable module, or path of a .py file.
    """
    path = Path(where).expanduser()
    try:
        if path.suffix != ".py":
            import_module(where)
            return
        name = f"floatscope_plugin_{path.stem}"
        spec = spec_from_file_location(name, path.resolve(strict=True))
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = module = module_from_spec(spec)
        spec.loader.exec_module(module)
    except UsageError:
        raise
    except Exception as error:  # user code may raise anything
        raise UsageError(
            f"the plugin {where} cannot be imported: {type(error).__name__}: {error}",
            "Give a .py file, or the name of an importable module.",
        ) from error


# an iterator, so that each plugin is imported once even if a plugin looks up names
_points = iter(entry_points(group=GROUP))


def _installed() -> None:
    """Import the plugins of installed packages; for a plugin that fails, warn and continue."""
    for point in _points:
        try:
            point.load()
        except Exception as error:
            warnings.warn(f"the plugin {point.value} cannot be imported: {error!r}", stacklevel=2)
