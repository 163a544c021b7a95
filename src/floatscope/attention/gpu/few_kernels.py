"""Triton kernels for few rows, as a step with a KV cache has them: each sum from logarithms written once.

`strongest_kernels.row_powers` has written log2 of every weight, but for the rows' log-sum-exp: `few_rows`
finds it, subtracts it and takes what belongs to a row; `few_columns` takes what belongs to a key. `few`
launches these. For many rows the logarithms would be the matrix that is never written.
"""

import triton
import triton.language as tl


@triton.jit
def few_rows(
    power_ptr, peak_ptr, v_ptr, group_ptr, lse_ptr, entropy_ptr, out_ptr,
    n_heads, n_query, n_key, n_blocks, n_values,
    VALUES: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """lse, entropy and out[b, h, i, v] = Σ_j A_ij V_jv of a row; its powers become log2 of its weights.

    A row that counts nowhere gets 0, and one that sees nothing weighs nothing.
    """
    at = tl.program_id(0).to(tl.int64)  # of (b, h, q)
    b = at // n_query // n_heads
    counts = tl.load(group_ptr + b * n_query + at % n_query) >= 0
    n_wide = n_blocks * BLOCK
    power_ptr += at * n_wide
    peak_ptr += at * n_blocks
    v_ptr += b * n_values * VALUES
    lane = tl.arange(0, TILE)
    column = tl.arange(0, VALUES)
    high = tl.full([TILE], float("-inf"), dtype=tl.float32)
    for start in range(0, n_blocks, TILE):
        some = start + lane < n_blocks
        high = tl.maximum(high, tl.load(peak_ptr + start + lane, mask=some, other=float("-inf")))
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
        some = start + lane < n_blocks
        peak = tl.load(peak_ptr + start + lane, mask=some, other=float("-inf"))
        tl.store(peak_ptr + start + lane, peak - lse, mask=some)
    tl.store(lse_ptr + at, lse * 0.6931471805599453)
    nats = -0.6931471805599453 * tl.sum(entropy, axis=0)
    tl.store(entropy_ptr + at, tl.where(counts, nats, 0.0))
    tl.store(out_ptr + at * VALUES + column, tl.where(counts, out, 0.0))


@triton.jit
def few_columns(
    power_ptr, group_ptr, padding_ptr, out_ptr, n_heads, n_query, n_key, n_groups, n_wide,
    TILE: tl.constexpr,
):  # fmt: skip
    """out[b, g, h, j] = Σ A_ij over the rows i of group g; 0 at padding."""
    head = tl.program_id(1).to(tl.int64)  # of (b, h)
    b = head // n_heads
    h = head % n_heads
    key = tl.program_id(0) * TILE + tl.arange(0, TILE)
    there = key < n_key
    real = there & (key >= tl.load(padding_ptr + b))
    power_ptr += head * n_query * n_wide
    group_ptr += b * n_query
    for g in range(n_groups):
        total = tl.zeros([TILE], dtype=tl.float32)
        for i in range(n_query):
            mine = tl.load(group_ptr + i) == g
            at = power_ptr + i * n_wide + key
            power = tl.load(at, mask=there & mine, other=float("-inf"))
            total += tl.exp2(power)
        to = out_ptr + ((b * n_groups + g) * n_heads + h) * n_key
        tl.store(to + key, tl.where(real, total, 0.0), mask=there)
