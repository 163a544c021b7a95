"""Activations on disk: rows of the residual stream with step and position, for probes and autoencoders.

A zarr 3 store contains `activation` (row, layer, channel) and, for every row, the numbers of its prompt and
step, its position, and its token ids. `RowWriter` appends rows in whole chunks. A complete store is moved to
its final path.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
import zarr

from ..atomic import placed
from ..errors import TraceError, foreign
from . import store

MARK = "floatscope_activations"
SCHEMA = 1
COLUMNS = ("prompt", "step", "position", "token", "final_token", "masked")
# zarr has no bfloat16: its bits are stored as uint16 and converted to float32 on reading, without loss.
STORED = {"float32": np.float32, "float16": np.float16, "bfloat16": np.uint16}
_CHUNK_BYTES = 4 << 20
_CHUNK_ROWS = 1 << 16  # of a column


@dataclass(frozen=True, eq=False, repr=False)
class Activations:
    """Rows of the residual stream, as written by `Model.activations`.

    Args:
        data: the xarray dataset with the arrays, which are read from disk when they are used.

    Example:
        ```python
        activations = fs.Activations.load("activations")
        for rows in activations.batches(layer=3, size=1024):
            rows.values  # (row, channel)
        ```
    """

    data: xr.Dataset

    @classmethod
    def load(cls, path: str | Path) -> "Activations":
        """Open a store without reading its arrays.

        Args:
            path: directory written by `Model.activations`.
        """
        problem = f"{path} contains no activations written by Floatscope"
        remedy = "Give a directory written by Model.activations."
        if not Path(path).exists():
            raise TraceError(f"no activations at {path}", "Check the path.")
        with foreign(TraceError, problem, remedy):
            data = xr.open_zarr(Path(path), zarr_format=3, consolidated=False, chunks=None)
            if data.attrs.get(MARK) != SCHEMA or data.attrs["stored"] not in STORED:
                raise TraceError(problem, remedy)
            return cls(data.set_coords(list(COLUMNS)))

    @property
    def info(self) -> Mapping[str, Any]:
        """Attributes of the recording, such as model, sampler and interventions."""
        return self.data.attrs

    def __len__(self) -> int:
        return int(self.data.sizes["row"])

    def layer_input(self, layer: int, rows: slice = slice(None)) -> xr.DataArray:
        """Return the input of one layer, (row, channel), with each row's prompt, step, position and tokens.

        bfloat16 is converted to float32 without loss.

        Args:
            layer: a stored layer.
            rows: slice of rows; all by default.
        """
        layers = self.data["layer"].values.tolist()
        if layer not in layers:
            raise TraceError(f"no layer {layer} in these activations", f"There are: {layers}.")
        part = self.data["activation"].isel(layer=layers.index(layer), row=rows).load()
        if self.info["stored"] != "bfloat16":
            return part
        bits = part.values.astype(np.uint32) << 16  # bfloat16 is the upper half of a float32
        return part.copy(data=bits.view(np.float32))

    def batches(self, layer: int, size: int = 4096) -> Iterator[xr.DataArray]:
        """Yield all rows of a layer in order, `size` at a time.

        Args:
            layer: a stored layer.
            size: rows per batch, default 4096; the last batch may be smaller.
        """
        for start in range(0, len(self), size):
            yield self.layer_input(layer, slice(start, start + size))

    def __repr__(self) -> str:
        sizes, layers, info = self.data.sizes, self.data["layer"].values.tolist(), self.info
        shape = f"{sizes['row']} rows × layers {layers} × {sizes['channel']} channels"
        name = f"{info['model']} · {info['sampler']}"
        return f"<floatscope.Activations {name}: {shape}, {info['stored']}>"


class RowWriter:
    """Writer that appends rows to a new store, in whole chunks."""

    def __init__(self, folder: Path, layers: Sequence[int], width: int, stored: str) -> None:
        kind = np.dtype(STORED[stored])
        self._root = zarr.open_group(folder, mode="w", zarr_format=3)
        self._chunk = max(1, _CHUNK_BYTES // (width * kind.itemsize))
        self._rows = self._root.create_array(
            "activation",
            shape=(0, len(layers), width),
            chunks=(self._chunk, 1, width),
            dtype=kind,
            compressors=None,  # 16-bit activations do not compress
            dimension_names=("row", "layer", "channel"),
        )
        number: Any = {"chunks": (_CHUNK_ROWS,), "dimension_names": ("row",)}
        number |= {"shape": (0,), "dtype": np.int32}
        self._columns = {name: self._root.create_array(name, **number) for name in COLUMNS}
        numbers = np.array(layers, np.int32)
        self._root.create_array("layer", data=numbers, dimension_names=("layer",))
        self._waiting: list[np.ndarray] = []

    @property
    def nbytes(self) -> int:
        """Number of bytes of activations in memory."""
        return sum(part.nbytes for part in self._waiting)

    def add(self, rows: np.ndarray) -> None:
        """Add rows (n, layer, channel); an incomplete chunk stays in memory until more rows follow."""
        self._waiting.append(rows)
        count = sum(map(len, self._waiting))
        if count >= self._chunk:
            joined = np.concatenate(self._waiting)
            n_whole = count - count % self._chunk
            self._rows.append(joined[:n_whole])
            self._waiting = [joined[n_whole:].copy()]

    def describe(self, columns: Mapping[str, np.ndarray]) -> None:
        """Append the prompt, step, position and tokens of rows, in the order in which they were added."""
        for name, array in self._columns.items():
            array.append(np.asarray(columns[name], np.int32))

    def finish(self, attributes: Mapping[str, Any]) -> None:
        """Write the remaining rows and the attributes."""
        if self.nbytes:
            self._rows.append(np.concatenate(self._waiting))
        self._waiting = []
        self._root.update_attributes({**attributes, MARK: SCHEMA})


@contextmanager
def writing(
    path: Path, layers: Sequence[int], width: int, stored: str, attributes: Mapping[str, Any]
) -> Iterator[RowWriter]:
    """Yield the writer of a new store, which appears at `path` when it is complete."""

    def require_new() -> None:
        if os.path.lexists(path):
            raise TraceError(f"{path} exists", "Choose another path, or remove it yourself.")

    require_new()
    with store.writing(path, "Nothing was left behind."), placed(path, require_new) as partial:
        writer = RowWriter(partial, layers, width, stored)
        yield writer
        writer.finish({**attributes, "stored": stored})
