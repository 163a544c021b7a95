"""The gold answer before its first step: a canvas, the rows that predict it, and its log-probability.

For a diffusion model the whole answer is masked, with as many masks as would be decoded. A causal model
reads the answer token by token, and each row predicts the next one. Whether an answer begins with a space
depends on the model: the variant that the unchanged model finds more likely is used.
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
    """The input of one forward, and the rows and tokens to read."""

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
        """Encode the text with or without a leading space, whichever is more likely; None if neither fits."""
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
        """Return ln p of the answer per token, in nats, for each of n logits (n, r, v)."""
        import torch

        from ...decode.score import log_p

        target = torch.tensor(self.answer, device=logits.device).expand(logits.shape[:2])
        with torch.inference_mode():
            p = log_p(model, logits, target).double()
        means: np.ndarray = p.mean(-1).cpu().numpy()
        return means
