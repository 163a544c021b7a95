"""Draw random numbers from one stream per prompt, so that no draw depends on the other prompts of a batch."""

import hashlib
from numbers import Integral

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..errors import UsageError


def check_seed(seed: object) -> None:
    """Refuse a seed that is not a whole number from 0 to 2^63 − 1; True, 1.0 and "1" are refused too."""
    if not isinstance(seed, Integral) or isinstance(seed, bool) or not 0 <= int(seed) < 2**63:
        raise UsageError(f"seed = {seed!r:.40}", "Use a whole number from 0 to 2^63 − 1.")


def stream(seed: int, ids: tuple[int, ...]) -> torch.Generator:
    """Return a generator for a seed and a prompt. It runs on the CPU, so draws are equal on every device."""
    digest = hashlib.blake2b(f"{seed} {ids}".encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "big") >> 1)


def sample(
    logits: Float[Tensor, "w v"], temperature: float, generator: torch.Generator
) -> Int[Tensor, " w"]:
    """Draw a token for each row of logits; at temperature 0, return the arg-max of each row.

    A token is drawn by inverting the cumulative distribution in float64. The draws have the same
    distribution as Gumbel sampling, which needs one random number per vocabulary entry instead of one per
    row.
    """
    if temperature == 0:
        return logits.argmax(-1)
    wide = logits.double()
    weight = ((wide - wide.amax(-1, keepdim=True)) / temperature).exp()
    reached = weight.cumsum(-1)
    total = reached[:, -1:]
    uniform = torch.rand((len(logits), 1), generator=generator, dtype=torch.float64)
    # Stay below the total, which rounding could reach: the last tokens may have weight 0.
    level = torch.minimum(
        uniform.to(total.device) * total, total.nextafter(torch.zeros_like(total))
    )
    return torch.searchsorted(reached, level, right=True).squeeze(-1)
