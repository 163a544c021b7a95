"""Row sums for Hopper GPUs: products and exponentials overlap as in `hopper`.

A program computes one tile of queries with all tiles of keys. The sums are those of `kernels.row_sums`, for
bidirectional attention without an edited mask. The weights go from registers directly into the product with
the values, without an exchange between threads. This module is imported only on a Hopper GPU; `overlapped`
launches the kernel.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from .hopper import _arrived, _copy_in, _product


@gluon.jit
def _fetch(
    k_desc, v_desc, k_row, k_column, v_row, k_memory, v_memory, ready, count, needed,
    STAGES: gl.constexpr,
):  # fmt: skip
    """Start the copy of two tiles of keys and their values, the `count`-th pair of this program."""
    stage = count % STAGES
    barrier = ready.index(stage)
    nbytes: gl.constexpr = k_desc.block_type.nbytes + v_desc.block_type.nbytes
    mbarrier.expect(barrier, nbytes, pred=needed)
    _copy_in(k_desc, [k_row, k_column], barrier, k_memory.index(stage), pred=needed)
    _copy_in(v_desc, [v_row, 0], barrier, v_memory.index(stage), pred=needed)


@gluon.jit
def _weigh(power, entropy):
    """Return exp2(`power`) = 2^SHIFT · A of a tile, and `entropy` with Σ weight · power of the tile added."""
    weight = gl.exp2(power)
    return weight.to(gl.float16), entropy + gl.sum(weight * power, axis=1)


@gluon.jit
def row_sums(
    q_desc, k_desc, v_desc, lse_ptr, group_ptr, padding_ptr, entropy_ptr, out_ptr,
    n_heads, heads_per_key, n_query, n_key, n_values,
    q_batch, q_head, q_column, k_batch, k_head, k_column, log2_scale,
    DIM: gl.constexpr, TILE_Q: gl.constexpr, TILE_K: gl.constexpr, VALUES: gl.constexpr,
    SHIFT: gl.constexpr, STAGES: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """Write entropy[b, h, i] = −Σ_j A_ij ln A_ij and out[b, h, i, v] = Σ_j A_ij V_jv.

    One program per head and tile of queries. `n_values` is the number of value rows per batch, padded with
    zeros to whole pairs of tiles.
    """
    product: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [num_warps, 1], [16, TILE_K, 16])
    gathered: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [num_warps, 1], [16, VALUES, 16])
    operand: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=gathered, k_width=2)
    tile = gl.program_id(0)
    b = gl.program_id(1) // n_heads
    h = gl.program_id(1) % n_heads
    kv = h // heads_per_key
    q_memory = gl.allocate_shared_memory(q_desc.dtype, [TILE_Q, DIM], q_desc.layout)
    k_memory = gl.allocate_shared_memory(k_desc.dtype, [STAGES, 2 * TILE_K, DIM], k_desc.layout)
    v_memory = gl.allocate_shared_memory(v_desc.dtype, [STAGES, 2 * TILE_K, VALUES], v_desc.layout)
    ready = gl.allocate_shared_memory(gl.int64, [STAGES + 1, 1], mbarrier.MBarrierLayout())
    for s in gl.static_range(STAGES + 1):
        mbarrier.init(ready.index(s), count=1)
    mbarrier.expect(ready.index(STAGES), q_desc.block_type.nbytes)
    _copy_in(
        q_desc,
        [b * q_batch + h * q_head + tile * TILE_Q, h * q_column],
        ready.index(STAGES),
        q_memory,
    )
    padding = gl.load(padding_ptr + b)
    # Two tiles per iteration: they are copied together, with registers for each product. Pairs cut by
    # padding or by the end come after the whole ones, masked.
    PAIR: gl.constexpr = 2 * TILE_K
    first = padding // PAIR
    full = gl.cdiv(padding, PAIR)
    turns = gl.maximum(n_key // PAIR - full, 0)
    k_row = b * k_batch + kv * k_head
    k_at = kv * k_column
    v_row = b * n_values
    begin = full * PAIR
    _fetch(
        k_desc, v_desc, k_row + begin, k_at, v_row + begin, k_memory, v_memory, ready, 0, turns > 0, STAGES
    )  # fmt: skip

    row = tile * TILE_Q + gl.arange(0, TILE_Q, gl.SliceLayout(1, product))
    of_row = (b * n_heads + h).to(gl.int64) * n_query
    inside = row < n_query
    counts = gl.load(group_ptr + b * n_query + row, mask=inside, other=-1) >= 0
    lse = gl.load(lse_ptr + of_row + row, mask=inside, other=0.0) * 1.4426950408889634 - SHIFT
    lse = gl.where(counts, lse, 1e6)
    entropy = gl.zeros([TILE_Q], gl.float32, gl.SliceLayout(1, product))
    weighted = gl.zeros([TILE_Q, VALUES], gl.float32, gathered)
    nothing = gl.zeros([TILE_Q, TILE_K], gl.float32, product)
    mbarrier.wait(ready.index(STAGES), 0)
    if turns > 0:
        _arrived(ready, 0, STAGES)
        keys = k_memory.index(0)
        even = warpgroup_mma_wait(0, deps=[_product(q_memory, keys.slice(0, TILE_K, 0), nothing)])
        for turn in range(turns):
            # The keys and values of the previous iteration have been read and may be overwritten.
            next_turn = turn + 1
            begin = (full + next_turn) * PAIR
            _fetch(
                k_desc, v_desc, k_row + begin, k_at, v_row + begin, k_memory, v_memory, ready, next_turn,
                next_turn < turns, STAGES,
            )  # fmt: skip
            keys = k_memory.index(turn % STAGES)
            values = v_memory.index(turn % STAGES)
            running = _product(q_memory, keys.slice(TILE_K, TILE_K, 0), nothing)
            weight, entropy = _weigh(even * log2_scale - lse[:, None], entropy)
            weight = gl.convert_layout(weight, operand)
            weighted = warpgroup_mma(weight, values.slice(0, TILE_K, 0), weighted, is_async=True)
            odd, weighted = warpgroup_mma_wait(0, deps=[running, weighted])
            late = values.slice(TILE_K, TILE_K, 0)
            if next_turn < turns:
                _arrived(ready, next_turn, STAGES)
                keys = k_memory.index(next_turn % STAGES)
                running = _product(q_memory, keys.slice(0, TILE_K, 0), nothing)
                weight, entropy = _weigh(odd * log2_scale - lse[:, None], entropy)
                weight = gl.convert_layout(weight, operand)
                weighted = warpgroup_mma(weight, late, weighted, is_async=True)
                even, weighted = warpgroup_mma_wait(0, deps=[running, weighted])
            else:
                weight, entropy = _weigh(odd * log2_scale - lse[:, None], entropy)
                weight = gl.convert_layout(weight, operand)
                weighted = warpgroup_mma(weight, late, weighted, is_async=True)
                weighted = warpgroup_mma_wait(0, deps=[weighted])
    key = gl.arange(0, TILE_K, gl.SliceLayout(0, product))
    for t in range(gl.cdiv(n_key, PAIR) - first - turns):
        count = turns + t
        begin = (first + t + gl.where(t < full - first, 0, turns)) * PAIR
        _fetch(
            k_desc, v_desc, k_row + begin, k_at, v_row + begin, k_memory, v_memory, ready, count, True,
            STAGES,
        )  # fmt: skip
        _arrived(ready, count, STAGES)
        for half in gl.static_range(2):
            keys = k_memory.index(count % STAGES).slice(half * TILE_K, TILE_K, 0)
            values = v_memory.index(count % STAGES).slice(half * TILE_K, TILE_K, 0)
            score = warpgroup_mma_wait(0, deps=[_product(q_memory, keys, nothing)])
            place = begin + half * TILE_K + key
            visible = (place >= padding) & (place < n_key)
            power = gl.where(visible[None, :], score * log2_scale - lse[:, None], -1e6)
            weight, entropy = _weigh(power, entropy)  # −1e6: weight 0, and 0 · log 0 stays 0
            weight = gl.convert_layout(weight, operand)
            weighted = warpgroup_mma(weight, values, weighted, is_async=True)
            weighted = warpgroup_mma_wait(0, deps=[weighted])
    # log2 of 2^SHIFT · A is too large by SHIFT, and A sums to one.
    nats = SHIFT * 0.6931471805599453 - entropy * (0.6931471805599453 / (1 << SHIFT))
    gl.store(entropy_ptr + of_row + row, gl.where(counts, nats, 0.0), mask=inside)
    to_row = tile * TILE_Q + gl.arange(0, TILE_Q, gl.SliceLayout(1, gathered))
    row_valid = to_row < n_query
    row_counts = gl.load(group_ptr + b * n_query + to_row, mask=row_valid, other=-1) >= 0
    value = gl.arange(0, VALUES, gl.SliceLayout(0, gathered))
    weighted = gl.where(row_counts[:, None], weighted * (1.0 / (1 << SHIFT)), 0.0)
    gl.store(
        out_ptr + (of_row + to_row)[:, None] * VALUES + value[None, :],
        weighted,
        mask=row_valid[:, None],
    )
    for s in gl.static_range(STAGES + 1):
        mbarrier.invalidate(ready.index(s))
