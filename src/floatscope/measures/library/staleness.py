"""Staleness: what an approximate cache does to attention, to predictions and to the answer.

It needs the model, so it is a function of a model and prompts, and is not in the list of measures.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from ...errors import UsageError
from ...plots import ANY, POSITIVE, Figure, lines
from ..base import Measure
from ..result import Result

if TYPE_CHECKING:
    from ...decode.samplers.base import Sampler
    from ...instrument import Model
    from ...sequences.prompt import PromptLike


@dataclass(frozen=True)
class Staleness(Measure):
    """The measure behind `staleness`: means over the steps that used old keys.

    The reference is a forward without the cache over the same canvas.

    - `attention`: total variation between the attention of the computed rows and that of the same rows in
      the reference; mean over heads, by layer
    - `key`, `value`: 1 − cosine of old keys and values with those of the reference, by layer
    - `flipped`: share of the revealed tokens for which the reference has another arg-max
    - `answer`: share of the answer's positions that hold the same token as a decoding without a cache
    - `old`: share of keys that are old
    - `rows`: share of rows that were computed

    There is no null. Without a cache, attention, key, value and flipped are 0 and `answer` is 1.

    Args:
        cache (str): Name of the approximate cache.
    """

    cache: str = "dual"
    units: ClassVar[dict[str, str]] = {
        "attention": "total variation",
        "key": "1 − cos",
        "value": "1 − cos",
        **dict.fromkeys(("flipped", "answer", "old", "rows"), "share"),
    }

    def plot(self, result: Result) -> Figure:
        share = float(result.data["answer"])
        return lines(
            result,
            ("attention moved (TV)", "attention", POSITIVE),
            ("old against new, 1 − cos", {"key": "keys", "value": "values"}, ANY),
            note=f", cache={self.cache!r}: {share:.0%} of the answer as without",
        )


def staleness(
    model: "Model",
    prompts: "PromptLike | Sequence[PromptLike]",
    sampler: "Sampler | None" = None,
    *,
    cache: str = "dual",
) -> Result:
    """Measure what an approximate cache does to a model that decodes these prompts.

    Each prompt is decoded with the cache, with one more forward at every step that used old keys, and once
    without the cache.

    Args:
        model (Model): A model that sees in both directions.
        prompts (str, Prompt, or a list of them): One or more prompts.
        sampler (Sampler): How to decode; by default the sampler that fits the model.
        cache (str): "prefix", "dual" (by default) or "dkv".

    Returns:
        A result with the values that `Staleness` describes.
    """
    from ...decode.presets import choose_sampler  # not where measures are only read
    from ...recording.staleness import compared

    several: list[Any] = list(prompts) if isinstance(prompts, list | tuple) else [prompts]
    if not several:
        raise UsageError("no prompts", "Give at least one.")
    chosen = choose_sampler(model, sampler)
    encoded = [model.encode(prompt) for prompt in several]
    examples = [compared(model, e, chosen, cache).assign_attrs(id=str(e.ids)) for e in encoded]
    return Staleness(cache=cache).summarise(examples, model.name)
