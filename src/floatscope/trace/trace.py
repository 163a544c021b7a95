"""A Trace: labelled arrays of one decoding, every kept step, layer and head.

It needs no model to be read, saved or loaded. Means and shares are computed here from the sums that were
recorded, so that a float16 trace keeps its digits (sums are of order 1, shares of order 1/S).
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
# Attributes without which nothing can be said of a trace.
REQUIRED = {
    **dict.fromkeys(("text", "ended", "gold", "model", "direction", "sampler"), str),
    **dict.fromkeys(("prompt_length", "shift"), int),
}
_BLOCK = 64e6  # bytes of a trace that are measured at a time where every head is looked at


class _Kept:
    """An array of `floatscope.statistics` that a trace holds under this attribute's name, if it was kept."""

    def __init__(self, doc: str) -> None:
        self.__doc__ = doc

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, trace: "Trace | None", owner: type) -> xr.DataArray:
        return self if trace is None else trace._need(self.name)  # type: ignore[return-value]


class FigureSize(TypedDict, total=False):
    """Whose axes a figure is drawn into, its inches, and the points of its letters."""

    ax: "Axes | None"
    width: float | None
    height: float | None
    font_size: float | None


@runtime_checkable
class Patterns(Protocol):
    """A model that computes patterns again."""

    def pattern(
        self, trace: Any, *, step: int, layer: int | None = ..., head: int | None = ...
    ) -> xr.DataArray: ...


