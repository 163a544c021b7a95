"""The table of statistics that a trace can keep, used by recorder, store, `keep=` and documentation.

A row of STATISTICS describes one statistic: its name in `keep=` and the arrays that it adds to a trace.
`fs.register(Statistic(...))` adds a row with a user's function. This module does not import torch, so
traces can be read without torch.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar

from ._lazy import lazily
from .errors import UsageError
from .registry import Registry


class Join(Enum):
    """How rows of later forwards in a cached decoding are combined with an array's earlier values.

    `SUM` adds the sums over the new rows to the earlier sums. `ROWS` appends one value for each new row.
    `LATEST` replaces the earlier value.
    """

    SUM = "sums over rows; the sums of earlier rows are added"
    ROWS = "one value per row; the values of earlier rows are kept"
    LATEST = "the latest forward's"


@dataclass(frozen=True)
class Array:
    """One array of a statistic, for one step of one prompt.

    Attributes:
        name: name of the variable in a trace.
        dims: dimensions, from group, layer, head, key, query, source, target and choice; a trace puts
            "step" before them.
        join: how rows of later forwards are combined with earlier values if a cache keeps earlier rows.
            The default is `ROWS`, one value per row.
        over: divisor of stored sums: an earlier array of the statistic, such as "viewers" (the number of
            queries that see a key), or "source" (the number of rows of the source region). None (default)
            for sums that are not divided.
        dtype: dtype in a trace; None (default) is the dtype of the trace.
        stored: False for a count that is only used as a divisor of other arrays.
        predicted: True if the array has values for the predicted positions only.
    """

    name: str
    dims: tuple[str, ...]
    join: Join = Join.ROWS
    over: str | None = None
    dtype: str | None = None
    stored: bool = True
    predicted: bool = False

    @property
    def by_position(self) -> bool:
        """Whether the last dimension is a position (key or query), whose size may grow in later steps."""
        return self.dims[-1] in ("key", "query")

    @property
    def layer_axis(self) -> int:
        """Index of the layer dimension in a tensor whose dimension 0 is the batch."""
        return 1 + self.dims.index("layer")

    @property
    def head_axis(self) -> int | None:
        """Index of the head dimension in one layer's tensor (batch first); None if it has no heads."""
        dims = [dim for dim in self.dims if dim != "layer"]
        return 1 + dims.index("head") if "head" in dims else None


# View and call of one layer → its arrays by name, (b, *dims) without "layer". See docs/how-to/extending.md.
Compute = Callable[[Any, Any], Mapping[str, Any]]


@dataclass(frozen=True)
class Statistic:
    """A statistic that a trace can keep; a row of STATISTICS.

    Attributes:
        name: name in `keep=`.
        about: description for users.
        arrays: arrays that it adds to a trace.
        on_request: whether the statistic is kept only if named, because it is expensive or rarely needed.
            False by default.
        needs_weights: whether the statistic is computed from the attention weights, in passes that all
            such statistics share. False by default.
        compute: for a user's statistic, the function of one layer's attention: `compute(view, call)`
            returns arrays by name.
    """

    name: str
    about: str
    arrays: tuple[Array, ...]
    on_request: bool = False
    needs_weights: bool = False
    compute: Compute | None = None
    registry: ClassVar["Table"]


class Table(Registry[Statistic]):
    """A table of statistics by name, in display order."""

    def __init__(self, rows: Iterable[Statistic]) -> None:
        super().__init__("statistic", __name__)
        self._rows = {row.name: row for row in rows}
        self.version = 0  # number of times that statistics were added or removed

    def add(self, statistic: Statistic) -> None:
        """Add a user's statistic. It may replace a user's statistic of this name, but no built-in one."""
        if statistic.compute is None:
            raise UsageError(
                f"statistic {statistic.name!r} has no function", "Give compute=f(view, call)."
            )
        if statistic.needs_weights:
            raise UsageError(
                f"statistic {statistic.name!r} asks for attention weights",
                "Compute it from view.query and view.key; the full weights are never in memory.",
            )
        array_names = {array.name for name in self.builtin for array in self._rows[name].arrays}
        clash = {statistic.name} & {*self.builtin} or {
            array.name for array in statistic.arrays
        } & array_names
        if clash:
            raise UsageError(
                f"{min(clash)!r} is already a statistic of Floatscope",
                "Give yours another name.",
            )
        self._rows[statistic.name] = statistic
        self.version += 1

    @property
    def builtin(self) -> list[str]:
        """Names of the built-in statistics, without those added by users."""
        return [name for name, row in self._rows.items() if row.compute is None]

    def remove(self, name: str) -> None:
        """Remove a user's statistic."""
        del self._rows[name]
        self.version += 1

    def arrays(self, keep: Iterable[str] | None = None) -> dict[str, Array]:
        """Return the arrays of the statistics named in `keep` (default: all), by array name."""
        rows = self._rows.values() if keep is None else [self._rows[name] for name in keep]
        return {array.name: array for row in rows for array in row.arrays}

    def keep_of(self, array: str) -> str:
        """Return the statistic to name in `keep=` for this array, or the array's name if none has it."""
        matches = (
            row.name
            for row in self._rows.values()
            for produced in row.arrays
            if produced.name == array
        )
        return next(matches, array)

    @property
    def default(self) -> frozenset[str]:
        """Names of the statistics that a trace keeps by default."""
        return frozenset(name for name, row in self._rows.items() if not row.on_request)

    def __getitem__(self, name: str) -> Statistic:
        return self._rows[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)


