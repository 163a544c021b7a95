"""Compute statistics on a GPU in one pass over columns and one pass over rows; launches `kernels`.

Inputs, outputs and precision are those of `blocked`, but this module requires Triton, a log-sum-exp from
attention's forward, and heads of at most 256 numbers. `unfit` returns the reason why this module does not
support a view; `attention/backend.py` then uses `blocked`.
"""

import math
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ...models import Direction
from ..shapes import Arrays, View
from . import overlapped
from .plan import Plan, plan_of

_MAX_DIM = 256
_MAX_VALUES = 128
_SHIFT = 10  # 16-bit weights are 2^10 · A: not subnormal in a uniform row of 32,768 keys


@dataclass(frozen=True)
class Tiles:
    """Tile sizes of a kernel: the fastest ones measured on an H200."""

    queries: int
    keys: int
    warps: int
    stages: int


def sums(view: View, *, entropy: bool = True, regions: bool = True) -> Arrays:
    """Compute the sums of `blocked.sums` with kernels, for a view that they support (see `unfit`)."""
    launch = Launch(view)
    parts = [view.labels.in_region] if regions else []
    parts += [] if view.state is None else [view.state.float()]
    arrays = {"column_sum": launch.columns()}
    entropies, weighted = launch.rows(entropy, parts) if entropy or parts else (None, None)
    if entropies is not None:
        arrays["entropy"] = entropies
    if weighted is not None:
        n = view.labels.n_regions if regions else 0
        if regions:
            arrays["region_sum"] = weighted[..., :n]
        if view.state is not None:
            arrays["rolled"] = head_means(weighted, n, view.state.shape[-1])
    return arrays


def head_means(values: Float[Tensor, "b h q v"], first: int, n: int) -> Float[Tensor, "b q n"]:
    """Return the mean over heads of n values from index `first` on; torch is several times slower."""
    b, h, n_query, wide = values.shape
    out = torch.empty((b, n_query, n), dtype=torch.float32, device=values.device)
    kernel = getattr(_kernels(), "head_means")  # noqa: B009
    kernel[(b * n_query,)](
        *(values, out, h, n_query, first, n),
        VALUES=wide,
        HEADS=max(2, 1 << (h - 1).bit_length()),
        num_warps=1,
    )
    return out


def installed() -> bool:
    """Return whether Triton is installed."""
    return _kernels() is not None


def unfit(view: View, without_lse: bool = False) -> str | None:
    """Return the reason why the kernels do not support this view; None if they do."""
    if _kernels() is None:
        return "Triton is not installed"
    if view.lse is None and not without_lse:
        return "attention's forward kept no log-sum-exp"
    if view.bias is not None:
        return "an intervention adds a bias to the scores"
    if view.query.shape[-1] > _MAX_DIM:
        return f"heads have more than {_MAX_DIM} numbers"
    if view.query.dtype not in (torch.bfloat16, torch.float16, torch.float32):
        return f"q and k are {view.query.dtype}"
    if 2 * view.labels.n_regions > _MAX_VALUES:
        return f"there are more than {_MAX_VALUES // 2} regions"
    if view.mask is None and view.causal != (view.visible.is_causal and view.query.shape[2] > 1):
        return "the direction was changed without a mask"
    return None


@cache
def _kernels() -> ModuleType | None:
    try:
        from . import kernels
    except ImportError:
        return None
    return kernels