@dataclass(frozen=True, eq=False, repr=False)
class Trace:
    """What one prompt's decoding attended to. `trace.data` is the xarray Dataset behind it all."""

    data: xr.Dataset

    def __post_init__(self) -> None:
        if not isinstance(self.data, xr.Dataset):
            what = f"a Trace holds an xarray Dataset, not a {type(self.data).__name__}"
            ways = "model.trace(prompt), or read one with Trace.load(path)"
            raise UsageError(
                what, f"Record one with {ways}; for task records, evaluate(model, records)."
            )

    # What happened

    @property
    def info(self) -> Mapping[str, Any]:
        """Model, sampler, versions: where this came from."""
        return self.data.attrs

    @property
    def text(self) -> str:
        """The answer as `generate` gives it: up to its end token, without special tokens."""
        return str(self.data.attrs["text"])

    @property
    def raw_text(self) -> str:
        """The answer with all that stands in it: special tokens, what follows an end, masks left over."""
        return str(self.data.attrs["raw_text"])

    @property
    def prompt(self) -> str:
        """What was asked, without the template around it: the same for every model asked the same."""
        size = int(self.data.attrs["prompt_length"])
        tokens, regions = (self.data[name].values[:size] for name in ("final_token", "region"))
        return " ".join("".join(map(str, tokens[regions != "template"])).split())

    canvas = _Kept("Token ids: canvas[t] is the input of step t, canvas[-1] the result; −1: none.")
    change = _Kept("What each step did to each position: 0 nothing, 1 reveal, 2 remask, 3 edit.")
    confidence = _Kept("The probability of what each step proposed; NaN where nothing was.")

    @property
    def n_steps(self) -> int:
        return int(self.data.sizes["tick"])

    def by_block(self, array: xr.DataArray) -> xr.DataArray:
        """Return an array of this trace with `block` and `block_step` in place of `step`.

        `trace.by_block(trace.mass)`: NaN where a block took fewer steps than others; `first` and `stop`
        are the positions that each block decided.
        """
        if "step" not in array.dims:
            raise TraceError("this array has no steps for blocks", "Give one with a `step`.")
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
        """Return this trace with one of its kept steps, the first 0 and the last −1, without copying."""
        return Trace(self.data.isel(step=slice(place, place + 1 or None)))

    def layer_blocks(self, limit: float = _BLOCK) -> Iterator["Trace"]:
        """Yield this trace in blocks of layers of about `limit` bytes; a small one is yielded whole."""
        layers = self.data.sizes["layer"]
        size = max(1, int(limit * layers / max(self.nbytes, 1)))
        if size >= layers:
            yield self
            return
        for start in range(0, layers, size):
            yield Trace(self.data.isel(layer=slice(start, start + size)))

    # Where attention went

    @property
    def mass(self) -> xr.DataArray:
        """m_j: the share of all attention that key j receives; sums to 1 over keys."""
        return self._mass(self._columns)

    @cached_property
    def mean_mass(self) -> xr.DataArray:
        """`mass` averaged over heads: (step, layer, key). Computed once, and read-only."""
        return _read_only(self._mass(self._column_means))

    def mass_from(self, *groups: str) -> xr.DataArray:
        """The same as `mass` from some queries alone, such as mass_from("masked", "revealed")."""
        return self._mass(self._columns, self._groups(groups))

    def mean_mass_from(self, *groups: str) -> xr.DataArray:
        """`mass_from` averaged over heads: (step, layer, key)."""
        return self._mass(self._column_means, self._groups(groups))

    @property
    def received(self) -> xr.DataArray:
        """c_j: mean attention from the queries that can see key j."""
        return _over(_total(self._columns), self._need("visible").variable, "received")

    @cached_property
    def mean_received(self) -> xr.DataArray:
        """`received` averaged over heads: (step, layer, key). Computed once, and read-only."""
        visible = self._need("visible").variable
        return _read_only(_over(_total(self._column_means), visible, "received"))

    null = _Kept(
        "What uniform attention over the visible keys would give as `mass`: (step, key), or where some "
        "layers see a window (step, layer, key)."
    )

    @property
    def lift(self) -> xr.DataArray:
        """mass / null: 1 is chance, causal or not."""
        return _over(self.mass, self.null.variable, "lift")

    entropy = _Kept("Of each query's attention, over its maximum: 0 = one key, 1 = uniform.")
    entropy_sum = _Kept("`entropy` summed over each group's queries: (step, group, layer, head).")
    entropy_rows = _Kept("How many queries that sum is of: those that see more than one key.")
    flow = _Kept("Mean attention from `source`'s queries to `target`'s keys; rows sum to 1.")
    rollout = _Kept("The same through all layers so far.")
    score = _Kept("Mean of q_i · k_j over the queries that see key j, without the 1/√d scale.")
    cosine = _Kept("Mean cosine of q_i and k_j over the queries that see key j.")
    key_norm = _Kept("‖k_j‖.")
    query_norm = _Kept("Mean of ‖q_i‖ over the queries that see key j.")
    value_norm = _Kept("‖W_O v_j‖: the norm of what each key's value writes.")
    residual_norm = _Kept("The norm of each residual at the layer's input.")
    massive = _Kept("max |x| over median |x| of a residual's channels at the layer's input.")
    massive_channel = _Kept("Which channel is the largest; −1: not there yet.")
    key_drift = _Kept("1 − cos of k_j and k_j at the kept step before; NaN with a KV cache.")
    value_drift = _Kept("The same of v_j; both are means over heads.")

    @property
    def lens(self) -> xr.Dataset:
        """What each layer's output predicts at masked positions: `token` id, `probability`, `entropy`.

        By the position that is predicted, whichever row predicts it; −1 and NaN where it is not masked.
        A causal model's next position is predicted at each step. The mask itself is never predicted.
        """
        names = ("token", "probability", "entropy")
        return xr.Dataset({n: self._need(f"lens_{n}").drop_vars("token") for n in names})

    @property
    def experts(self) -> xr.Dataset:
        """Where each position's router sent it: `expert` and its `weight`, the strongest choice first.

        −1 and NaN in layers without experts and at positions not there yet.
        """
        expert, weight = (self._need(name) for name in ("expert", "expert_weight"))
        return xr.Dataset({"expert": expert, "weight": weight})

    @property
    def rows(self) -> xr.Dataset:
        """One event per reveal: the strongest keys of the row that predicted it, and its region sums."""
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
        """`column_sum` averaged over heads: as it was recorded, or else computed here, once."""
        if "column_mean" in self.data or "column_sum" not in self.data:
            return self._need("column_mean", wide=False)
        columns = self.data["column_sum"]
        return columns.mean("head", skipna=False, dtype=_wide(columns.dtype))

    def _groups(self, groups: Sequence[str]) -> list[int]:
        known = [str(g) for g in self.data["group"].values]
        for group in groups or ("",):
            if group not in known:
                remedy = f"It has: {', '.join(known)}. Trace with keep including 'groups' for more."
                raise TraceError(f"no query group {group!r} in this trace", remedy)
        return [known.index(group) for group in groups]

    def _mass(self, columns: xr.DataArray, groups: Sequence[int] | None = None) -> xr.DataArray:
        rows = self.data["rows_counted"].variable.astype(np.float32)
        if groups is not None:
            columns, rows = columns.isel(group=groups), rows.isel(group=groups)
        count = rows.sum("group")
        seen = count.where(count > 0)  # type: ignore[no-untyped-call]
        return _over(_total(columns), seen, "mass")

    def _need(self, name: str, keep: str | None = None, *, wide: bool = True) -> xr.DataArray:
        if name not in self.data:
            keep = keep or STATISTICS.keep_of(name)
            what = f"this trace kept no {name}"
            remedy = f"Trace with keep including {keep!r}."
            if not self.data.sizes["step"]:
                what = f"this trace holds no statistics: decoding ended after {self.n_steps} steps"
                remedy = "None of the chosen steps was reached: choose earlier ones."
            elif keep == "experts":
                remedy = "Trace a model that has some with keep including 'experts'."
            elif name == "row_key" and self.info["ended"] == "read":
                what = "a finished sequence that was read reveals nothing, so it has no rows"
                remedy = "Measure the trace of the decoding itself."
            raise TraceError(what, remedy)
        array = self.data[name]
        # Sums of float16 would overflow or lose digits; stored narrow, read wide.
        return array.astype(_wide(array.dtype)) if wide and array.dtype == np.float16 else array

    # Looking at it

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
        """Where attention went, over any two of step, layer, head, position and region.

        `heatmap()` is layer × position, `heatmap("step", layer=3)` step × position of a layer,
        `heatmap("step", "layer", region="gold")` what one region receives. Means are taken over what is
        neither shown nor chosen; a region is the sum over its positions. Returns matplotlib's Axes.

        Args:
            layer, head, step: one, or several to take the mean of; all by default.
            region: these positions alone, by the region's name; "gold" is the gold passage.
            lift: share over uniform attention, on a logarithmic scale; white is chance.
            tokens: name every position's token, or none. By default all where there is room, else the
                strongest.
            ax: draw into these axes of yours.
            width, height: of the figure, in inches.
            font_size: points; by default rcParams["font.size"] if you set it, else 8.
        """
        chosen = {"layer": layer, "head": head, "step": step, "region": region}
        # Figures stand to the right of traces: looked up by name when one is drawn.
        draw = import_module("floatscope.plots.heatmap").draw
        return cast("Axes", draw(self, rows, columns, lift=lift, tokens=tokens, **chosen, **size))

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
        """The whole pattern of a head at a step, queries by keys, computed again by `model`.

        The trace holds none of it: `model` is the one that was traced. Without a layer or a head, the
        mean over them. The other options are `heatmap`'s.
        """
        pattern = model.pattern(self, step=step, layer=layer, head=head)
        draw = import_module("floatscope.plots.pattern").draw_pattern
        return cast("Axes", draw(pattern, tokens=tokens, **size))

    # Keeping it

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write as a zarr 3 store, whole or not at all."""
        from . import store  # imports zarr, which a measure of a trace in memory does not need

        return store.save(self.data, Path(path), SCHEMA, overwrite=overwrite)

    @classmethod
    def load(cls, path: str | Path, *, lazy: bool = False) -> "Trace":
        """Read a saved trace, without its model; `lazy` leaves the arrays on disk until needed.

        Of one whose recording was ended (`trace(..., to=path)`), the steps that are there, with a warning.
        A zip file, as the live page saves it, is read whole.
        """
        from . import store, unfinished

        if Path(path).is_file() and zipfile.is_zipfile(path):
            with store.unzipped(Path(path)) as folder:
                return cls.load(folder)
        if (progress := unfinished.progress(Path(path))) is not None:
            data = unfinished.load(Path(path), progress, lazy=lazy)
            what = f"{path} was not finished: {data.attrs['unfinished']} are there"
            warnings.warn(what, stacklevel=2)
            return cls(data)
        return cls(store.load(Path(path), SCHEMA, REQUIRED, lazy=lazy))

    @property
    def interventions(self) -> tuple[str, ...]:
        """What was in force while it was traced, as one would type it; the first acted first."""
        return tuple(map(str, self.info.get("interventions", ())))

    @property
    def nbytes(self) -> int:
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
        """Show the interactive view in a notebook, where the trace has heads and no layer sees a window."""
        if "column_sum" not in self.data or is_local(self.data):
            return None
        embed = import_module("floatscope.report.embed")
        return str(embed.notebook([self]))


def _total(columns: xr.DataArray) -> xr.DataArray:
    return columns.sum("group", skipna=False, dtype=_wide(columns.dtype))


def _over(total: xr.DataArray, count: xr.Variable, name: str) -> xr.DataArray:
    """Divide in place. Both come from one trace: their labels need no aligning."""
    share = total.variable
    share /= count
    return total.rename(name)


def _wide(dtype: np.dtype) -> np.dtype:
    """float32 for what is stored narrower."""
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
