"""The class Trace: labelled arrays of one decoding, for every kept step, layer and head.

A trace can be read, saved and loaded without its model. Means and shares are computed here from the recorded
sums, not recorded themselves, so that a float16 trace does not lose digits: sums are of order 1, shares of
order 1/S.
"""

import warnings
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypedDict, Unpack, cast, runtime_checkable

import numpy as np
import xarray as xr

from ..errors import TraceError, UsageError
from ..statistics import STATISTICS
from .windows import is_local

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SCHEMA = 2
# Attributes that every trace must have.
REQUIRED = {
    **dict.fromkeys(("text", "ended", "gold", "model", "direction", "sampler"), str),
    **dict.fromkeys(("prompt_length", "shift"), int),
}
_BLOCK = 64e6  # bytes of a trace per block, for measures of every head


class _Kept:
    """Property that returns the array of the same name, or raises TraceError if it was not kept."""

    def __init__(self, doc: str) -> None:
        self.__doc__ = doc

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, trace: "Trace | None", owner: type) -> xr.DataArray:
        return self if trace is None else trace._need(self.name)  # type: ignore[return-value]


class FigureSize(TypedDict, total=False):
    """Axes to draw into, size in inches, and font size in points."""

    ax: "Axes | None"
    width: float | None
    height: float | None
    font_size: float | None


@runtime_checkable
class Patterns(Protocol):
    """Protocol of models that can recompute attention patterns."""

    def pattern(
        self, trace: Any, *, step: int, layer: int | None = ..., head: int | None = ...
    ) -> xr.DataArray: ...


