"""Staleness: what an approximate cache does to attention, to predictions and to the answer.

It needs the model, so it is a function of a model and prompts, and not in the list of measures.
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
    """What `staleness` found, as means over the steps that used old keys.

    - `attention`: total variation between what the computed rows gave each key and what the same rows give
      it in a forward without the cache over the same canvas; mean over heads, by layer
    - `key`, `value`: 1 − cos of the old keys and values with those of that forward, by layer
    - `flipped`: share of the tokens revealed for which that forward has another arg-max
    - `answer`: share of the answer's positions that hold the same token as without a cache at all
    - `old`: share of keys that are old; `rows`: share of rows that were computed

    There is no null: without a cache the first four are 0, 0, 0 and 1.
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
    """What the approximate cache `cache` does to a model that decodes these prompts.

    Each prompt is decoded with the cache, with one more forward beside every step that used old keys, and
    once without. `Staleness` says what the values are.
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