_KEYS, _HEAD_KEYS = ("layer", "key"), ("layer", "head", "key")
_COLUMNS = (
    Array("column_sum", ("group", "layer", "head", "key"), Join.SUM),
    Array("rows_counted", ("group",), Join.LATEST, dtype="int64"),
)
_REGIONS = ("source", "target")

STATISTICS = Table(
    [
        Statistic("mass", "share of all attention each key receives", _COLUMNS, needs_weights=True),
        Statistic(
            "groups",
            "the same, apart for prompt, masked and revealed queries",
            _COLUMNS,
            needs_weights=True,
        ),
        Statistic(
            "head_mean",
            "mass by group as the mean over heads: a fraction of the memory",
            (Array("column_mean", ("group", "layer", "key"), Join.SUM), _COLUMNS[1]),
            on_request=True,
            needs_weights=True,
        ),
        Statistic(
            "entropy",
            "entropy of each query's attention, over its maximum",
            (Array("entropy", ("layer", "head", "query")),),
            needs_weights=True,
        ),
        Statistic(
            "entropy_mean",
            "the same summed over the queries of each group, and how many they are",
            (
                Array("entropy_sum", ("group", "layer", "head"), Join.SUM),
                Array("entropy_rows", ("group", "layer"), Join.SUM),
            ),
            on_request=True,
            needs_weights=True,
        ),
        Statistic(
            "flow",
            "attention from region to region",
            (Array("flow", ("layer", "head", *_REGIONS), Join.SUM, over="source"),),
            needs_weights=True,
        ),
        Statistic(
            "rollout",
            "attention from region to region through all layers so far",
            (Array("rollout", ("layer", *_REGIONS), Join.SUM, over="source"),),
            needs_weights=True,
        ),
        Statistic(
            "qk",
            "score, cosine, key norm and query norm of each key, as means over its queries",
            (
                Array("viewers", _KEYS, Join.SUM, stored=False),
                *(
                    Array(name, _HEAD_KEYS, Join.SUM, over="viewers")
                    for name in ("score", "cosine", "query_norm")
                ),
                Array("key_norm", _HEAD_KEYS, Join.LATEST),
            ),
        ),
        Statistic(
            "value_norm",
            "norm of what each key's value writes, ‖W_O v‖",
            (Array("value_norm", _HEAD_KEYS),),
        ),
        Statistic(
            "residual_norm",
            "norm of each position's residual at the layer's input",
            (Array("residual_norm", _KEYS),),
        ),
        Statistic(
            "rows",
            "the strongest keys of each position at the step it was revealed",
            (),  # stored by reveal, not by step: see `recording/kept.py`
            needs_weights=True,
        ),
        Statistic(
            "massive",
            "each position's largest residual channel over its median one, and which it is",
            # The ratio may exceed the range of float16.
            (
                Array("massive", _KEYS, dtype="float32"),
                Array("massive_channel", _KEYS, dtype="int32"),
            ),
            on_request=True,
        ),
        Statistic(
            "lens",
            "what each layer's residual predicts at masked positions: token, probability, entropy",
            (
                Array("lens_token", _KEYS, Join.LATEST, dtype="int32", predicted=True),
                Array("lens_probability", _KEYS, Join.LATEST, predicted=True),
                Array("lens_entropy", _KEYS, Join.LATEST, predicted=True),
            ),
            on_request=True,
        ),
        Statistic(
            "kv_drift",
            "1 − cos of each key and value with its own at the kept step before",
            (Array("key_drift", _KEYS, Join.LATEST), Array("value_drift", _KEYS, Join.LATEST)),
            on_request=True,
        ),
        Statistic(
            "experts",
            "which experts each position goes to, and with what weight, where a model has them",
            (
                Array("expert", ("layer", "choice", "key"), dtype="int32"),
                Array("expert_weight", ("layer", "choice", "key")),
            ),
            on_request=True,
        ),
    ]
)
Statistic.registry = STATISTICS

lazily(__name__, "STATISTICS", "Array", "Join", "Statistic")