class Launch:
    """One layer's view, prepared for the kernels."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.b, self.h, self.n_query, self.dim = view.query.shape
        self.n_key = view.key.shape[2]
        # A mask that follows from direction and padding is computed; any other mask is read.
        self.ruled = view.ruled
        self.plan: Plan = plan_of(view.labels, view.visible, self.ruled)
        assert view.lse is not None
        self.lse = view.lse.contiguous()
        self.exact = view.query.dtype == torch.float32
        self.wide = _power_of_two(self.dim)
        self.log2_scale = view.scale * math.log2(math.e)
        mask = self.plan.group  # a placeholder, never read
        strides: tuple[int, ...] = (0, 0, 0)
        if not self.ruled:
            assert view.mask is not None
            mask = view.mask.expand(self.b, self.h, -1, -1).view(torch.uint8)
            if mask.stride(-1) != 1:
                mask = mask.contiguous()
            strides = mask.stride()[:3]
        self.mask, self.mask_strides = mask, strides

    @property
    def _directed(self) -> bool:
        return self.ruled and self.view.visible.direction is not Direction.BIDIRECTIONAL

    @property
    def _ahead(self) -> bool:
        """Whether the Hopper kernels of `overlapped` support this view."""
        return self.ruled and not self._directed and overlapped.takes(self.view)

    def columns(self) -> Tensor:
        plan, groups, n_key = self.plan, self.plan.n_groups, self.n_key
        directed = self._directed
        tiles = column_tiles(self.view)
        offsets = self._offsets(tiles.queries)
        spans = plan.spans(tiles.queries)
        out = torch.empty(
            (self.b, groups, self.h, n_key), dtype=torch.float32, device=self.lse.device
        )
        if self._ahead and overlapped.column_sums(self.view, offsets, plan.padding, spans, out):
            return out
        n_tiles = -(-n_key // tiles.keys)
        first = plan.first_queries(tiles.queries, tiles.keys) if directed else plan.padding
        self._run(
            "column_sums",
            (n_tiles, self.b * self.h),
            (
                *(self.view.query, self.view.key, offsets, plan.last, self.mask),
                *(plan.padding, spans, first, out),
            ),
            (self.n_query, n_key, groups, n_tiles, offsets.shape[-1]),
            tiles,
            {"DIRECTED": directed},
        )
        return out

    def _offsets(self, tile: int) -> Tensor:
        """Return the log2-sum-exp of each row in its group; +∞ in other groups and in padding at the end."""
        groups, wide = self.plan.n_groups, (-(-self.n_query // tile) + 2) * tile
        out = torch.empty(
            (self.b, groups, self.h, wide), dtype=torch.float32, device=self.lse.device
        )
        grid = (-(-wide // 1024), self.b * self.h)
        kernel = getattr(_kernels(), "offsets")  # noqa: B009
        kernel[grid](self.lse, self.plan.group, out, self.h, groups, self.n_query, wide, TILE=1024)
        return out

    def rows(self, entropy: bool, parts: list[Tensor]) -> tuple[Tensor | None, Tensor | None]:
        """Return row entropies (b, h, q), and the attention-weighted sums of the given (b, k, _) values."""
        plan, device = self.plan, self.lse.device
        wide = _power_of_two(sum(v.shape[-1] for v in parts)) if parts else 0
        ahead = self._ahead and bool(parts) and wide <= overlapped.MOST_VALUES
        # The rounding error of 16-bit weights and values, 2^−11, is below that of q and k in bfloat16.
        kind = torch.float32 if self.exact else torch.float16
        n_values = -(-self.n_key // overlapped.PAIR) * overlapped.PAIR
        values = plan.side_by_side(parts, n_values, max(wide, 1), kind)
        shape = (self.b, self.h, self.n_query)
        entropies = torch.empty(
            shape if entropy or ahead else (1,), dtype=torch.float32, device=device
        )
        weighted = torch.empty(
            (*shape, wide) if parts else (1,), dtype=torch.float32, device=device
        )
        outputs = entropies if entropy else None, weighted if parts else None
        if ahead and overlapped.row_sums(
            self.view, values, self.lse, plan, entropies, weighted, _SHIFT
        ):
            return outputs
        tiles = row_tiles(self.view)
        n_tiles = -(-self.n_query // tiles.queries)
        self._run(
            "row_sums",
            (n_tiles, self.b * self.h),
            (
                *(self.view.query, self.view.key, values, self.lse, plan.group, plan.last),
                *(self.mask, plan.padding, plan.seen_keys(tiles.queries, tiles.keys)),
                *(entropies, weighted),
            ),
            (self.n_query, self.n_key, n_values, n_tiles),
            tiles,
            {"VALUES": wide, "ENTROPY": entropy, "SHIFT": 0 if self.exact else _SHIFT},
        )
        return outputs

    def _run(
        self,
        name: str,
        grid: tuple[int, int],
        tensors: tuple[Tensor, ...],
        sizes: tuple[int, ...],
        tiles: Tiles,
        options: dict[str, Any],
    ) -> None:
        view = self.view
        kernel = getattr(_kernels(), name)
        kernel[grid](
            *tensors,
            self.h,
            self.h // view.key.shape[1],
            *sizes,
            *view.query.stride(),
            *view.key.stride(),
            *self.mask_strides,
            self.log2_scale,
            DIM=self.dim,
            WIDE=self.wide,
            TILE_Q=tiles.queries,
            TILE_K=tiles.keys,
            MASKED=not self.ruled,
            EXACT=self.exact,
            num_warps=tiles.warps,
            num_stages=tiles.stages,
            **options,
        )


def column_tiles(view: View) -> Tiles:
    small = view.query.dtype == torch.float32 or view.query.shape[-1] > 128
    return Tiles(32, 64, 4, 2) if small else Tiles(64, 128, 4, 2)


def row_tiles(view: View) -> Tiles:
    small = view.query.dtype == torch.float32 or view.query.shape[-1] > 128
    return Tiles(64, 32, 4, 2) if small else Tiles(128, 64, 8, 3)


def _power_of_two(n: int) -> int:
    """Return the smallest power of two that is at least n and at least 16, which matrix units require."""
    return max(16, 1 << (n - 1).bit_length())
