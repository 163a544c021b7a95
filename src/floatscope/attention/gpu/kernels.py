"""Triton kernels for column and row sums of attention, without writing the attention matrix to memory.

Both kernels receive the log-sum-exp of every row, so a weight costs one product and one exp2. A program for
columns loops over the queries for one tile of keys; a program for rows loops over the keys for one tile of
queries. The module `plan` determines beforehand which tiles a program skips and in which tiles single
positions must be checked. This module is imported only if Triton is installed; `fused` launches the kernels.
"""

import triton
import triton.language as tl


@triton.jit
def _tile(
    ptr, rows, n_rows, stride_row, stride_dim,
    DIM: tl.constexpr, WIDE: tl.constexpr, INSIDE: tl.constexpr,
):  # fmt: skip
    """Load rows of an (n, DIM) matrix, padded with zeros to WIDE columns, a power of two."""
    dim = tl.arange(0, WIDE)
    pointers = ptr + rows[:, None] * stride_row + dim[None, :] * stride_dim
    if INSIDE and WIDE == DIM:
        return tl.load(pointers)
    if WIDE == DIM:
        return tl.load(pointers, mask=rows[:, None] < n_rows, other=0.0)
    return tl.load(pointers, mask=(rows[:, None] < n_rows) & (dim[None, :] < DIM), other=0.0)


@triton.jit
def offsets(
    lse_ptr, group_ptr, out_ptr, n_heads, n_groups, n_query, n_wide, TILE: tl.constexpr
):  # fmt: skip
    """Write the log2-sum-exp of row i to out[b, g, h, i] if the row is in group g, else +∞.

    +∞ makes the row's weights 0, so the inner loop of `column_sums` needs no test of the group. Entries past
    the last row are also +∞.
    """
    row = tl.program_id(0) * TILE + tl.arange(0, TILE)
    b = tl.program_id(1) // n_heads
    h = tl.program_id(1) % n_heads
    inside = row < n_query
    head = (b * n_heads + h).to(tl.int64)
    lse = tl.load(lse_ptr + head * n_query + row, mask=inside, other=0.0) * 1.4426950408889634
    group = tl.load(group_ptr + b * n_query + row, mask=inside, other=-1)
    for g in range(n_groups):
        to = out_ptr + ((b * n_groups + g) * n_heads + h).to(tl.int64) * n_wide
        tl.store(to + row, tl.where(group == g, lse, float("inf")), mask=row < n_wide)


