"""The embedded pair: a diffusion and a causal model, trained alike, shipped inside the package.

This file says where they are; how they were made is in `training/` and in their card,
`embedded/CARD.md`.
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
    """The directory of one of the pair, after its files have been compared with their checksums."""
    return shipped.whole(name, FOLDER / name.removeprefix("pair/"))
