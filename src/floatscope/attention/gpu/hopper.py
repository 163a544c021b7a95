"""Column sums for Hopper GPUs: the product of the next tile runs during the exponentials of this tile.

The plain kernel waits for each product before it computes the exponentials, so the matrix units are idle
meanwhile. Triton cannot express the overlap; Gluon, its lower-level language, can. The sums are those of
`kernels`. Only bidirectional attention without an edited mask is supported. This module is imported only on a
Hopper GPU; `overlapped` launches the kernel.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

# Renamed in Triton 3.9.
_copy_in = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared


@gluon.jit
def _fetch(q_desc, row, column, memory, ready, count, needed, STAGES: gl.constexpr):
    """Start the copy of two tiles of queries, the `count`-th pair of this program."""
    stage = count % STAGES
    mbarrier.expect(ready.index(stage), q_desc.block_type.nbytes, pred=needed)
    _copy_in(q_desc, [row, column], ready.index(stage), memory.index(stage), pred=needed)


@gluon.jit
def _arrived(ready, count, STAGES: gl.constexpr):
    mbarrier.wait(ready.index(count % STAGES), (count // STAGES) & 1)


@gluon.jit
def _product(a, b, nothing):
    """Start the product a · bᵀ of two tiles in shared memory."""
    return warpgroup_mma(a, b.permute((1, 0)), nothing, use_acc=False, is_async=True)


@gluon.jit
def column_sums(
    q_desc, k_desc, offset_ptr, padding_ptr, span_ptr, out_ptr,
    n_heads, heads_per_key, n_key, n_groups, n_wide,
    q_batch, q_head, q_column, k_batch, k_head, k_column, log2_scale,
    DIM: gl.constexpr, TILE_Q: gl.constexpr, TILE_K: gl.constexpr, STAGES: gl.constexpr,
    num_warps: gl.constexpr,
):  # fmt: skip
    """Write out[b, g, h, j] = Σ A_ij over the queries i of group g; one program per head and tile of keys.

    The descriptors treat q and k as matrices. Batch b and head h of q begin at row b · `q_batch` +
    h · `q_head` and column h · `q_column`; those of k likewise.
    """
    product: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [num_warps, 1], [16, TILE_K, 16])
    tile = gl.program_id(0)
    b = gl.program_id(1) // n_heads
    h = gl.program_id(1) % n_heads
    kv = h // heads_per_key
    k_memory = gl.allocate_shared_memory(k_desc.dtype, [TILE_K, DIM], k_desc.layout)
    q_memory = gl.allocate_shared_memory(q_desc.dtype, [STAGES, 2 * TILE_Q, DIM], q_desc.layout)
    ready = gl.allocate_shared_memory(gl.int64, [STAGES + 1, 1], mbarrier.MBarrierLayout())
    for s in gl.static_range(STAGES + 1):
        mbarrier.init(ready.index(s), count=1)
    mbarrier.expect(ready.index(STAGES), k_desc.block_type.nbytes)
    _copy_in(
        k_desc,
        [b * k_batch + kv * k_head + tile * TILE_K, kv * k_column],
        ready.index(STAGES),
        k_memory,
    )
    mbarrier.wait(ready.index(STAGES), 0)

    key = tile * TILE_K + gl.arange(0, TILE_K, gl.SliceLayout(0, product))
    # Keys in the left padding are hidden from all counted queries.
    real = (key >= gl.load(padding_ptr + b)) & (key < n_key)
    nothing = gl.zeros([TILE_Q, TILE_K], gl.float32, product)
    within = gl.arange(0, TILE_Q, gl.SliceLayout(1, product))
    column = h * q_column
    used = tile * 0  # pairs of tiles so far, of all groups
    for g in range(n_groups):
        start = gl.load(span_ptr + (b * n_groups + g) * 2)
        stop = gl.load(span_ptr + (b * n_groups + g) * 2 + 1)
        group_offsets = offset_ptr + ((b * n_groups + g) * n_heads + h).to(gl.int64) * n_wide
        group_offsets += start * TILE_Q
        acc = gl.zeros([TILE_Q, TILE_K], gl.float32, product)
        if start < stop:
            # Two tiles per iteration: they are copied together, and each product has its own registers. An
            # odd last tile gets a partner without members.
            turns = (stop - start + 1) // 2
            row = b * q_batch + h * q_head + start * TILE_Q
            for s in gl.static_range(STAGES):
                _fetch(
                    q_desc, row + s * 2 * TILE_Q, column, q_memory, ready, used + s, s < turns, STAGES
                )  # fmt: skip
            offset = gl.load(group_offsets + within)
            _arrived(ready, used, STAGES)
            pair = q_memory.index(used % STAGES)
            even = warpgroup_mma_wait(
                0, deps=[_product(pair.slice(0, TILE_Q, 0), k_memory, nothing)]
            )
            for turn in range(turns):
                count = used + turn
                pair = q_memory.index(count % STAGES)
                running = _product(pair.slice(TILE_Q, TILE_Q, 0), k_memory, nothing)
                after = gl.load(group_offsets + (turn * 2 + 1) * TILE_Q + within)
                acc += gl.exp2(even * log2_scale - offset[:, None])
                odd = warpgroup_mma_wait(0, deps=[running])
                if turn + 1 < turns:
                    # The queries of this iteration have been read and may be overwritten.
                    next_turn = turn + STAGES
                    _fetch(
                        q_desc, row + next_turn * 2 * TILE_Q, column, q_memory, ready, used + next_turn,
                        next_turn < turns, STAGES,
                    )  # fmt: skip
                    _arrived(ready, count + 1, STAGES)
                    pair = q_memory.index((count + 1) % STAGES)
                    running = _product(pair.slice(0, TILE_Q, 0), k_memory, nothing)
                    offset = gl.load(group_offsets + (turn * 2 + 2) * TILE_Q + within)
                    acc += gl.exp2(odd * log2_scale - after[:, None])
                    even = warpgroup_mma_wait(0, deps=[running])
                else:
                    acc += gl.exp2(odd * log2_scale - after[:, None])
            used += turns
        out_at = ((b * n_groups + g).to(gl.int64) * n_heads + h) * n_key
        gl.store(out_ptr + out_at + key, gl.where(real, gl.sum(acc, axis=0), 0.0), mask=key < n_key)
    for s in gl.static_range(STAGES + 1):
        mbarrier.invalidate(ready.index(s))
