"""Compute a diffusion model's lower bound on ln p(target | context).

For a target of L tokens, the bound is the expected value over masks of (L / m) · Σ ln p(masked token),
where m is the number of masked tokens. As in LLaDA's evaluation (2502.09992, algorithm 3), m is drawn
uniformly from 1 … L, and then m positions are drawn at random. If the number of possible masks, 2^L − 1,
is at most the number of samples, each mask is evaluated once and the bound is exact. Users call this
module through `likelihood`.
"""

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..models import Model
from ..sequences.prompt import Encoded
from .score import log_p, target_logits


def bound(
    model: Model,
    context: Encoded,
    target: list[int],
    samples: int,
    batch_size: int,
    generator: torch.Generator,
) -> tuple[float, float]:
    """Return the bound in nats and its standard error, which is 0 if every mask was evaluated."""
    size = len(target)
    exhaustive = 2**size - 1 <= samples
    masks = every_mask(size) if exhaustive else drawn_masks(size, samples, generator)
    # the same mask may be drawn twice
    different, inverse = masks.unique(dim=0, return_inverse=True)
    scores = []
    for batch in different.to(model.device).split(batch_size):
        targets = torch.tensor(target, device=model.device).expand(len(batch), -1)
        logits = target_logits(model, [context] * len(batch), targets, batch)
        log_ps = log_p(model, logits[batch], targets[batch]).double()
        which_mask = batch.nonzero()[:, 0]
        total = log_ps.new_zeros(len(batch)).index_add(0, which_mask, log_ps)
        scores.append(total * size / batch.sum(-1))
    score, count = torch.cat(scores).cpu()[inverse], masks.sum(-1)
    if exhaustive:
        n_masks = torch.tensor([math.comb(size, int(c)) for c in count], dtype=score.dtype)
        return float((score / (size * n_masks)).sum()), 0.0
    return _estimate(score, count, size)


def every_mask(size: int) -> Bool[Tensor, "n w"]:
    """Return all 2^size − 1 non-empty masks of `size` positions."""
    numbers = torch.arange(1, 2**size)
    return (numbers[:, None] >> torch.arange(size)) % 2 == 1


def drawn_masks(size: int, samples: int, generator: torch.Generator) -> Bool[Tensor, "n w"]:
    """Draw random masks whose sizes run evenly through 1 … size from a random start, as in LLaDA's code."""
    start = int(torch.randint(size, (), generator=generator))
    steps = torch.arange(samples) * size // samples
    count = (start + steps) % size + 1
    place = torch.rand((samples, size), generator=generator).argsort(-1).argsort(-1)
    return place < count[:, None]


def _estimate(
    score: Float[Tensor, " n"], count: Int[Tensor, " n"], size: int
) -> tuple[float, float]:
    """Return the mean of the scores and its standard error, stratified by number of masked positions.

    Stratification is used only if each number of masked positions was drawn at least twice.
    """
    strata = [score[count == c] for c in range(1, size + 1)]
    if min(map(len, strata)) < 2:
        return float(score.mean()), float(score.std() / math.sqrt(len(score)))
    means = torch.stack([stratum.mean() for stratum in strata])
    spread = torch.stack([stratum.var() / len(stratum) for stratum in strata])
    return float(means.mean()), float(spread.sum().sqrt() / size)
