"""Compare each step of an approximate cache with a forward without the cache over the same canvas.

The decoding continues with the cache; the second forward only observes. So every difference is due to
stale keys and values, not to another text.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
import xarray as xr
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..attention import Labels, View, backend
from ..attention.weight_free import cosine_distance
from ..decode.caches import APPROXIMATE
from ..decode.loop import decode
from ..decode.samplers.base import Sampler
from ..decode.state import State, Watcher
from ..errors import UsageError
from ..models import Model, Visibility, attention_hook
from ..sequences.prompt import Encoded

LAYERED = ("attention", "key", "value")


class _Layers:
    """The attention received by each key, and the keys and values, in each layer of one forward."""

    def __init__(self, visible: Visibility, rows: Bool[Tensor, "1 q"]) -> None:
        self.visible, real = visible, visible.key_is_real
        self.labels = Labels(rows.long() - 1, 1, real.long() - 1, 1, visible.first)
        self.mass: list[Float[Tensor, "h k"]] = []
        self.kv: list[tuple[Tensor, Tensor]] = []

    def look(self, call: attention_hook.Call, proceed: attention_hook.Proceed) -> Tensor:
        view = View.of(call, self.visible, self.labels)
        view = backend.with_lse(view, lambda: attention_hook.compute_attention(call))
        total = backend.sums(view, entropy=False, regions=False)["column_sum"][0, 0]  # (h, k)
        self.mass.append(total / total.sum(-1, keepdim=True))
        self.kv.append((call.key, call.value))
        return proceed(call)


class _Comparing(Watcher):
    """A watcher that repeats every step with stale keys without the cache."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.old = self.rows = self.keys = 0
        self.cached: _Layers | None = None
        nothing = torch.full((model.n_layers,), torch.nan)
        self.layered = {name: [nothing] for name in LAYERED}
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
        with attention_hook.attach(self.model.net, self.cached.look, innermost=True):
            yield

    def committed(
        self, state: State, revealed: Bool[Tensor, "b w"], token: Int[Tensor, "b w"]
    ) -> None:
        if self.cached is None or state.fresh is None:
            return
        model, size = self.model, state.visible.keys
        plain = model.visibility(size, size, state.visible.padding)
        anew = _Layers(plain, state.fresh)
        with attention_hook.attach(model.net, anew.look, innermost=True):
            logits = model.predict(state.canvas, *state.window, plain).float()
        logits[..., model.mask_id] = -torch.inf
        if bool(revealed.any()):
            other = logits.argmax(-1)[revealed] != token[revealed]
            self.flipped.append(float(other.float().mean()))
        old, pairs = ~state.fresh[0], list(zip(self.cached.kv, anew.kv, strict=True))
        masses = zip(self.cached.mass, anew.mass, strict=True)
        differences = {
            "attention": [(a - b).abs().sum(-1).mean() / 2 for a, b in masses],
            "key": [cosine_distance(a, b)[0, old].mean() for (a, _), (b, _) in pairs],
            "value": [cosine_distance(a, b)[0, old].mean() for (_, a), (_, b) in pairs],
        }
        for name, by_layer in differences.items():
            self.layered[name].append(torch.stack(by_layer).cpu())


def compared(model: Model, prompt: Encoded, sampler: Sampler, cache: str) -> xr.Dataset:
    """Compute the values of `staleness` for one example."""
    if cache.partition(":")[0] not in APPROXIMATE:
        raise UsageError(
            f"cache = {cache!r} is exact", f"Nothing is old in it: use {', '.join(APPROXIMATE)}."
        )
    watch = _Comparing(model)
    with attention_hook.lock_network(model.net):
        fast = decode(model, [prompt], sampler, watch, cache=cache)[0]
        plain = decode(model, [prompt], sampler)[0]
    start = len(prompt.ids)
    same = (fast.canvas[-1, start:] == plain.canvas[-1, start:]).mean()
    values = {
        name: ("layer", torch.stack(by_step).nanmean(0).double().numpy())
        for name, by_step in watch.layered.items()
    }
    scalars = {
        "flipped": float(np.mean(watch.flipped or [np.nan])),
        "answer": float(same),
        "old": watch.old / watch.keys,
        "rows": watch.rows / watch.keys,
    }
    return xr.Dataset({**values, **scalars}, {"layer": range(model.n_layers)})
