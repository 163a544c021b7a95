"""Triton kernels that find the strongest keys of some rows without sorting the rows.

`row_powers` writes the logarithms of the rows' weights and the maximum of every block of keys. For each
requested key, `strongest` then selects the block with the largest maximum, and in this block the key with the
largest weight. It therefore rereads single blocks instead of complete rows. The module `strongest` launches
these kernels.
"""

import triton
import triton.language as tl


@triton.jit
def row_powers(
    q_ptr, k_ptr, lse_ptr, last_ptr, mask_ptr, padding_ptr, power_ptr, peak_ptr,
    begin, n_heads, heads_per_key, n_query, n_key, first_row, n_rows, n_blocks,
    q_batch, q_head, q_row, q_dim, k_batch, k_head, k_row, k_dim, m_batch, m_head, m_row, log2_scale,
    DIM: tl.constexpr, WIDE: tl.constexpr, TILE_Q: tl.constexpr, BLOCK: tl.constexpr,
    MASKED: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """Write log2 A of row first_row + n at key j to power[·, n, j]; −∞ if the row does not see the key.

    Also write the maximum of each block of keys to `peak`. One program per block of keys, tile of rows and
    head.
    """
    block = tl.program_id(0)
    head = tl.program_id(2).to(tl.int64)
    b = (begin + head) // n_heads
    h = (begin + head) % n_heads
    place = tl.program_id(1) * TILE_Q + tl.arange(0, TILE_Q)
    row = first_row + place
    row_valid = place < n_rows
    key = block * BLOCK + tl.arange(0, BLOCK)
    dim = tl.arange(0, WIDE)
    q_ptr += b * q_batch + h * q_head
    k_ptr += b * k_batch + (h // heads_per_key) * k_head
    pointers = q_ptr + row[:, None] * q_row + dim[None, :] * q_dim
    q = tl.load(pointers, mask=row_valid[:, None] & (dim[None, :] < DIM), other=0.0)
    pointers = k_ptr + key[:, None] * k_row + dim[None, :] * k_dim
    k = tl.load(pointers, mask=(key[:, None] < n_key) & (dim[None, :] < DIM), other=0.0)
    score = tl.dot(q, tl.trans(k), input_precision="tf32x3" if EXACT else "tf32")
    lse = tl.load(lse_ptr + (b * n_heads + h) * n_query + row, mask=row_valid, other=0.0)
    power = score * log2_scale - lse[:, None] * 1.4426950408889634
    last = tl.load(last_ptr + b * n_query + row, mask=row_valid, other=-1)
    visible = (key[None, :] >= tl.load(padding_ptr + b)) & (key[None, :] <= last[:, None])
    if MASKED:
        pointers = (
            mask_ptr + b * m_batch + h * m_head + row[:, None].to(tl.int64) * m_row + key[None, :]
        )
        inside = row_valid[:, None] & (key[None, :] < n_key)
        visible = inside & (tl.load(pointers, mask=inside, other=0) != 0)
    power = tl.where(visible, power, float("-inf"))
    to = head * n_rows + place
    pointers = power_ptr + to[:, None] * (n_blocks * BLOCK) + key[None, :]
    tl.store(pointers, power, mask=row_valid[:, None])
    tl.store(peak_ptr + to * n_blocks + block, tl.max(power, axis=1), mask=row_valid)


@triton.jit
def strongest(
    power_ptr, peak_ptr, key_ptr, weight_ptr, n_all, n_blocks,
    TOP: tl.constexpr, ROWS: tl.constexpr, BLOCKS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the keys and weights of the TOP largest entries of each row of `power`, which is overwritten.

    Rows with fewer keys of positive weight are filled with −1 and 0.
    """
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    row_valid = row < n_all
    block = tl.arange(0, BLOCKS)
    peaks = peak_ptr + row[:, None] * n_blocks + block[None, :]
    block_valid = row_valid[:, None] & (block[None, :] < n_blocks)
    peak = tl.load(peaks, mask=block_valid, other=float("-inf"))
    within = tl.arange(0, BLOCK)
    power_ptr += row * (n_blocks * BLOCK)
    for t in range(TOP):
        high = tl.max(peak, axis=1)
        best = tl.argmax(peak, axis=1)
        power_at = power_ptr[:, None] + best[:, None] * BLOCK + within[None, :]
        power = tl.load(power_at, mask=row_valid[:, None], other=float("-inf"))
        place = tl.argmax(power, axis=1)
        weight = tl.exp2(high)
        to = row * TOP + t
        tl.store(key_ptr + to, tl.where(weight > 0, best * BLOCK + place, -1), mask=row_valid)
        tl.store(weight_ptr + to, weight, mask=row_valid)
        power = tl.where(within[None, :] == place[:, None], float("-inf"), power)
        tl.store(power_at, power, mask=row_valid[:, None])
        peak = tl.where(block[None, :] == best[:, None], tl.max(power, axis=1)[:, None], peak)
        tl.debug_barrier()  # the next iteration may read this block again