@dataclass(frozen=True, eq=False, repr=False)
class Trace:
    """The recorded attention of the decoding of one prompt.

    Traces are created by `model.trace` or `Trace.load`. The properties of a trace return labelled xarray
    arrays. A property whose statistic was not kept raises an error that names the statistic.

    Args:
        data: the xarray dataset that contains the arrays of all properties.

    Example:
        ```python
        trace = model.trace("Where was Ada Lovelace born?")
        trace.mass.sel(layer=2).mean("head")  # step, key
        trace.save("born.zarr")
        ```
    """

    data: xr.Dataset

    def __post_init__(self) -> None:
        if not isinstance(self.data, xr.Dataset):
            problem = f"a Trace requires an xarray Dataset, not a {type(self.data).__name__}"
            sources = "model.trace(prompt), or read one with Trace.load(path)"
            raise UsageError(
                problem, f"Record one with {sources}; for task records, evaluate(model, records)."
            )

    # The decoding

    @property
    def info(self) -> Mapping[str, Any]:
        """Model, sampler, versions and other attributes of the recording."""
        return self.data.attrs

    @property
    def text(self) -> str:
        """The answer as `generate` returns it: up to its end token, without special tokens."""
        return str(self.data.attrs["text"])

    @property
    def raw_text(self) -> str:
        """The complete answer, with special tokens, the text after an end token, and remaining masks."""
        return str(self.data.attrs["raw_text"])

    @property
    def prompt(self) -> str:
        """The text of the prompt without its template, equal for models that differ only in the template."""
        size = int(self.data.attrs["prompt_length"])
        tokens, regions = (self.data[name].values[:size] for name in ("final_token", "region"))
        return " ".join("".join(map(str, tokens[regions != "template"])).split())

    canvas = _Kept(
        "Token ids: canvas[t] is the input of step t, canvas[-1] the result; −1 is a missing position."
    )
    change = _Kept("Change of each position at each step: 0 none, 1 reveal, 2 remask, 3 edit.")
    confidence = _Kept(
        "Probability of the token proposed at each step and position; NaN without a proposal."
    )

    @property
    def n_steps(self) -> int:
        """Number of steps of the decoding, kept or not."""
        return int(self.data.sizes["tick"])

    def by_block(self, array: xr.DataArray) -> xr.DataArray:
        """Return an array of this trace with the dimensions `block` and `block_step` in place of `step`.

        Args:
            array: an array of this trace with a dimension `step`, such as `trace.mass`.

        Returns:
            The array with the dimensions (block, block_step, …). Values are NaN where a block took fewer
            steps than other blocks. The coordinates `first` and `stop` are the range of positions that each
            block decided.
        """
        if "step" not in array.dims:
            raise TraceError(
                "this array has no dimension `step`", "Give an array with the dimension `step`."
            )
        edges, steps = self.data["block"].values, array["step"].values
        begins = np.append(True, (edges[1:] != edges[:-1]).any(1))[: len(edges)]
        number = np.cumsum(begins) - 1  # of each step's block
        within = np.arange(len(edges)) - np.flatnonzero(begins)[number]
        places = {"block": ("step", number[steps]), "block_step": ("step", within[steps])}
        by_step = [str(name) for name, c in array.coords.items() if "step" in c.dims]
        bare = array.drop_vars(by_step).astype(_wide(array.dtype))
        blocks = bare.assign_coords(places).set_index(step=list(places)).unstack("step")
        blocks = blocks.reindex(block_step=np.arange(within[steps].max(initial=-1) + 1))
        first, stop = edges[np.searchsorted(number, blocks["block"].values)].T
        blocks = blocks.assign_coords(first=("block", first), stop=("block", stop))
        return blocks.transpose("block", "block_step", ...)

    def at_step(self, place: int) -> "Trace":
        """Return this trace with only one of its kept steps, without copying.

        Args:
            place: index among the kept steps, from 0; −1 is the last.
        """
        return Trace(self.data.isel(step=slice(place, place + 1 or None)))

    def layer_blocks(self, limit: float = _BLOCK) -> Iterator["Trace"]:
        """Yield this trace in blocks of layers, to bound the memory of a measure.

        Args:
            limit: size of a block in bytes, default 64 MB; a smaller trace is yielded unchanged.
        """
        layers = self.data.sizes["layer"]
        size = max(1, int(limit * layers / max(self.nbytes, 1)))
        if size >= layers:
            yield self
            return
        for start in range(0, layers, size):
            yield Trace(self.data.isel(layer=slice(start, start + size)))

    # Attention statistics

    @property
    def mass(self) -> xr.DataArray:
        """Share of all attention that each key receives; sums to 1 over keys."""
        return self._mass(self._columns)

    @cached_property
    def mean_mass(self) -> xr.DataArray:
        """`mass` averaged over heads: (step, layer, key). Computed once, and read-only."""
        return _read_only(self._mass(self._column_means))

    def mass_from(self, *groups: str) -> xr.DataArray:
        """Return `mass` from the queries of the given groups only, such as mass_from("masked", "revealed").

        Args:
            *groups: names of query groups: "prompt", "masked" and "revealed", or regions for a trace with
                groups="regions".
        """
        return self._mass(self._columns, self._groups(groups))

    def mean_mass_from(self, *groups: str) -> xr.DataArray:
        """Return `mass_from` averaged over heads: (step, layer, key).

        Args:
            *groups: names of query groups, as for `mass_from`.
        """
        return self._mass(self._column_means, self._groups(groups))

    @property
    def received(self) -> xr.DataArray:
        """Mean attention that each key receives from the queries that see it."""
        return _over(_total(self._columns), self._need("visible").variable, "received")

    @cached_property
    def mean_received(self) -> xr.DataArray:
        """`received` averaged over heads: (step, layer, key). Computed once, and read-only."""
        visible = self._need("visible").variable
        return _read_only(_over(_total(self._column_means), visible, "received"))

    null = _Kept(
        "`mass` under uniform attention over the visible keys: (step, key), or (step, layer, key) if "
        "some layers see a window."
    )

    @property
    def lift(self) -> xr.DataArray:
        """Mass divided by its null, `mass / null`; 1 is chance, in causal and bidirectional models."""
        return _over(self.mass, self.null.variable, "lift")

    entropy = _Kept(
        "Entropy of each query's attention divided by its maximum; 0: a single key, 1: uniform."
    )
    entropy_sum = _Kept(
        "`entropy` summed over the queries of each group: (step, group, layer, head)."
    )
    entropy_rows = _Kept(
        "Number of queries in `entropy_sum`; a query that sees a single key is not counted."
    )
    flow = _Kept("Mean attention from `source`'s queries to `target`'s keys; rows sum to 1.")
    rollout = _Kept(
        "Flow from `source` to `target` through all layers up to this one (attention rollout)."
    )
    score = _Kept("Mean of q_i · k_j over the queries that see key j, without the 1/√d scale.")
    cosine = _Kept("Mean cosine of q_i and k_j over the queries that see key j.")
    key_norm = _Kept("‖k_j‖.")
    query_norm = _Kept("Mean of ‖q_i‖ over the queries that see key j.")
    value_norm = _Kept(
        "‖W_O v_j‖: the norm of what each key's value writes to the residual stream."
    )
    residual_norm = _Kept("Norm of each position's residual stream at the layer's input.")
    massive = _Kept(
        "max |x| / median |x| over the channels of the residual stream at the layer's input."
    )
    massive_channel = _Kept("Index of the largest channel; −1 at a missing position.")
    key_drift = _Kept(
        "1 − cos between k_j and k_j at the previous kept step, mean over heads; NaN with a KV cache."
    )
    value_drift = _Kept(
        "1 − cos between v_j and v_j at the previous kept step, mean over heads; NaN with a KV cache."
    )

    @property
    def lens(self) -> xr.Dataset:
        """Predictions from each layer's output at masked positions: `token` id, `probability`, `entropy`.

        The index is the predicted position, not the row that predicts it. Positions that are not masked have
        token −1, and NaN for the other values. For a causal model, each step predicts the next position. The
        mask token is never predicted.
        """
        names = ("token", "probability", "entropy")
        return xr.Dataset({n: self._need(f"lens_{n}").drop_vars("token") for n in names})

    @property
    def experts(self) -> xr.Dataset:
        """The experts that a router chose for each position, `expert`, and their `weight`, strongest first.

        Layers without experts and positions that do not exist yet have expert −1 and weight NaN.
        """
        expert, weight = (self._need(name) for name in ("expert", "expert_weight"))
        return xr.Dataset({"expert": expert, "weight": weight})

    @property
    def rows(self) -> xr.Dataset:
        """Rows that predicted revealed tokens, as strongest keys and sums by region; one event per reveal."""
        self._need("row_key", "rows")
        rows = self.data[["row_key", "row_weight", "row_flow"]]
        for name in ("row_weight", "row_flow"):
            rows[name] = self._need(name)
        return rows

    @property
    def _columns(self) -> xr.DataArray:
        return self._need("column_sum", wide=False)

    @cached_property
    def _column_means(self) -> xr.DataArray:
        """`column_sum` averaged over heads: `column_mean` if recorded, else computed once."""
        if "column_mean" in self.data or "column_sum" not in self.data:
            return self._need("column_mean", wide=False)
        columns = self.data["column_sum"]
        return columns.mean("head", skipna=False, dtype=_wide(columns.dtype))

    def _groups(self, groups: Sequence[str]) -> list[int]:
        recorded = [str(g) for g in self.data["group"].values]
        for group in groups or ("",):
            if group not in recorded:
                remedy = (
                    f"It has: {', '.join(recorded)}. Trace with keep including 'groups' for more."
                )
                raise TraceError(f"no query group {group!r} in this trace", remedy)
        return [recorded.index(group) for group in groups]

    def _mass(self, columns: xr.DataArray, groups: Sequence[int] | None = None) -> xr.DataArray:
        rows = self.data["rows_counted"].variable.astype(np.float32)
        if groups is not None:
            columns, rows = columns.isel(group=groups), rows.isel(group=groups)
        count = rows.sum("group")
        n_rows = count.where(count > 0)  # type: ignore[no-untyped-call]
        return _over(_total(columns), n_rows, "mass")

    def _need(self, name: str, keep: str | None = None, *, wide: bool = True) -> xr.DataArray:
        if name not in self.data:
            keep = keep or STATISTICS.keep_of(name)
            problem = f"this trace did not keep {name}"
            remedy = f"Trace with keep including {keep!r}."
            if not self.data.sizes["step"]:
                problem = (
                    f"this trace contains no statistics: decoding ended after {self.n_steps} steps"
                )
                remedy = "None of the chosen steps was reached: choose earlier ones."
            elif keep == "experts":
                remedy = "Trace a model with experts, with keep including 'experts'."
            elif name == "row_key" and self.info["ended"] == "read":
                problem = "this trace reads a finished sequence, which reveals no tokens, so it has no rows"
                remedy = "Use the trace of the decoding itself."
            raise TraceError(problem, remedy)
        array = self.data[name]
        # Stored as float16, read as float32: sums in float16 would overflow or lose digits.
        return array.astype(_wide(array.dtype)) if wide and array.dtype == np.float16 else array

    # Figures

    def heatmap(
        self,
        rows: str = "layer",
        columns: str = "position",
        *,
        layer: int | Sequence[int] | None = None,
        head: int | Sequence[int] | None = None,
        step: int | Sequence[int] | None = None,
        region: str | Sequence[str] | None = None,
        lift: bool = False,
        tokens: bool | None = None,
        **size: Unpack[FigureSize],
    ) -> "Axes":
        """Draw attention over any two of step, layer, head, position and region.

        `heatmap()` draws layer × position, `heatmap("step", layer=3)` draws step × position of one layer, and
        `heatmap("step", "layer", region="gold")` draws the attention that one region receives. Dimensions
        that are neither shown nor chosen are averaged. The share of a region is the sum over its positions.

        Args:
            rows, columns: dimensions of the axes: "step", "layer", "head", "position" or "region". By
                default "layer" and "position".
            layer, head, step: one index, or several indices to average over; all by default.
            region: use only the positions of this region, or of several regions; "gold" is the gold passage.
            lift: show attention over uniform attention, on a logarithmic scale where white is chance.
                Default False.
            tokens: label every position with its token, or none. By default all if there is room, else
                the strongest.
            ax: matplotlib axes to draw into; a new figure by default.
            width, height: size of the figure in inches.
            font_size: in points; by default rcParams["font.size"] if you set it, else 8.
            **size: `ax`, `width`, `height` and `font_size`.

        Returns:
            The matplotlib Axes.
        """
        selection = {"layer": layer, "head": head, "step": step, "region": region}
        # Plots import traces, so plotting functions are looked up by name when a figure is drawn.
        draw = import_module("floatscope.plots.heatmap").draw
        return cast("Axes", draw(self, rows, columns, selection, lift=lift, tokens=tokens, **size))

    def show(
        self,
        step: int,
        layer: int | None = None,
        head: int | None = None,
        *,
        model: Patterns,
        tokens: bool | None = None,
        **size: Unpack[FigureSize],
    ) -> "Axes":
        """Draw the attention pattern of a head at one step, queries by keys, recomputed by `model`.

        Args:
            step: step of the decoding, from 0.
            layer: layer from 0; None (default) averages over layers.
            head: head from 0; None (default) averages over heads.
            model (Model): the model that was traced; a trace contains no patterns.
            tokens: label every position with its token, or none. By default all if there is room, else
                the strongest.
            **size: `ax`, `width`, `height` and `font_size`, as for `heatmap`.

        Returns:
            The matplotlib Axes.
        """
        pattern = model.pattern(self, step=step, layer=layer, head=head)
        draw = import_module("floatscope.plots.pattern").draw_pattern
        return cast("Axes", draw(pattern, tokens=tokens, **size))

    # Keeping it

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write the trace as a zarr 3 store, completely or not at all, and return its path.

        Args:
            path: directory to create.
            overwrite: replace an existing trace; other files are never replaced. False by default.
        """
        from . import store  # imports zarr, which traces in memory do not need

        return store.save(self.data, Path(path), SCHEMA, overwrite=overwrite)

    @classmethod
    def load(cls, path: str | Path, *, lazy: bool = False) -> "Trace":
        """Read a saved trace; its model is not needed.

        If the recording was interrupted (`trace(..., to=path)`), the steps that were written are read,
        with a warning. A zip file saved by the live page is read too.

        Args:
            path: directory written by `save` or `trace(..., to=path)`, or a zip file of the live page.
            lazy: leave arrays on disk until they are used, False by default.
        """
        from . import store, unfinished

        if Path(path).is_file() and zipfile.is_zipfile(path):
            with store.unzipped(Path(path)) as folder:
                return cls.load(folder)
        if (progress := unfinished.progress(Path(path))) is not None:
            data = unfinished.load(Path(path), progress, lazy=lazy)
            problem = f"{path} was not finished: {data.attrs['unfinished']} were written"
            warnings.warn(problem, stacklevel=2)
            return cls(data)
        return cls(store.load(Path(path), SCHEMA, REQUIRED, lazy=lazy))

    @property
    def interventions(self) -> tuple[str, ...]:
        """Interventions that were active, as Python calls, in the order in which they were applied."""
        return tuple(map(str, self.info.get("interventions", ())))

    @property
    def nbytes(self) -> int:
        """Size of the arrays in bytes."""
        return int(self.data.nbytes)

    def __repr__(self) -> str:
        d, info = self.data, self.info
        sizes, prompt = d.sizes, int(info["prompt_length"])
        lines = [
            f"<floatscope.Trace {info['model']} · {info['sampler']}",
            *(f"  under {name}" for name in self.interventions),
            f"  {self.n_steps} steps ({sizes['step']} kept) × {sizes['layer']} layers × "
            f"{sizes['head']} heads × {sizes['key']} positions "
            f"({prompt} prompt + {sizes['key'] - prompt} answer), {readable(self.nbytes)}",
            f"  answer: {self.text!r} ({info['ended']})",
            f"  regions: {', '.join(dict.fromkeys(map(str, d['region'].values)))}",
        ]
        by_dims: dict[str, list[str]] = {}
        for name in sorted(map(str, d.data_vars)):
            dims = ", ".join(map(str, d[name].dims))
            by_dims.setdefault(dims, []).append(f"{name} {readable(d[name].nbytes)}")
        lines += [f"  ({dims}): {', '.join(names)}" for dims, names in sorted(by_dims.items())]
        return "\n".join(lines) + ">"

    def _repr_html_(self) -> str | None:
        """Return the interactive view as HTML; None without values by head, or with local layers."""
        if "column_sum" not in self.data or is_local(self.data):
            return None
        embed = import_module("floatscope.report.embed")
        return str(embed.notebook([self]))


def _total(columns: xr.DataArray) -> xr.DataArray:
    return columns.sum("group", skipna=False, dtype=_wide(columns.dtype))


def _over(total: xr.DataArray, count: xr.Variable, name: str) -> xr.DataArray:
    """Return total / count, renamed; `total` is overwritten. Labels are not compared."""
    share = total.variable
    share /= count
    return total.rename(name)


def _wide(dtype: np.dtype) -> np.dtype:
    """Return float32 if the dtype is narrower, else the dtype."""
    return np.result_type(dtype, np.float32)


def _read_only(array: xr.DataArray) -> xr.DataArray:
    array.values.flags.writeable = False
    return array


def readable(size: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"