@triton.jit
def _column_step(
    acc, k, key, i, q_ptr, offset_ptr, last_ptr, mask_ptr,
    n_query, n_key, q_row, q_dim, m_row, log2_scale,
    DIM: tl.constexpr, WIDE: tl.constexpr, TILE_Q: tl.constexpr,
    DIRECTED: tl.constexpr, MASKED: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """Add the weights of one tile of queries to the column sums."""
    row = i * TILE_Q + tl.arange(0, TILE_Q)
    offset = tl.load(offset_ptr + row)
    # Rows past the last repeat the last row with weight 0, which is cheaper than a mask.
    q = _tile(q_ptr, tl.minimum(row, n_query - 1), n_query, q_row, q_dim, DIM, WIDE, True)
    score = tl.dot(q, tl.trans(k), input_precision="tf32x3" if EXACT else "tf32")
    weight = tl.exp2(score * log2_scale - offset[:, None])  # (queries, keys)
    if DIRECTED:
        last = tl.load(last_ptr + row, mask=row < n_query, other=-1)
        weight = tl.where(key[None, :] <= last[:, None], weight, 0.0)
    if MASKED:
        mask_at = mask_ptr + row[:, None].to(tl.int64) * m_row + key[None, :]
        inside = (row[:, None] < n_query) & (key[None, :] < n_key)
        weight = tl.where(tl.load(mask_at, mask=inside, other=0) != 0, weight, 0.0)
    return acc + weight


@triton.jit
def column_sums(
    q_ptr, k_ptr, offset_ptr, last_ptr, mask_ptr, padding_ptr, span_ptr, first_ptr, out_ptr,
    n_heads, heads_per_key, n_query, n_key, n_groups, n_tiles, n_wide,
    q_batch, q_head, q_row, q_dim, k_batch, k_head, k_row, k_dim, m_batch, m_head, m_row, log2_scale,
    DIM: tl.constexpr, WIDE: tl.constexpr, TILE_Q: tl.constexpr, TILE_K: tl.constexpr,
    DIRECTED: tl.constexpr, MASKED: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """Write out[b, g, h, j] = Σ A_ij over the queries i of group g; one program per head and tile of keys."""
    tile = tl.program_id(0)
    b = tl.program_id(1) // n_heads
    h = tl.program_id(1) % n_heads
    key = tile * TILE_K + tl.arange(0, TILE_K)
    k_ptr += b.to(tl.int64) * k_batch + (h // heads_per_key).to(tl.int64) * k_head
    q_ptr += b.to(tl.int64) * q_batch + h.to(tl.int64) * q_head
    last_ptr += b * n_query
    mask_ptr += b.to(tl.int64) * m_batch + h.to(tl.int64) * m_head
    k = _tile(k_ptr, key, n_key, k_row, k_dim, DIM, WIDE, False)
    # Keys in the left padding are hidden from all counted queries.
    real = (key >= tl.load(padding_ptr + b)) & (key < n_key)
    for g in range(n_groups):
        start = tl.load(span_ptr + (b * n_groups + g) * 2)
        stop = tl.load(span_ptr + (b * n_groups + g) * 2 + 1)
        own_ptr = offset_ptr + ((b * n_groups + g) * n_heads + h).to(tl.int64) * n_wide
        # Summed over the queries at the end: a tile of sums needs registers, but no exchange between threads.
        acc = tl.zeros([TILE_Q, TILE_K], dtype=tl.float32)
        if DIRECTED:
            # Queries before `start` see no key of this tile; from `full` on they see all of it.
            start = tl.maximum(start, tl.load(first_ptr + (b * n_tiles + tile) * 2))
            full = tl.load(first_ptr + (b * n_tiles + tile) * 2 + 1)
            full = tl.minimum(tl.maximum(start, full), stop)
            for i in range(start, full):
                acc = _column_step(
                    acc, k, key, i, q_ptr, own_ptr, last_ptr, mask_ptr,
                    n_query, n_key, q_row, q_dim, m_row, log2_scale,
                    DIM, WIDE, TILE_Q, True, MASKED, EXACT,
                )  # fmt: skip
            start = tl.maximum(start, full)
        for i in range(start, stop):
            acc = _column_step(
                acc, k, key, i, q_ptr, own_ptr, last_ptr, mask_ptr,
                n_query, n_key, q_row, q_dim, m_row, log2_scale,
                DIM, WIDE, TILE_Q, False, MASKED, EXACT,
            )  # fmt: skip
        out_at = ((b * n_groups + g).to(tl.int64) * n_heads + h) * n_key
        tl.store(out_ptr + out_at + key, tl.where(real, tl.sum(acc, axis=0), 0.0), mask=key < n_key)


@triton.jit
def _row_step(
    entropy, weighted, q, lse, last, row, i, padding, k_ptr, v_ptr, mask_ptr,
    n_query, n_key, k_row, k_dim, m_row, log2_scale,
    DIM: tl.constexpr, WIDE: tl.constexpr, TILE_K: tl.constexpr, VALUES: tl.constexpr,
    ENTROPY: tl.constexpr, PARTLY: tl.constexpr, MASKED: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """Add one tile of keys to each query's entropy and weighted values."""
    key = i * TILE_K + tl.arange(0, TILE_K)
    k = _tile(k_ptr, key, n_key, k_row, k_dim, DIM, WIDE, not PARTLY)
    score = tl.dot(q, tl.trans(k), input_precision="tf32x3" if EXACT else "tf32")
    power = score * log2_scale - lse[:, None]  # log2 of the weight, plus SHIFT
    if PARTLY or MASKED:
        visible = (key[None, :] >= padding) & (key[None, :] <= last[:, None])
        if MASKED:
            pointers = mask_ptr + row[:, None].to(tl.int64) * m_row + key[None, :]
            inside = (row[:, None] < n_query) & (key[None, :] < n_key)
            visible = (tl.load(pointers, mask=inside, other=0) != 0) & inside
        weight = tl.where(visible, tl.exp2(power), 0.0)
        power = tl.where(visible, power, 0.0)
    else:
        weight = tl.exp2(power)
    if ENTROPY:
        entropy += tl.sum(weight * power, axis=1)
    if VALUES > 0:
        column = tl.arange(0, VALUES)
        pointers = v_ptr + key[:, None] * VALUES + column[None, :]
        v = tl.load(pointers, mask=key[:, None] < n_key, other=0.0)
        precision: tl.constexpr = "tf32x3" if EXACT else "tf32"
        weighted = tl.dot(weight.to(v.dtype), v, weighted, input_precision=precision)
    return entropy, weighted


@triton.jit
def row_sums(
    q_ptr, k_ptr, v_ptr, lse_ptr, group_ptr, last_ptr, mask_ptr, padding_ptr, seen_ptr,
    entropy_ptr, out_ptr,
    n_heads, heads_per_key, n_query, n_key, n_values, n_tiles,
    q_batch, q_head, q_row, q_dim, k_batch, k_head, k_row, k_dim, m_batch, m_head, m_row, log2_scale,
    DIM: tl.constexpr, WIDE: tl.constexpr, TILE_Q: tl.constexpr, TILE_K: tl.constexpr,
    VALUES: tl.constexpr, ENTROPY: tl.constexpr, SHIFT: tl.constexpr,
    MASKED: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """Write entropy[b, h, i] = −Σ_j A_ij ln A_ij and out[b, h, i, v] = Σ_j A_ij V_jv.

    Rows that do not count get 0. Weights are computed as 2^SHIFT · A, so that small weights are not subnormal
    in 16 bits.
    """
    tile = tl.program_id(0)
    b = tl.program_id(1) // n_heads
    h = tl.program_id(1) % n_heads
    row = tile * TILE_Q + tl.arange(0, TILE_Q)
    k_ptr += b.to(tl.int64) * k_batch + (h // heads_per_key).to(tl.int64) * k_head
    q_ptr += b.to(tl.int64) * q_batch + h.to(tl.int64) * q_head
    v_ptr += b.to(tl.int64) * n_values * VALUES
    mask_ptr += b.to(tl.int64) * m_batch + h.to(tl.int64) * m_head
    first_row = (b * n_heads + h).to(tl.int64) * n_query
    inside = row < n_query
    counts = tl.load(group_ptr + b * n_query + row, mask=inside, other=-1) >= 0
    lse = tl.load(lse_ptr + first_row + row, mask=inside, other=0.0) * 1.4426950408889634 - SHIFT
    lse = tl.where(counts, lse, 1e6)  # weight 0, and 0 · log 0 stays 0
    last = tl.load(last_ptr + b * n_query + row, mask=inside, other=-1)
    padding = tl.load(padding_ptr + b)
    q = _tile(q_ptr, row, n_query, q_row, q_dim, DIM, WIDE, False)
    entropy = tl.zeros([TILE_Q], dtype=tl.float32)
    weighted = tl.zeros([TILE_Q, VALUES if VALUES > 0 else 1], dtype=tl.float32)
    # Tiles of keys in order: partly hidden by padding, seen by all of these rows, seen by some of them.
    bounds = seen_ptr + (b * n_tiles + tile) * 4
    full = tl.load(bounds + 1)
    partly = tl.load(bounds + 2)
    for i in range(tl.load(bounds), full):
        entropy, weighted = _row_step(
            entropy, weighted, q, lse, last, row, i, padding, k_ptr, v_ptr, mask_ptr,
            n_query, n_key, k_row, k_dim, m_row, log2_scale,
            DIM, WIDE, TILE_K, VALUES, ENTROPY, True, MASKED, EXACT,
        )  # fmt: skip
    for i in range(full, partly):
        entropy, weighted = _row_step(
            entropy, weighted, q, lse, last, row, i, padding, k_ptr, v_ptr, mask_ptr,
            n_query, n_key, k_row, k_dim, m_row, log2_scale,
            DIM, WIDE, TILE_K, VALUES, ENTROPY, False, MASKED, EXACT,
        )  # fmt: skip
    for i in range(partly, tl.load(bounds + 3)):
        entropy, weighted = _row_step(
            entropy, weighted, q, lse, last, row, i, padding, k_ptr, v_ptr, mask_ptr,
            n_query, n_key, k_row, k_dim, m_row, log2_scale,
            DIM, WIDE, TILE_K, VALUES, ENTROPY, True, MASKED, EXACT,
        )  # fmt: skip
    # log2 of 2^SHIFT · A is too large by SHIFT, and A sums to one.
    scaled = 0.6931471805599453 / (1 << SHIFT)
    if ENTROPY:
        nats = SHIFT * 0.6931471805599453 - entropy * scaled
        tl.store(entropy_ptr + first_row + row, tl.where(counts, nats, 0.0), mask=inside)
    if VALUES > 0:
        column = tl.arange(0, VALUES)
        to = out_ptr + (first_row + row)[:, None] * VALUES + column[None, :]
        weighted = tl.where(counts[:, None], weighted / (1 << SHIFT), 0.0)
        tl.store(to, weighted, mask=inside[:, None])


@triton.jit
def head_means(
    values_ptr, out_ptr, n_heads, n_query, first, n_out,
    VALUES: tl.constexpr, HEADS: tl.constexpr,
):  # fmt: skip
    """Write out[b, i, v] = mean over heads of values[b, h, i, first + v]; one program per row."""
    b = (tl.program_id(0) // n_query).to(tl.int64)
    i = tl.program_id(0) % n_query
    head = tl.arange(0, HEADS)
    column = tl.arange(0, VALUES)
    value_at = ((b * n_heads + head) * n_query + i)[:, None] * VALUES + column[None, :]
    values = tl.load(values_ptr + value_at, mask=(head < n_heads)[:, None], other=0.0)
    mean = tl.sum(values, axis=0) / n_heads
    to = (b * n_query + i) * n_out + column - first
    tl.store(out_ptr + to, mean, mask=(column >= first) & (column < first + n_out))
