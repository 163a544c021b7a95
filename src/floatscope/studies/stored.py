"""Check the metadata in the shards of a study before the metadata are used.

A run may be untrusted, or damaged in ways that its checksums do not show. A missing field, or a field of
another type, raises an error that names the shard and the field. Arrays with wrong shapes or values raise an
error where they are used, in a `with` block of `understood`.
"""

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from ..engine import Run
from ..errors import RunError, foreign

_COPY = "The run is damaged: copy it again, or run it again with --resume."


class _Stored(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)


class _Packed(_Stored):
    """The fields of a packed array, as written by `codec.take_arrays`."""

    code: str
    scale: float
    offset: float


# Fields of a scene as `pack.scene_of` makes one, by type; the codes of packed arrays are a dataset.
_FIELDS: dict[Any, str] = {
    int: "format prompt_length ticks",
    str: "example title answer gold rule",
    list[str]: "under vocabulary regions classes left_out",
    list[int]: "steps layers heads",
    dict[str, str]: "model",
    dict[str, float]: "range",
    _Packed: "canvas result changes region class masked null reach share anchors anchor_count peak "
    "peak_key",
    dict[str, list[int] | _Packed] | None: "single_heads",
}
_OPTIONAL: dict[str, Any] = {
    "gold_look": _Packed,
    "rows": dict[str, _Packed],
    "from": dict[str, list[str] | _Packed],
}
_Scene = create_model(  # type: ignore[call-overload]
    "_Scene",
    __config__=ConfigDict(extra="forbid", strict=True),
    **{name: (kind, ...) for kind, names in _FIELDS.items() for name in names.split()},
    **{name: (kind, None) for name, kind in _OPTIONAL.items()},
)


class _Example(_Stored):
    """An example of a model or, with `control`, of its untrained control with this seed.

    `values` maps the keys of measures to the names of their datasets in the shard.
    """

    id: str
    index: int
    control: int | None = None
    values: dict[str, str]
    scenes: dict[str, _Scene] | None = None  # type: ignore[valid-type]


class _Row(_Stored):
    """A question with the model's answer and its scores."""

    id: str
    question: str
    prediction: str
    steps: int
    exact_match: float | bool | None
    contains: float | bool | None
    f1: float | bool | None
    answers: list[str]
    cluster: str
    masks: int
    cut: bool | None
    known: bool | None


class _Setting(_Stored):
    name: str


class _Model(_Stored):
    name: str
    family: str
    direction: str
    parameters: int
    layers: int
    heads: int
    fingerprint: str


class _Meta(_Stored):
    """The metadata of a shard: `examples` of traces or experiments, or `rows` and `setting` of questions."""

    model: _Model
    examples: list[_Example] | None = None
    rows: list[_Row] | None = None
    setting: _Setting | None = None
    end_ids: list[int] | None = None


_OF_KIND = {"ask": ("rows", "setting"), "trace": ("examples",), "experiment": ("examples",)}


def read_meta(run: Run, shard: str, kind: str) -> dict[str, Any]:
    """Return the metadata of a shard, after checking them for its kind: "trace", "ask" or "experiment"."""
    meta = run.read(shard, ()).meta
    try:
        parsed = _Meta.model_validate(meta)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        raise _wrong(run, shard, f"{field:.120}: {first['msg']:.200}") from error
    for field in _OF_KIND[kind]:
        if getattr(parsed, field) is None:
            raise _wrong(run, shard, f"no {field}")
    return meta


def _wrong(run: Run, shard: str, problem: str) -> RunError:
    return RunError(
        f"{run.shards.path(shard)} does not contain what a study stores: {problem}", _COPY
    )


def understood(directory: Path) -> AbstractContextManager[None]:
    """Turn any error in the `with` block into a RunError about the data of this run."""
    return foreign(RunError, f"{directory} contains values that its studies cannot use", _COPY)
