"""Triton kernels for few rows, as in a step with a KV cache: write logarithms once, then sum them.

`few_scores` (`one_scores` for a single row) writes the statistics of q and k alone, and log2 of every weight
without the rows' log-sum-exp. `few_rows` computes the log-sum-exp of a row, subtracts it and computes the
sums of the row. `few_columns` computes the sums of a key. The module `few` launches these kernels. They are
not used for many rows, because the logarithms would form an S×S matrix, which Floatscope never writes.
"""

import triton
import triton.language as tl


@triton.jit
def few_scores(
    q_ptr, k_ptr, group_ptr, last_ptr, mask_ptr, padding_ptr, power_ptr, peak_ptr,
    score_ptr, cosine_ptr, query_ptr, norm_ptr,
    n_heads, heads_per_key, n_query, n_key, n_blocks,
    q_batch, q_head, q_row, q_dim, k_batch, k_head, k_row, k_dim, m_batch, m_head, m_row, log2_scale,
    DIM: tl.constexpr, WIDE: tl.constexpr, TILE_Q: tl.constexpr, BLOCK: tl.constexpr,
    MASKED: tl.constexpr, EXACT: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Write log2 e · scaled score of row i and key j to power[·, i, j], and the maximum of each key block.

    `power` is −∞ if the row does not see the key. With COLUMNS, also write for each key Σ q·k, Σ q·k/‖q‖‖k‖
    and Σ ‖q‖ over the counted rows that see the key, and the key's norm. One program per block of keys and
    head.
    """
    block = tl.program_id(0)
    head = tl.program_id(1).to(tl.int64)  # of (b, h)
    b = head // n_heads
    h = head % n_heads
    key = block * BLOCK + tl.arange(0, BLOCK)
    dim = tl.arange(0, WIDE)
    key_valid = key < n_key
    q_ptr += b * q_batch + h * q_head
    k_ptr += b * k_batch + (h // heads_per_key) * k_head
    mask_ptr += b * m_batch + h * m_head
    k_at = k_ptr + key[:, None] * k_row + dim[None, :] * k_dim
    k = tl.load(k_at, mask=key_valid[:, None] & (dim[None, :] < DIM), other=0.0)
    padding = tl.load(padding_ptr + b)
    score = tl.zeros([BLOCK], dtype=tl.float32)
    cosine = tl.zeros([BLOCK], dtype=tl.float32)
    norms = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, n_query, TILE_Q):
        row = start + tl.arange(0, TILE_Q)
        inside = row < n_query
        q_at = q_ptr + row[:, None] * q_row + dim[None, :] * q_dim
        q = tl.load(q_at, mask=inside[:, None] & (dim[None, :] < DIM), other=0.0)
        product = tl.dot(q, tl.trans(k), input_precision="tf32x3" if EXACT else "tf32")
        last = tl.load(last_ptr + b * n_query + row, mask=inside, other=-1)
        visible = (key[None, :] >= padding) & (key[None, :] <= last[:, None])
        if MASKED:
            pair_valid = inside[:, None] & key_valid[None, :]
            mask_at = mask_ptr + row[:, None].to(tl.int64) * m_row + key[None, :]
            visible = pair_valid & (tl.load(mask_at, mask=pair_valid, other=0) != 0)
        power = tl.where(visible, product * log2_scale, float("-inf"))
        place = head * n_query + row
        power_at = power_ptr + place[:, None] * (n_blocks * BLOCK) + key[None, :]
        tl.store(power_at, power, mask=inside[:, None])
        tl.store(peak_ptr + place * n_blocks + block, tl.max(power, axis=1), mask=inside)
        if COLUMNS:
            wide = q.to(tl.float32)
            norm = tl.sqrt(tl.sum(wide * wide, axis=1))
            counts = tl.load(group_ptr + b * n_query + row, mask=inside, other=-1) >= 0
            sees = visible & counts[:, None]
            score += tl.sum(tl.where(sees, product, 0.0), axis=0)
            unit = product / tl.maximum(norm, 1e-30)[:, None]
            cosine += tl.sum(tl.where(sees, unit, 0.0), axis=0)
            norms += tl.sum(tl.where(sees, norm[:, None], 0.0), axis=0)
    if COLUMNS:
        wide_key = k.to(tl.float32)
        key_norm = tl.sqrt(tl.sum(wide_key * wide_key, axis=1))
        to = head * n_key + key
        tl.store(score_ptr + to, score, mask=key_valid)
        tl.store(cosine_ptr + to, cosine / tl.maximum(key_norm, 1e-30), mask=key_valid)
        tl.store(query_ptr + to, norms, mask=key_valid)
        tl.store(norm_ptr + to, key_norm, mask=key_valid)


@triton.jit
def one_scores(
    q_ptr, k_ptr, group_ptr, last_ptr, mask_ptr, padding_ptr, power_ptr, peak_ptr,
    score_ptr, cosine_ptr, query_ptr, norm_ptr,
    n_heads, n_key, n_blocks,
    q_batch, q_head, q_dim, k_batch, k_head, k_row, k_dim, m_batch, m_head, log2_scale,
    HEADS: tl.constexpr, TILE_H: tl.constexpr, DIM: tl.constexpr, WIDE: tl.constexpr,
    BLOCK: tl.constexpr, MASKED: tl.constexpr, EXACT: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Compute `few_scores` for a single row; the heads that share keys take the place of several rows.

    Each key is read once. There is one program per block of keys and HEADS heads.
    """
    block = tl.program_id(0)
    shared = tl.program_id(1).to(tl.int64)  # of (b, h / HEADS)
    b = shared * HEADS // n_heads
    lane = tl.arange(0, TILE_H)
    inside = lane < HEADS
    place = shared * HEADS + lane  # of (b, h)
    h = place % n_heads
    key = block * BLOCK + tl.arange(0, BLOCK)
    dim = tl.arange(0, WIDE)
    key_valid = key < n_key
    k_at = k_ptr + b * k_batch + (shared % (n_heads // HEADS)) * k_head
    k_at += key[:, None] * k_row + dim[None, :] * k_dim
    k = tl.load(k_at, mask=key_valid[:, None] & (dim[None, :] < DIM), other=0.0)
    q_at = q_ptr + b * q_batch + h[:, None] * q_head + dim[None, :] * q_dim
    q = tl.load(q_at, mask=inside[:, None] & (dim[None, :] < DIM), other=0.0)
    product = tl.dot(q, tl.trans(k), input_precision="tf32x3" if EXACT else "tf32")
    pair_valid = inside[:, None] & key_valid[None, :]
    padding = tl.load(padding_ptr + b)
    last = tl.load(last_ptr + b)
    visible = pair_valid & ((key >= padding) & (key <= last))[None, :]
    if MASKED:
        mask_at = mask_ptr + b * m_batch + h[:, None] * m_head + key[None, :]
        visible = pair_valid & (tl.load(mask_at, mask=pair_valid, other=0) != 0)
    power = tl.where(visible, product * log2_scale, float("-inf"))
    power_at = power_ptr + place[:, None] * (n_blocks * BLOCK) + key[None, :]
    tl.store(power_at, power, mask=inside[:, None])
    tl.store(peak_ptr + place * n_blocks + block, tl.max(power, axis=1), mask=inside)
    if COLUMNS:
        counts = tl.load(group_ptr + b) >= 0
        sees = visible & counts
        wide = q.to(tl.float32)
        norm = tl.sqrt(tl.sum(wide * wide, axis=1))
        wide_key = k.to(tl.float32)
        key_norm = tl.sqrt(tl.sum(wide_key * wide_key, axis=1))
        cosine = product / tl.maximum(norm, 1e-30)[:, None] / tl.maximum(key_norm, 1e-30)[None, :]
        to = place[:, None] * n_key + key[None, :]
        tl.store(score_ptr + to, tl.where(sees, product, 0.0), mask=pair_valid)
        tl.store(cosine_ptr + to, tl.where(sees, cosine, 0.0), mask=pair_valid)
        tl.store(query_ptr + to, tl.where(sees, norm[:, None], 0.0), mask=pair_valid)
        tl.store(
            norm_ptr + to,
            tl.zeros([TILE_H, BLOCK], tl.float32) + key_norm[None, :],
            mask=pair_valid,
        )


@triton.jit
def few_rows(
    power_ptr, peak_ptr, v_ptr, group_ptr, lse_ptr, entropy_ptr, out_ptr,
    n_heads, n_query, n_key, n_blocks, n_values,
    VALUES: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Write lse, entropy and out[b, h, i, v] = Σ_j A_ij V_jv; turn `power` into log2 of the weights.

    Rows that do not count get 0; rows without visible keys have weights 0.
    """
    row = tl.program_id(0).to(tl.int64)  # of (b, h, q)
    b = row // n_query // n_heads
    counts = tl.load(group_ptr + b * n_query + row % n_query) >= 0
    n_wide = n_blocks * BLOCK
    power_ptr += row * n_wide
    peak_ptr += row * n_blocks
    v_ptr += b * n_values * VALUES
    lane = tl.arange(0, TILE)
    column = tl.arange(0, VALUES)
    high = tl.full([TILE], float("-inf"), dtype=tl.float32)
    for start in range(0, n_blocks, TILE):
        block_valid = start + lane < n_blocks
        high = tl.maximum(
            high, tl.load(peak_ptr + start + lane, mask=block_valid, other=float("-inf"))
        )
    top = tl.max(high, axis=0)
    top = tl.where(top > float("-inf"), top, 0.0)
    total = tl.zeros([TILE], dtype=tl.float32)
    for start in range(0, n_wide, TILE):
        key = start + lane
        total += tl.exp2(tl.load(power_ptr + key, mask=key < n_wide, other=float("-inf")) - top)
    weight_of_all = tl.sum(total, axis=0)
    lse = top + tl.log2(tl.maximum(weight_of_all, 1e-30))
    lse = tl.where(weight_of_all > 0, lse, 1e30)
    entropy = tl.zeros([TILE], dtype=tl.float32)
    out = tl.zeros([VALUES], dtype=tl.float32)
    for start in range(0, n_wide, TILE):
        key = start + lane
        power = tl.load(power_ptr + key, mask=key < n_wide, other=float("-inf")) - lse
        tl.store(power_ptr + key, power, mask=key < n_wide)
        weight = tl.exp2(power)
        entropy += weight * tl.where(weight > 0, power, 0.0)
        places = v_ptr + key[:, None] * VALUES + column[None, :]
        value = tl.load(places, mask=key[:, None] < n_key, other=0.0)
        out += tl.sum(weight[:, None] * value, axis=0)
    for start in range(0, n_blocks, TILE):
        block_valid = start + lane < n_blocks
        peak = tl.load(peak_ptr + start + lane, mask=block_valid, other=float("-inf"))
        tl.store(peak_ptr + start + lane, peak - lse, mask=block_valid)
    tl.store(lse_ptr + row, lse * 0.6931471805599453)
    nats = -0.6931471805599453 * tl.sum(entropy, axis=0)
    tl.store(entropy_ptr + row, tl.where(counts, nats, 0.0))
    tl.store(out_ptr + row * VALUES + column, tl.where(counts, out, 0.0))


@triton.jit
def few_columns(
    power_ptr, group_ptr, padding_ptr, out_ptr, n_heads, n_query, n_key, n_groups, n_wide,
    TILE: tl.constexpr,
):  # fmt: skip
    """Write out[b, g, h, j] = Σ A_ij over the rows i of group g; 0 at padding."""
    head = tl.program_id(1).to(tl.int64)  # of (b, h)
    b = head // n_heads
    h = head % n_heads
    key = tl.program_id(0) * TILE + tl.arange(0, TILE)
    key_valid = key < n_key
    real = key_valid & (key >= tl.load(padding_ptr + b))
    power_ptr += head * n_query * n_wide
    group_ptr += b * n_query
    for g in range(n_groups):
        total = tl.zeros([TILE], dtype=tl.float32)
        for i in range(n_query):
            mine = tl.load(group_ptr + i) == g
            power_at = power_ptr + i * n_wide + key
            power = tl.load(power_at, mask=key_valid & mine, other=float("-inf"))
            total += tl.exp2(power)
        to = out_ptr + ((b * n_groups + g) * n_heads + h) * n_key
        tl.store(to + key, tl.where(real, total, 0.0), mask=key_valid)
