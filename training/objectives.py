"""The two objectives: what is hidden from the model, what it must say, and with which weight.

Both get the same rows, roles and weights. Natural text counts 1 a token, the text of contexts
little (its facts are random, and cannot be predicted), answers much, so that looking things up is
learned. The sum is divided by the weight of all tokens the objective may be asked about.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from training.common import MASK
from training.rows import ANSWER_TOKEN, FILL, ID_BITS

OBJECTIVES = ("arm", "mdm")


@dataclass(frozen=True)
class Loss:
    """Weights by role, and the masking of the diffusion objective."""

    weights: tuple[float, ...] = (1.0, 0.2, 8.0, 8.0, 0.5)  # text, context, answer, its end, fill
    t_min: float = 0.02  # t is uniform on (t_min, 1); 1/t would explode at 0
    whole_row: float = 0.2  # share of question rows masked all over, as natural text is
    all_masked: float = 0.5  # share of answers that are hidden entirely, as when decoding starts
    prefix: float = 0.5  # share of answers that show their first tokens instead, at the start …
    prefix_steps: int = 6000  # … falling to none here: it helps copying begin, then LLaDA's alone
    capacity: float = 0.45  # share of positions the head is computed for

    def prefix_share(self, step: int) -> float:
        return self.prefix * max(0.0, 1 - step / self.prefix_steps)


def unpack(cells: Tensor) -> tuple[Tensor, Tensor]:
    """(ids, roles), int64, of packed 16-bit cells held in any integer type."""
    cells = cells.long() & 0xFFFF
    return cells & ((1 << ID_BITS) - 1), cells >> ID_BITS


def arm_targets(ids: Tensor, roles: Tensor, loss: Loss) -> tuple[Tensor, Tensor]:
    """Next tokens and their weights, flat; the last position of a row has weight 0."""
    table = torch.tensor(loss.weights, device=ids.device)
    weight = torch.zeros(ids.shape, device=ids.device)
    weight[:, :-1] = table[roles[:, 1:]]
    target = ids.roll(-1, 1)
    return target.reshape(-1), (weight / weight.sum()).reshape(-1)


def mdm_mask(
    ids: Tensor, roles: Tensor, loss: Loss, generator: torch.Generator, prefix: float = 0.0
) -> tuple[Tensor, Tensor]:
    """(masked, weight), each (rows, length). weight = role weight / t where masked.

    Rows of natural text: one t a row, spread evenly over the batch, every token masked with
    chance t (LLaDA). Rows with questions: mostly the answers alone are masked, each answer with
    a t of its own, half of them with t = 1. A share `prefix` of answers is masked from a random
    token on instead; its weight is that of t = 2/3, about what is masked then.
    """
    rows, length = ids.shape
    device = ids.device

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, device=device, generator=generator)

    table = torch.tensor(loss.weights, device=device)
    spread = (torch.arange(rows, device=device) / rows + uniform(1)) % 1
    spread = spread[torch.argsort(uniform(rows))]
    t_row = (loss.t_min + (1 - loss.t_min) * spread)[:, None].expand(rows, length)
    asks = (roles >= ANSWER_TOKEN).any(1, keepdim=True)
    whole = ~asks | (uniform(rows, 1) < loss.whole_row)

    in_answer = (roles >= ANSWER_TOKEN) & (roles <= FILL)
    starts = in_answer & ~torch.cat((torch.zeros_like(in_answer[:, :1]), in_answer[:, :-1]), 1)
    block = starts.cumsum(1)  # which answer of the row a position belongs to
    t_block = loss.t_min + (1 - loss.t_min) * uniform(rows, length)
    t_block = torch.where(uniform(rows, length) < loss.all_masked, 1.0, t_block)
    t_block = t_block.gather(1, block.clamp(max=length - 1))

    chance = uniform(rows, length)
    if prefix:
        at = torch.arange(length, device=device).expand(rows, length)
        offset = at - torch.where(starts, at, 0).cummax(1).values
        real = (in_answer & (roles < FILL)).long()
        count = torch.zeros(rows, length + 1, dtype=torch.long, device=device)
        count = count.scatter_add_(1, block, real).gather(1, block)  # tokens of the answer
        shown = (uniform(rows, length).gather(1, block.clamp(max=length - 1)) * count).long()
        chosen = uniform(rows, length).gather(1, block.clamp(max=length - 1)) < prefix
        t_block = torch.where(chosen, 2 / 3, t_block)
        answer_chance = torch.where(chosen, (offset < shown).float(), chance)
        chance = torch.where(whole, chance, answer_chance)

    t = torch.where(whole, t_row, t_block)
    may = torch.where(whole, torch.ones_like(in_answer), in_answer)
    may[:, 0] = False  # <bos> is given
    masked = may & (chance < t)
    weight = table[roles]
    total = (weight * may).sum()
    return masked, masked * weight / t / total


def mdm_inputs(
    ids: Tensor, masked: Tensor, weight: Tensor, loss: Loss
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(input ids, positions, targets, weights): the head is computed at `positions` alone.

    Their number is fixed, so that shapes are; unmasked positions fill it up with weight 0. Masked
    positions beyond it are left out, which stratified t makes all but impossible.
    """
    inputs = torch.where(masked, MASK, ids)
    room = -(-int(ids.numel() * loss.capacity) // 64) * 64
    order = torch.argsort(masked.reshape(-1).to(torch.uint8), descending=True, stable=True)
    at = order[: min(room, ids.numel())]
    return inputs, at, ids.reshape(-1)[at], weight.reshape(-1)[at]
