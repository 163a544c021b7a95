"""PositionCalibrated: a sampler that reveals early positions and rare tokens first (PC-Sampler)."""

from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from ...errors import UsageError
from ...sequences.vocabulary import ModelFacts
from ...stats.frequencies import read_frequencies
from .base import Guess, Sampler

_FLOOR = 1e-30


@dataclass(frozen=True)
class PositionCalibrated(Sampler):
    """Reveal confident, unexpected tokens first, and early positions of the block before late ones.

    The method is PC-Sampler (2508.13021). The score is ln C_i − decay·i, with
    C_i = min(−p_i · ln(f_i + 1e-9), clip). Here i is the index in the block, p_i is the probability of
    the token proposed at i, and f_i is that token's share of a corpus. The published float32 product
    exp(−decay·i)·C_i underflows past i = 413 at decay = 0.25; its logarithm, which is used here, does not
    underflow.

    Args:
        decay: weight of the position, 0 or more, default 0.25; 0 ignores the position.
        clip: upper limit of C_i, above 0, default 10.
        frequencies: .npy file with each token's share of a corpus, one value per vocabulary entry
            (`floatscope frequencies` writes it). None (default) counts all tokens as equally frequent, so
            only the position is calibrated.
    """

    decay: float = 0.25
    clip: float = 10.0
    frequencies: str | Path | None = None

    def check(self, model: ModelFacts) -> None:
        super().check(model)
        table = self.table(model.vocab_size)
        if len(table) != model.vocab_size:
            raise UsageError(
                f"{self.frequencies} contains {len(table)} frequencies for {model.vocab_size} tokens",
                f"Count them with the tokenizer of {model.name}.",
            )

    def check_fields(self) -> None:
        super().check_fields()
        if self.decay < 0 or self.clip <= 0:
            raise UsageError(
                f"PositionCalibrated: decay = {self.decay}, clip = {self.clip}",
                "Use decay ≥ 0 and clip > 0.",
            )

    def table(self, vocab_size: int) -> Float[Tensor, " v"]:
        """Return each token's share of the corpus, shape (vocabulary,), float64.

        Args:
            vocab_size: number of vocabulary entries.
        """
        if self.frequencies is None:
            return torch.full((vocab_size,), 1 / vocab_size, dtype=torch.float64)
        return torch.from_numpy(read_frequencies(str(self.frequencies)))

    def score(self, guess: Guess) -> Float[Tensor, "b w"]:
        rarity = -(
            self.table(guess.logits.shape[-1]).to(guess.token.device)[guess.token] + 1e-9
        ).log()
        worth = (guess.confidence.double() * rarity).clamp(_FLOOR, self.clip)
        return worth.log() - self.decay * guess.place
