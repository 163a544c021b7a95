"""Staleness: how an approximate cache changes attention, predictions and the answer.

`staleness` needs the model. It is therefore a function of a model and prompts, and is not in the list of
measures. The model decodes with the cache. At each step, a forward without the cache reads the same canvas,
so all differences come from the old keys and values and none from a different text.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
import xarray as xr
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ...attention import Labels, View, backend
from ...attention.weight_free import cosine_distance
from ...decode.caches import APPROXIMATE
from ...decode.loop import decode
from ...decode.presets import choose_sampler
from ...decode.samplers.base import Sampler
from ...decode.state import State, Watcher
from ...errors import UsageError
from ...instrument import Model
from ...models import Visibility, attention_hook
from ...plots import ANY, POSITIVE, Figure, lines
from ...sequences.prompt import Encoded, PromptLike
from ..base import Measure
from ..result import Result


@dataclass(frozen=True)
class Staleness(Measure):
    """The measure that `staleness` computes: effects of old keys, as means over the steps that used them.

    The reference is a forward without the cache over the same canvas.

    - `attention`: total variation between the attention of the computed rows and that of the same rows in
      the reference; mean over heads, by layer
    - `key`, `value`: 1 − cosine of old keys and values to those of the reference, by layer
    - `flipped`: share of the revealed tokens for which the reference has another arg-max
    - `answer`: share of the answer's positions with the same token as in a decoding without the cache
    - `old`: share of keys that are old
    - `rows`: share of rows that were computed

    There is no null. Without a cache, `attention`, `key`, `value` and `flipped` are 0 and `answer` is 1.

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
        attention = ("attention moved (TV)", "attention", POSITIVE)
        cosines = ("old against new, 1 − cos", {"key": "keys", "value": "values"}, ANY)
        note = f", cache={self.cache!r}: {share:.0%} of the answer as without"
        return lines(result, attention, cosines, note=note)


def staleness(
    model: Model,
    prompts: PromptLike | Sequence[PromptLike],
    sampler: Sampler | None = None,
    *,
    cache: str = "dual",
) -> Result:
    """Measure how an approximate cache changes the decoding of prompts.

    Each prompt is decoded once with the cache, with an additional forward at every step that used old keys,
    and once without the cache.

    Args:
        model (Model): A bidirectional model.
        prompts (str, Prompt, or a list of them): One or more prompts.
        sampler (Sampler): How to decode; by default the sampler that fits the model.
        cache (str): "prefix", "dual" (by default) or "dkv".

    Returns:
        A result with the values that `Staleness` describes.
    """
    several: list[Any] = list(prompts) if isinstance(prompts, list | tuple) else [prompts]
    if not several:
        raise UsageError("no prompts", "Give at least one prompt.")
    if cache.partition(":")[0] not in APPROXIMATE:
        remedy = f"An exact cache has no old keys: use {', '.join(APPROXIMATE)}."
        raise UsageError(f"cache = {cache!r} is exact", remedy)
    chosen = choose_sampler(model, sampler)
    encoded = [model.encode(prompt) for prompt in several]
    examples = [_example(model, e, chosen, cache).assign_attrs(id=str(e.ids)) for e in encoded]
    return Staleness(cache=cache).summarise(examples, model.name)


class _Layers:
    """Recorder of the keys and values of each layer of one forward, and of the attention they receive."""

    def __init__(self, visible: Visibility, rows: Bool[Tensor, "1 q"]) -> None:
        self.visible, real = visible, visible.key_is_real
        self.labels = Labels(rows.long() - 1, 1, real.long() - 1, 1, visible.first)
        self.mass: list[Float[Tensor, "h k"]] = []
        self.kv: list[tuple[Tensor, Tensor]] = []

    def record(self, call: attention_hook.Call, proceed: attention_hook.Proceed) -> Tensor:
        view = View.from_call(call, self.visible, self.labels)
        view = backend.with_lse(view, lambda: attention_hook.compute_attention(call))
        total = backend.sums(view, entropy=False, regions=False)["column_sum"][0, 0]  # (h, k)
        self.mass.append(total / total.sum(-1, keepdim=True))
        self.kv.append((call.key, call.value))
        return proceed(call)


class _StalenessWatcher(Watcher):
    """Watcher that repeats each step that used old keys in a forward without cache, and compares the two."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.old = self.rows = self.keys = 0
        self.cached: _Layers | None = None
        nothing = torch.full((model.n_layers,), torch.nan)
        self.layered = {name: [nothing] for name in ("attention", "key", "value")}
        self.flipped: list[float] = []

    @contextmanager
    def forward(self, state: State) -> Iterator[None]:
        self.cached = None
        self.keys += state.visible.keys
        self.rows += state.visible.queries
        if state.fresh is None:
            yield
            return
        self.old += int((~state.fresh).sum())
        self.cached = _Layers(state.visible, state.fresh[:, state.visible.rows])
        with attention_hook.attach(self.model.net, self.cached.record, innermost=True):
            yield

    def receive_decision(
        self, state: State, revealed: Bool[Tensor, "b w"], token: Int[Tensor, "b w"]
    ) -> None:
        if self.cached is None or state.fresh is None:
            return
        model, size = self.model, state.visible.keys
        plain = model.visibility(size, size, state.visible.padding)
        recomputed = _Layers(plain, state.fresh)
        with attention_hook.attach(model.net, recomputed.record, innermost=True):
            logits = model.predict(state.canvas, *state.window, plain).float()
        logits[..., model.mask_id] = -torch.inf
        if bool(revealed.any()):
            other = logits.argmax(-1)[revealed] != token[revealed]
            self.flipped.append(float(other.float().mean()))
        old, pairs = ~state.fresh[0], list(zip(self.cached.kv, recomputed.kv, strict=True))
        masses = zip(self.cached.mass, recomputed.mass, strict=True)
        differences = {
            "attention": [(a - b).abs().sum(-1).mean() / 2 for a, b in masses],
            "key": [cosine_distance(a, b)[0, old].mean() for (a, _), (b, _) in pairs],
            "value": [cosine_distance(a, b)[0, old].mean() for (_, a), (_, b) in pairs],
        }
        for name, by_layer in differences.items():
            self.layered[name].append(torch.stack(by_layer).cpu())


def _example(model: Model, prompt: Encoded, sampler: Sampler, cache: str) -> xr.Dataset:
    """Return the values of `Staleness` for one prompt, decoded with the cache and without it."""
    watch = _StalenessWatcher(model)
    with attention_hook.lock_network(model.net):
        fast = decode(model, [prompt], sampler, watch, cache=cache)[0]
        plain = decode(model, [prompt], sampler)[0]
    start = len(prompt.ids)
    agreement = (fast.canvas[-1, start:] == plain.canvas[-1, start:]).mean()
    layered = watch.layered.items()
    means = {name: torch.stack(by_step).nanmean(0).double() for name, by_step in layered}
    values = {name: ("layer", mean.numpy()) for name, mean in means.items()}
    scalars = {
        "flipped": float(np.mean(watch.flipped or [np.nan])),
        "answer": float(agreement),
        "old": watch.old / watch.keys,
        "rows": watch.rows / watch.keys,
    }
    return xr.Dataset({**values, **scalars}, {"layer": range(model.n_layers)})
