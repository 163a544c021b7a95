"""Locate the embedded pair: a diffusion model and a causal model, trained in the same way.

The checkpoints of both models are in this package. `training/` and the card `embedded/CARD.md` document
their training.
"""

from pathlib import Path

from . import shipped
from .shipped import EMBEDDED

FOLDER = EMBEDDED
PAIR = {
    "pair/mdm": "masked diffusion, LLaDA format, 12.3M parameters",
    "pair/arm": "autoregressive, Llama format, 12.3M parameters",
}


def locate(name: str) -> Path:
    """Return the directory of a model of the pair, after verifying its checksums."""
    return shipped.checked_directory(name, FOLDER / name.removeprefix("pair/"))
