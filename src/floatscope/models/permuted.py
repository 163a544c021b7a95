"""Permute the weights of a network: a control with the same sizes and norms that has learned nothing.

Such a network shows the effects of the architecture without training, so it is the control for effects
that are attributed to training. No weight is drawn anew, and vectors (norms, biases) are not changed.

The indices of an arbitrary permutation of an 8B model's embedding take 4 GB. So the new position of each
entry is computed instead: every column is rotated by its own random amount, then every row by its own;
then the columns and the rows are rotated once more. The result is a Feistel network of four rounds whose
round functions are random tables (Luby and Rackoff, 1988): an entry may move to any position, and the
positions of two entries are independent. This takes 2·(rows + columns) random numbers per matrix. Integer
arithmetic gives the same positions on every device and for every dtype. A matrix with one row or one
column is only rotated; no family has such a matrix.
"""

import hashlib
from copy import deepcopy

import numpy as np
import torch
from jaxtyping import Int, Shaped
from torch import Tensor
from transformers import PreTrainedModel

from ..errors import UsageError

TRAINED, PERMUTED = "trained", "permuted"
WEIGHTS = (TRAINED, PERMUTED)
_TURNS = 2  # number of rotations of columns and of rows
_AT_ONCE = 1 << 18  # cells whose origins are computed together, so that they fit a core's cache
_AT_ONCE_GPU = 1 << 24


def require_known(weights: str, seed: int) -> None:
    if weights not in WEIGHTS:
        raise UsageError(f"no weights {weights!r}", f"Use one of: {', '.join(WEIGHTS)}.")
    is_integer = isinstance(seed, int) and not isinstance(seed, bool)
    if weights == PERMUTED and (not is_integer or seed < 0):
        raise UsageError(f"seed = {seed!r}", "Use a whole number, 0 or more.")


def named(name: str, seed: int) -> str:
    """Return the name of a model with permuted weights: the model's name with the seed."""
    return f"{name} ({PERMUTED}, seed {seed})"


def copied(net: PreTrainedModel, seed: int) -> PreTrainedModel:
    """Return a copy of the network with permuted weights; the original network is not changed."""
    with torch.no_grad():
        copy = deepcopy(net)
    permute(copy, seed)
    return copy


def permute(net: PreTrainedModel, seed: int) -> None:
    """Permute every weight matrix of the network in place; tied matrices are permuted once."""
    for name, parameter in net.named_parameters():  # each tensor once, under its first name
        if parameter.ndim >= 2:
            parameter.data = _permuted(parameter.data, f"{seed} {name}")


@torch.no_grad()
def refill(net: PreTrainedModel, trained: PreTrainedModel, seed: int) -> None:
    """Overwrite a permuted network with the trained network's weights, permuted with `seed`."""
    pairs = zip(net.named_parameters(), trained.parameters(), strict=True)
    for (name, parameter), origin in pairs:
        if parameter.ndim >= 2:
            parameter.copy_(_permuted(origin.data, f"{seed} {name}"))


def _permuted(matrix: Shaped[Tensor, "rows *columns"], key: str) -> Shaped[Tensor, "rows *columns"]:
    """Return the matrix with its entries permuted; the key determines the permutation."""
    rows, columns = matrix.shape[0], matrix[0].numel()
    digest = hashlib.blake2b(key.encode(), digest_size=16).digest()
    rng = np.random.default_rng(int.from_bytes(digest))
    device = matrix.device
    turns = [
        (_amounts(rng, rows, columns).to(device), _amounts(rng, columns, rows).to(device))
        for _ in range(_TURNS)
    ]
    entries = matrix.reshape(-1)
    result = torch.empty_like(entries)
    together = max(1, (_AT_ONCE if device.type == "cpu" else _AT_ONCE_GPU) // columns)
    for start in range(0, rows, together):
        chunk = torch.arange(start, min(start + together, rows), dtype=torch.int32, device=device)
        row = chunk[:, None].expand(-1, columns)
        column = torch.arange(columns, dtype=torch.int32, device=device).expand_as(row)
        for of_columns, of_rows in turns:
            row = _turned(row, of_columns[column], rows)
            column = _turned(column, of_rows[row], columns)
        origin = row.long() * columns + column
        result[start * columns : start * columns + origin.numel()] = entries[origin.reshape(-1)]
    return result.view_as(matrix)


def _amounts(rng: np.random.Generator, below: int, count: int) -> Int[Tensor, " n"]:
    return torch.from_numpy(rng.integers(below, size=count, dtype=np.int32))


def _turned(place: Int[Tensor, "r c"], by: Int[Tensor, "r c"], size: int) -> Int[Tensor, "r c"]:
    moved = place + by
    return torch.where(moved >= size, moved - size, moved)
