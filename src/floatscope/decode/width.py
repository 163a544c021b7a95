"""Compute the number of prompt columns of a batch: the longest prompt, rounded up to share recordings.

A recorded forward is replayed only for batches of the same width. Prompts of unequal length are padded to
the longest prompt; on a GPU they are padded to the next multiple of 32, so that batches of similar length
share a recorded forward. Prompts of equal length are not padded.
"""

from collections.abc import Sequence

from ..models import Model
from ..sequences.prompt import Encoded

MULTIPLE = 32


def columns(model: Model, prompts: Sequence[Encoded], n_new: int) -> int:
    """Return the number of prompt columns, such that they fit the context with `n_new` generated tokens."""
    lengths = {len(prompt.ids) for prompt in prompts}
    longest = max(lengths)
    if len(lengths) == 1 or not rounded_on(model):
        return longest
    rounded = -(-longest // MULTIPLE) * MULTIPLE
    return max(longest, min(rounded, model.context - n_new))


def rounded_on(model: Model) -> bool:
    """Tell whether widths are rounded for a model: on a GPU, whether or not forwards are recorded there."""
    return model.device.type == "cuda"
