"""Triton kernels for the norms and means of rows of q, k and v, and for products of rows with a mean.

Each tensor is read once, in its own precision, and only vectors are written. `vectors` launches the kernels.
"""

import triton
import triton.language as tl


@triton.jit
def query_totals(
    q_ptr, group_ptr, out_ptr, n_heads, n_query, n_tiles, q_batch, q_head, q_row, q_dim,
    DIM: tl.constexpr, WIDE: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Write Σ q, Σ q/‖q‖ and Σ ‖q‖ over the counted rows of a tile to out[b, h, tile], one after another."""
    tile = tl.program_id(0)
    b = tl.program_id(1) // n_heads
    h = tl.program_id(1) % n_heads
    row = tile * TILE + tl.arange(0, TILE)
    dim = tl.arange(0, WIDE)
    inside = (row[:, None] < n_query) & (dim[None, :] < DIM)
    q_ptr += b.to(tl.int64) * q_batch + h.to(tl.int64) * q_head
    q_at = q_ptr + row[:, None] * q_row + dim[None, :] * q_dim
    q = tl.load(q_at, mask=inside, other=0.0).to(tl.float32)
    counts = tl.load(group_ptr + b * n_query + row, mask=row < n_query, other=-1) >= 0
    q = tl.where(counts[:, None], q, 0.0)
    norm = tl.sqrt(tl.sum(q * q, axis=1))
    unit = q * (1.0 / tl.maximum(norm, 1e-30))[:, None]
    out_ptr += ((b * n_heads + h).to(tl.int64) * n_tiles + tile) * (2 * WIDE + 1)
    tl.store(out_ptr + dim, tl.sum(q, axis=0))
    tl.store(out_ptr + WIDE + dim, tl.sum(unit, axis=0))
    tl.store(out_ptr + 2 * WIDE, tl.sum(norm, axis=0))


@triton.jit
def key_columns(
    q_ptr, k_ptr, group_ptr, after_ptr, first_ptr, padding_ptr,
    score_ptr, cosine_ptr, query_ptr, norm_ptr,
    n_heads, heads_per_key, n_query, n_key, n_tiles,
    q_batch, q_head, q_row, q_dim, k_batch, k_head, k_row, k_dim,
    DIM: tl.constexpr, WIDE: tl.constexpr, TILE: tl.constexpr,
    DIRECTED: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """Write each key's norm, and the sums of score, cosine and query norm from the key's first viewer on.

    The first viewer is the first query that sees the key. `after` contains the sums over complete tiles, so
    only the tile of the first viewer is read. For bidirectional attention the first viewer is the first
    query, and no tile is read.
    """
    b = tl.program_id(1) // n_heads
    h = tl.program_id(1) % n_heads
    key = tl.program_id(0) * TILE + tl.arange(0, TILE)
    dim = tl.arange(0, WIDE)
    key_valid = key < n_key
    k_ptr += b.to(tl.int64) * k_batch + (h // heads_per_key).to(tl.int64) * k_head
    q_ptr += b.to(tl.int64) * q_batch + h.to(tl.int64) * q_head
    k_at = k_ptr + key[:, None] * k_row + dim[None, :] * k_dim
    k = tl.load(k_at, mask=key_valid[:, None] & (dim[None, :] < DIM), other=0.0)
    wide = k.to(tl.float32)
    norm = tl.sqrt(tl.sum(wide * wide, axis=1))
    after_ptr += (b * n_heads + h).to(tl.int64) * (n_tiles + 1) * (2 * WIDE + 1)
    if DIRECTED:
        first = tl.load(first_ptr + b * n_key + key, mask=key_valid, other=0)
        score = tl.zeros([TILE], dtype=tl.float32)
        cosine = tl.zeros([TILE], dtype=tl.float32)
        norms = tl.zeros([TILE], dtype=tl.float32)
        has_viewer = first < n_query  # columns of a fixed-size cache that no query sees yet
        lowest = tl.min(tl.where(key_valid, first, n_query), axis=0)
        highest = tl.max(tl.where(has_viewer, first, 0), axis=0)
        for t in range(lowest // TILE, highest // TILE + 1):
            row = t * TILE + tl.arange(0, TILE)
            inside = (row[:, None] < n_query) & (dim[None, :] < DIM)
            q = tl.load(q_ptr + row[:, None] * q_row + dim[None, :] * q_dim, mask=inside, other=0.0)
            counts = tl.load(group_ptr + b * n_query + row, mask=row < n_query, other=-1) >= 0
            q_norm = tl.sqrt(tl.sum(q.to(tl.float32) * q.to(tl.float32), axis=1))
            product = tl.dot(k, tl.trans(q), input_precision="tf32x3" if EXACT else "tf32")
            mine = (first // TILE == t) & has_viewer
            sees = (row[None, :] >= first[:, None]) & counts[None, :] & mine[:, None]
            score += tl.sum(tl.where(sees, product, 0.0), axis=1)
            unit = product / tl.maximum(q_norm, 1e-30)[None, :]
            cosine += tl.sum(tl.where(sees, unit, 0.0), axis=1)
            norms += tl.sum(tl.where(sees, q_norm[None, :], 0.0), axis=1)
            later = after_ptr + (t + 1) * (2 * WIDE + 1)
            total = tl.sum(wide * tl.load(later + dim)[None, :], axis=1)
            units = tl.sum(wide * tl.load(later + WIDE + dim)[None, :], axis=1)
            score += tl.where(mine, total, 0.0)
            cosine += tl.where(mine, units, 0.0)
            norms += tl.where(mine, tl.load(later + 2 * WIDE), 0.0)
    else:
        score = tl.sum(wide * tl.load(after_ptr + dim)[None, :], axis=1)
        cosine = tl.sum(wide * tl.load(after_ptr + WIDE + dim)[None, :], axis=1)
        norms = tl.load(after_ptr + 2 * WIDE) + tl.zeros([TILE], dtype=tl.float32)
    real = key >= tl.load(padding_ptr + b)
    to = (b * n_heads + h).to(tl.int64) * n_key + key
    tl.store(score_ptr + to, tl.where(real, score, 0.0), mask=key_valid)
    cosine = cosine / tl.maximum(norm, 1e-30)
    tl.store(cosine_ptr + to, tl.where(real, cosine, 0.0), mask=key_valid)
    tl.store(query_ptr + to, tl.where(real, norms, 0.0), mask=key_valid)
    tl.store(norm_ptr + to, norm, mask=key_valid)


@triton.jit
def value_norms(
    v_ptr, high_ptr, low_ptr, out_ptr, n_heads, heads_per_key, n_key,
    v_batch, v_head, v_row, v_dim, DIM: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Write out[b, h, j] = ‖R_h v_j‖, where R = high + low, both in the 16-bit type of the values."""
    b = tl.program_id(1) // n_heads
    h = tl.program_id(1) % n_heads
    key = tl.program_id(0) * TILE + tl.arange(0, TILE)
    dim = tl.arange(0, DIM)
    v_ptr += b.to(tl.int64) * v_batch + (h // heads_per_key).to(tl.int64) * v_head
    v_at = v_ptr + key[:, None] * v_row + dim[None, :] * v_dim
    v = tl.load(v_at, mask=key[:, None] < n_key, other=0.0)
    # R_h is (r, d), read transposed: (d, r)
    r_at = h * DIM * DIM + dim[None, :] * DIM + dim[:, None]
    written = tl.dot(v, tl.load(high_ptr + r_at))
    written = tl.dot(v, tl.load(low_ptr + r_at), written)
    to = (b * n_heads + h).to(tl.int64) * n_key + key
    tl.store(out_ptr + to, tl.sqrt(tl.sum(written * written, axis=1)), mask=key < n_key)


@triton.jit
def region_totals(
    from_ptr, values_ptr, out_ptr, n_heads, n_query, n_from, n_values, n_parts,
    v_batch, v_head, v_row, v_dim,
    FROM: tl.constexpr, VALUES: tl.constexpr, TILE: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """Write out[b, h, part, f, v] = Σ from[b, i, f] · values[b, h, i, v] over the rows i of a part.

    A part has TILES tiles of rows.
    """
    part = tl.program_id(0)
    b = (tl.program_id(1) // n_heads).to(tl.int64)
    h = (tl.program_id(1) % n_heads).to(tl.int64)
    region = tl.arange(0, FROM)
    value = tl.arange(0, VALUES)
    from_ptr += b * n_query * n_from
    values_ptr += b * v_batch + h * v_head
    total = tl.zeros([FROM, VALUES], dtype=tl.float32)
    for t in range(TILES):
        row = (part * TILES + t) * TILE + tl.arange(0, TILE)
        inside = row < n_query
        value_valid = inside[:, None] & (value[None, :] < n_values)
        values = tl.load(
            values_ptr + row[:, None] * v_row + value[None, :] * v_dim, mask=value_valid, other=0.0
        )
        mine = inside[None, :] & (region[:, None] < n_from)
        weight = tl.load(from_ptr + row[None, :] * n_from + region[:, None], mask=mine, other=0.0)
        total = tl.dot(weight, values, total, input_precision="ieee")
    to = ((b * n_heads + h) * n_parts + part) * n_from * n_values
    to += region[:, None] * n_values + value[None, :]
    tl.store(out_ptr + to, total, mask=(region[:, None] < n_from) & (value[None, :] < n_values))


@triton.jit
def row_norms(x_ptr, out_ptr, n_dim, TILE: tl.constexpr):
    """Write out[i] = ‖x_i‖; one program per row."""
    row = tl.program_id(0).to(tl.int64)
    total = tl.zeros([TILE], dtype=tl.float32)
    for start in range(0, n_dim, TILE):
        dim = start + tl.arange(0, TILE)
        x = tl.load(x_ptr + row * n_dim + dim, mask=dim < n_dim, other=0.0).to(tl.float32)
        total += x * x
    tl.store(out_ptr + row, tl.sqrt(tl.sum(total, axis=0)))
