"""Triton kernels for what needs q, k and v row by row: norms, means, products with a mean.

Each tensor is read once, in its own precision, and only vectors are written. `vectors` launches these.
"""

import triton
import triton.language as tl


@triton.jit
def query_totals(
    q_ptr, group_ptr, out_ptr, n_heads, n_query, n_tiles, q_batch, q_head, q_row, q_dim,
    DIM: tl.constexpr, WIDE: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """out[b, h, tile] = Σ q, Σ q/‖q‖ and Σ ‖q‖ over the tile's rows that count, one after another."""
    tile = tl.program_id(0)
    b = tl.program_id(1) // n_heads
    h = tl.program_id(1) % n_heads
    row = tile * TILE + tl.arange(0, TILE)
    dim = tl.arange(0, WIDE)
    inside = (row[:, None] < n_query) & (dim[None, :] < DIM)
    q_ptr += b.to(tl.int64) * q_batch + h.to(tl.int64) * q_head
    at = q_ptr + row[:, None] * q_row + dim[None, :] * q_dim
    q = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    counts = tl.load(group_ptr + b * n_query + row, mask=row < n_query, other=-1) >= 0
    q = tl.where(counts[:, None], q, 0.0)
    norm = tl.sqrt(tl.sum(q * q, axis=1))
    unit = q / tl.maximum(norm, 1e-30)[:, None]
    out_ptr += ((b * n_heads + h).to(tl.int64) * n_tiles + tile) * (2 * WIDE + 1)
    tl.store(out_ptr + dim, tl.sum(q, axis=0))
    tl.store(out_ptr + WIDE + dim, tl.sum(unit, axis=0))
    tl.store(out_ptr + 2 * WIDE, tl.sum(norm, axis=0))


@triton.jit
def key_columns(
    k_ptr, total_ptr, padding_ptr, score_ptr, cosine_ptr, query_ptr, norm_ptr,
    n_heads, heads_per_key, n_key, k_batch, k_head, k_row, k_dim,
    DIM: tl.constexpr, WIDE: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Each key's norm and its products with the totals of its head's queries."""
    b = tl.program_id(1) // n_heads
    h = tl.program_id(1) % n_heads
    key = tl.program_id(0) * TILE + tl.arange(0, TILE)
    dim = tl.arange(0, WIDE)
    inside = (key[:, None] < n_key) & (dim[None, :] < DIM)
    k_ptr += b.to(tl.int64) * k_batch + (h // heads_per_key).to(tl.int64) * k_head
    at = k_ptr + key[:, None] * k_row + dim[None, :] * k_dim
    k = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    total_ptr += (b * n_heads + h).to(tl.int64) * (2 * WIDE + 1)
    total = tl.load(total_ptr + dim)
    units = tl.load(total_ptr + WIDE + dim)
    real = key >= tl.load(padding_ptr + b)
    norm = tl.sqrt(tl.sum(k * k, axis=1))
    score = tl.sum(k * total[None, :], axis=1)
    cosine = tl.sum(k * units[None, :], axis=1) / tl.maximum(norm, 1e-30)
    to = (b * n_heads + h).to(tl.int64) * n_key + key
    there = key < n_key
    tl.store(score_ptr + to, tl.where(real, score, 0.0), mask=there)
    tl.store(cosine_ptr + to, tl.where(real, cosine, 0.0), mask=there)
    norms = tl.load(total_ptr + 2 * WIDE)
    tl.store(query_ptr + to, tl.where(real, norms, 0.0), mask=there)
    tl.store(norm_ptr + to, norm, mask=there)


@triton.jit
def value_norms(
    v_ptr, high_ptr, low_ptr, out_ptr, n_heads, heads_per_key, n_key,
    v_batch, v_head, v_row, v_dim, DIM: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """out[b, h, j] = ‖R_h v_j‖, where R = high + low in the values' own 16-bit type."""
    b = tl.program_id(1) // n_heads
    h = tl.program_id(1) % n_heads
    key = tl.program_id(0) * TILE + tl.arange(0, TILE)
    dim = tl.arange(0, DIM)
    v_ptr += b.to(tl.int64) * v_batch + (h // heads_per_key).to(tl.int64) * v_head
    at = v_ptr + key[:, None] * v_row + dim[None, :] * v_dim
    v = tl.load(at, mask=key[:, None] < n_key, other=0.0)
    # R_h is (r, d), read transposed: (d, r)
    of = h * DIM * DIM + dim[None, :] * DIM + dim[:, None]
    written = tl.dot(v, tl.load(high_ptr + of))
    written = tl.dot(v, tl.load(low_ptr + of), written)
    to = (b * n_heads + h).to(tl.int64) * n_key + key
    tl.store(out_ptr + to, tl.sqrt(tl.sum(written * written, axis=1)), mask=key < n_key)


@triton.jit
def row_scores(
    q_ptr, k_ptr, which_ptr, mask_ptr, out_ptr, heads_per_key, n_rows, n_key,
    q_head, q_row, q_dim, k_head, k_row, k_dim, m_head, m_row, scale,
    DIM: tl.constexpr, WIDE: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """out[h, n, j]: the scaled score of chosen row n for key j, −∞ where it may not look."""
    n = tl.program_id(1)
    h = tl.program_id(2)
    key = tl.program_id(0) * TILE + tl.arange(0, TILE)
    dim = tl.arange(0, WIDE)
    row = tl.load(which_ptr + n)
    q = tl.load(q_ptr + h * q_head + row * q_row + dim * q_dim, mask=dim < DIM, other=0.0)
    inside = (key[:, None] < n_key) & (dim[None, :] < DIM)
    at = k_ptr + (h // heads_per_key) * k_head + key[:, None] * k_row + dim[None, :] * k_dim
    k = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    score = tl.sum(k * q.to(tl.float32)[None, :], axis=1) * scale
    seen = tl.load(mask_ptr + h * m_head + row * m_row + key, mask=key < n_key, other=0) != 0
    to = out_ptr + (h * n_rows + n).to(tl.int64) * n_key + key
    tl.store(to, tl.where(seen, score, float("-inf")), mask=key < n_key)
