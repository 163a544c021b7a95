"""How many columns the prompts of a batch take: the longest, or a little more where batches share recordings.

A recorded forward is replayed for batches of the same width alone. Prompts of unequal length are padded
anyway: on a GPU they are padded up to the next multiple, so that the next batch, of about the same length,
finds its forward recorded. Prompts of one length stay as they are, without padding.
"""

from collections.abc import Sequence

from ..models import Model
from ..sequences.prompt import Encoded

MULTIPLE = 32


def columns(model: Model, prompts: Sequence[Encoded], more: int) -> int:
    """`more`: what is generated behind them; together they stay within the model's context."""
    lengths = {len(prompt.ids) for prompt in prompts}
    longest = max(lengths)
    if len(lengths) == 1 or not rounded_on(model):
        return longest
    rounded = -(-longest // MULTIPLE) * MULTIPLE
    return max(longest, min(rounded, model.context - more))


def rounded_on(model: Model) -> bool:
    """Where forwards may be recorded; also where they are launched, so that both give the same bits."""
    return model.device.type == "cuda"
