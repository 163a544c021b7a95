"""Record how much attention a masking hid, as a share of the attention without the masking."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

# names in a decoding's info and in rows of answers
SHARE, COLUMNS = "hidden_share", "hidden_columns"


@dataclass
class Hidden:
    """The attention that a mask removed in one decoding, by step, layer and head.

    A share is the attention on the hidden columns, from the rows from which the columns are hidden, as a
    fraction of the layer's attention without this mask (but with the effect of the mask on the layers
    below). Rows that keep their only key are counted too. With a KV cache the rows of a step are the new
    rows.
    """

    _steps: list[tuple[int, int, list[int], Tensor]] = field(default_factory=list)

    def add(
        self,
        step: int,
        layer: int,
        prompts: Sequence[int],
        hidden: Float[Tensor, "b h"],
        rows: Float[Tensor, "b h"],
        columns: Float[Tensor, "b h"],
    ) -> None:
        """Add one layer's forward: attention on hidden columns, number of rows, number of hidden columns."""
        self._steps.append((step, layer, list(prompts), torch.stack([hidden, rows, columns])))

    @property
    def share(self) -> Float[np.ndarray, "prompt step layer head"]:
        """Share of attention that was hidden; NaN for layers, steps and prompts without a mask."""
        hidden, rows, _ = self._arrays()
        with np.errstate(invalid="ignore"):
            return hidden / rows

    @property
    def columns(self) -> Float[np.ndarray, "prompt step layer head"]:
        """Number of hidden columns; NaN for layers, steps and prompts without a mask."""
        return self._arrays()[2]

    def mean(self, prompt: int | None = None, steps: int | None = None) -> dict[str, float]:
        """Return the hidden share of attention and the mean number of hidden columns per head, by name.

        Both are means over one prompt (default: all) and over the first `steps` steps (default: all).
        """
        hidden, rows, columns = self._arrays()[
            :, slice(prompt, None if prompt is None else prompt + 1)
        ][:, :, :steps]
        if not np.nansum(rows):
            return {SHARE: 0.0, COLUMNS: 0.0}
        return {
            SHARE: float(np.nansum(hidden) / np.nansum(rows)),
            COLUMNS: float(np.nanmean(columns)),
        }

    def _arrays(self) -> Float[np.ndarray, "3 prompt step layer head"]:
        if not self._steps:
            return np.zeros((3, 0, 0, 0, 0))
        n_steps = max(step for step, _, _, _ in self._steps) + 1
        n_layers = max(layer for _, layer, _, _ in self._steps) + 1
        n_prompts = max(max(prompts) for _, _, prompts, _ in self._steps) + 1
        n_heads = self._steps[0][3].shape[-1]
        filled = np.full((3, n_prompts, n_steps, n_layers, n_heads), np.nan)
        for step, layer, prompts, values in self._steps:
            filled[:, prompts, step, layer] = values.cpu().numpy()
        return filled
