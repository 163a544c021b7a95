"""Compute the log-probability of a gold answer in one forward.

The module builds the canvas of the forward, and finds the rows that predict the answer. For a diffusion
model the canvas has `length` masks after the prompt, as at the start of a decoding. A causal model reads
the answer itself, and each row predicts the next token. Models differ in whether an answer begins with a
space. The answer is spelled with or without a space, whichever spelling is more likely under the unchanged
model.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from ...sequences.prompt import Encoded

if TYPE_CHECKING:
    from torch import Tensor

    from ...models import Model


@dataclass(frozen=True)
class MaskedAnswer:
    """A gold answer to score: the input of a forward, the rows that predict the answer, and its token ids."""

    canvas: tuple[int, ...]
    rows: tuple[int, ...]
    answer: tuple[int, ...]

    @classmethod
    def from_ids(
        cls, model: "Model", prompt: Encoded, answer: Sequence[int], length: int
    ) -> "MaskedAnswer":
        start = len(prompt.ids)
        rows = tuple(start + i - model.shift for i in range(len(answer)))
        behind = answer if model.mask_id is None else [model.mask_id] * length
        return cls((*prompt.ids, *behind), rows, tuple(answer))

    @classmethod
    def spelled(
        cls, model: "Model", prompt: Encoded, text: str, length: int
    ) -> "MaskedAnswer | None":
        """Encode an answer, with a leading space if that is likelier; None if both spellings are too long."""
        from ...interventions.branching import ablated_each

        assert model.tokenizer is not None  # prompts are text
        encodings = (
            model.tokenizer.encode(spelling, add_special_tokens=False)
            for spelling in (text, f" {text}")
        )
        fit = {tuple(map(int, ids)) for ids in encodings if 0 < len(ids) <= length}
        candidates = [cls.from_ids(model, prompt, ids, length) for ids in sorted(fit)]
        if len(candidates) < 2:
            return candidates[0] if candidates else None

        def likely(candidate: MaskedAnswer) -> float:
            logits = ablated_each(model, candidate.canvas, [()], candidate.rows)
            return float(candidate.per_token(model, logits)[0]) * len(candidate.answer)

        return max(candidates, key=likely)

    def per_token(self, model: "Model", logits: "Tensor") -> Float[np.ndarray, " n"]:
        """Return the mean ln p of the answer's tokens, in nats, for each of n forwards.

        Args:
            model: The model that computed the logits.
            logits: Logits of n forwards at the answer's rows, (n, row, vocabulary).
        """
        import torch

        from ...decode.score import log_p

        target = torch.tensor(self.answer, device=logits.device).expand(logits.shape[:2])
        with torch.inference_mode():
            p = log_p(model, logits, target).double()
        means: np.ndarray = p.mean(-1).cpu().numpy()
        return means
