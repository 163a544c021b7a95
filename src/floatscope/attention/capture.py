"""Capture: every attention of a network, measured as it happens.

`with Capture(model, ...) as capture:` attaches to the seam and leaves the network as it was. Each
forward is wrapped in `capture.forward(scene)`, which gives a Seen per layer and raises if a layer was
missed. The output is stock attention's, bit for bit; capture only looks.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..errors import CaptureError
from ..models import Model, Visibility, seam
from . import blocked, fused, norms, vectors
from . import strongest as peaks
from .overhear import FEW, Overhear
from .rows import Held, hold, row, strongest
from .statistics import Columns, Labels, View

_WEIGHED = {"mass", "groups", "entropy", "flow", "rollout", "rows"}  # what needs the weights


@dataclass(frozen=True, eq=False)
class Scene:
    """Who is who in one forward."""

    visible: Visibility
    labels: Labels
    rows: tuple[int, int]  # query rows that `Capture.rows` may be asked for
    cached: bool  # earlier rows came in earlier forwards

    @cached_property
    def max_entropy(self) -> Float[Tensor, "b 1 q"]:
        """ln of the number of visible keys; NaN for one key, whose entropy has no scale."""
        visible = self.visible
        count = (visible.last_visible - visible.padding[:, None] + 1).clamp(min=1)
        return torch.where(count > 1, count.float().log(), torch.nan)[:, None]


@dataclass(frozen=True, eq=False)
class Candidates:
    """One layer's rows that may be revealed, as their strongest keys and region sums."""

    key: Int[Tensor, "b h w t"]
    weight: Float[Tensor, "b h w t"]
    flow: Float[Tensor, "b h w r"]


@dataclass(eq=False)
class Seen:
    """One layer in one forward. Heads are the chosen ones; sums run over this forward's queries."""

    column_sum: Float[Tensor, "b g h k"] | None = None
    entropy: Float[Tensor, "b h q"] | None = None  # over ln of the number of visible keys
    flow_sum: Float[Tensor, "b h r r"] | None = None  # summed over the queries of each region
    rollout_sum: Float[Tensor, "b r r"] | None = None
    columns: Columns | None = None
    value_norm: Float[Tensor, "b h k"] | None = None  # of this forward's new keys
    residual_norm: Float[Tensor, "b k"] | None = None  # likewise
    # What `capture.rows` needs: the strongest keys of every candidate, or what to compute rows from.
    candidates: Candidates | None = None
    held: Held | None = None


@dataclass(frozen=True, eq=False)
class Rows:
    """Whole rows of one prompt, as their strongest keys and region sums."""

    key: Int[Tensor, "n l h t"]
    weight: Float[Tensor, "n l h t"]
    flow: Float[Tensor, "n l h r"]


@dataclass(eq=False)
class Capture:
    """Measures the statistics in `keep` of the chosen layers and heads (all by default)."""

    model: Model
    keep: Collection[str]
    layers: Sequence[int]
    heads: Sequence[int]
    top: int = 8
    _scene: Scene | None = None
    _seen: dict[int, Seen] = field(default_factory=dict)
    _calls: int = 0
    _state: Tensor | None = None  # the rollout up to this layer
    _states: dict[int, Tensor] = field(default_factory=dict)  # with a cache: of earlier rows
    _open: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> "Capture":
        net = self.model.net
        self._open.enter_context(seam.attached(net, self._look, innermost=True))
        if "residual_norm" in self.keep:
            for layer, block in enumerate(net.model.layers):
                hook = block.register_forward_pre_hook(self._residual(layer), with_kwargs=True)
                self._open.callback(hook.remove)
        return self

    def __exit__(self, *exc: object) -> None:
        self._open.close()

    @contextmanager
    def forward(self, scene: Scene) -> Iterator[dict[int, Seen]]:
        """Around exactly one forward; the dictionary is filled, by layer, when it ends."""
        self._scene, self._calls, self._state = scene, 0, None
        self._seen = {layer: Seen() for layer in self.layers}
        seen = self._seen
        try:
            yield seen
            if self._calls != self.model.n_layers:
                raise CaptureError(
                    f"{self._calls} attention calls seen in a forward of {self.model.n_layers} layers",
                    "Another library may have replaced the model's attention; load it afresh.",
                )
        finally:
            self._scene = None

    def _residual(self, layer: int) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if self._scene is not None and layer in self._seen:
                x = args[0] if args else kwargs["hidden_states"]
                self._seen[layer].residual_norm = (
                    vectors.norms_of(x)
                    if fused.available(x)
                    else torch.linalg.vector_norm(x, dim=-1, dtype=torch.float32)
                )

        return hook

    def _look(self, call: seam.Call, proceed: seam.Proceed) -> Tensor:
        scene = self._scene
        if scene is None:  # a forward that nobody asked about, such as guidance's second one
            return proceed(call)
        self._calls += 1
        wanted = call.layer in self._seen
        rolling = "rollout" in self.keep
        if not wanted and not rolling:
            return proceed(call)
        with Overhear() as ear:
            output = proceed(call)
        # Rollout follows the mean of all heads through all layers, whatever is kept.
        chosen = range(self.model.n_heads) if rolling else self.heads
        view = self._view(call, scene, ear.lse(call.query), chosen)
        self._measure(call, view, scene, wanted, chosen)
        return output

    def _view(
        self, call: seam.Call, scene: Scene, lse: Tensor | None, chosen: Sequence[int]
    ) -> View:
        state = None
        if "rollout" in self.keep:
            if self._state is None:
                self._state = scene.labels.in_region
            state = self._state
        whole = View(
            query=call.query,
            key=call.key,
            scale=call.scale,
            mask=call.mask,
            causal=call.causal,
            visible=scene.visible,
            labels=scene.labels,
            lse=lse,
            state=state,
            bias=None if call.bias is None else call.bias.float(),
        )
        few = whole.query.shape[2] < FEW and bool(_WEIGHED & set(self.keep))
        if lse is None and few and fused.takes(whole, without_lse=True):
            whole = replace(whole, lse=fused.attempt(lambda: peaks.log_sum_exp(whole)))
        return whole if len(chosen) == call.query.shape[1] else _of_heads(whole, list(chosen))

    def _measure(
        self, call: seam.Call, view: View, scene: Scene, wanted: bool, chosen: Sequence[int]
    ) -> None:
        keep, seen = self.keep, self._seen.get(call.layer, Seen())
        # Of the heads measured, those kept.
        same = len(chosen) == len(self.heads)
        pick = slice(None) if same else [list(chosen).index(h) for h in self.heads]
        from_region = scene.labels.from_region
        best = None
        if wanted and "rows" in keep and fused.takes(view):
            best = fused.attempt(lambda: peaks.strongest(fused.Launch(view), *scene.rows, self.top))
        at_once = best is not None
        if at_once or (_WEIGHED - {"rows"}) & set(keep):
            sums = (fused if fused.wanted(view.query) else blocked).sums(
                view,
                entropy=wanted and "entropy" in keep,
                regions=wanted and ("flow" in keep or at_once),
            )
            if {"mass", "groups"} & set(keep):
                seen.column_sum = sums.column_sum[:, :, pick]
            if sums.entropy is not None:
                seen.entropy = sums.entropy[:, pick] / scene.max_entropy
            if best is not None:
                assert sums.region_sum is not None
                flow = sums.region_sum[:, pick, slice(*scene.rows)].clone()
                seen.candidates = Candidates(best[0][:, pick], best[1][:, pick], flow)
            if sums.region_sum is not None and "flow" in keep:
                # As a broadcast product of matrices this takes ten times as long on a GPU.
                seen.flow_sum = torch.einsum(
                    "bqf,bhqr->bhfr", from_region, sums.region_sum[:, pick]
                )
            if sums.rolled is not None:
                self._roll(call.layer, sums.rolled, scene)
                assert self._state is not None
                new = self._state[:, -scene.visible.queries :]
                seen.rollout_sum = from_region.mT @ new  # (b, f, r)
        if not wanted:
            return
        if "qk" in keep:
            columns = vectors.columns if fused.available(view.query) else blocked.columns
            seen.columns = _pick_heads(columns(view), pick)
        if "value_norm" in keep:
            fresh = call.value[:, :, -scene.visible.queries :]
            of_values = vectors if fused.available(fresh) else norms
            norm = of_values.value_norms(call.module, fresh)
            every = len(self.heads) == norm.shape[1]
            seen.value_norm = norm if every else norm[:, list(self.heads)]
        if "rows" in keep and not at_once:
            kept = view if isinstance(pick, slice) else _of_heads(view, pick)
            seen.held = hold(kept, *scene.rows)

    def _roll(self, layer: int, rolled: Float[Tensor, "b q r"], scene: Scene) -> None:
        """R_l = ½ (Ā_l + I) R_{l−1}; with a cache, earlier rows' states do not change any more."""
        assert self._state is not None
        new = (rolled + self._state[:, -scene.visible.queries :]) / 2
        if scene.cached:
            before = self._states.get(layer)
            new = new if before is None else torch.cat([before, new], dim=1)
            self._states[layer] = new
        self._state = new

    def rows(self, seen: dict[int, Seen], labels: Labels, which: Sequence[Tensor]) -> list[Rows]:
        """For each prompt of the last forward, the rows `which` (counted from the scene's first, as
        many as each has; not all may have none)."""
        device = labels.region.device
        counts = [len(some) for some in which]
        prompt = torch.arange(len(which)).repeat_interleave(torch.tensor(counts)).to(device)
        place = torch.cat(list(which)).to(device)
        found = [self._rows_of(one, labels, which, prompt, place) for one in seen.values()]
        key, weight, flow = (
            torch.stack(parts, dim=1).split(counts) for parts in zip(*found, strict=True)
        )  # (n, l, h, _) each
        return [Rows(*one) for one in zip(key, weight, flow, strict=True)]

    def _rows_of(
        self,
        seen: Seen,
        labels: Labels,
        which: Sequence[Tensor],
        prompt: Int[Tensor, " all"],
        place: Int[Tensor, " all"],
    ) -> tuple[Tensor, Tensor, Tensor]:
        """One layer's rows of all prompts, (all, h, _): picked out, or computed now."""
        if seen.candidates is not None:
            kept = seen.candidates
            key = kept.key[prompt, :, place].long()
            return key, kept.weight[prompt, :, place], kept.flow[prompt, :, place]
        if seen.held is None:
            raise CaptureError("no rows were held", "Capture with keep including 'rows'.")
        keys, weights, flows = [], [], []
        for b, some in enumerate(which):
            if not len(some):  # its keys need not be looked at
                continue
            whole = row(seen.held, b, some.to(place.device)).movedim(1, 0)  # (n, h, k)
            key, weight = strongest(whole, self.top)
            keys.append(key)
            weights.append(weight)
            flows.append(whole @ labels.in_region[b])
        return torch.cat(keys), torch.cat(weights), torch.cat(flows)


def _of_heads(view: View, heads: list[int]) -> View:
    """The same view of some heads; grouped heads get each their own key."""
    at = torch.tensor(heads, device=view.query.device)
    mask = view.mask
    return replace(
        view,
        query=view.query[:, at],
        key=view.key[:, at // (view.query.shape[1] // view.key.shape[1])],
        mask=mask if mask is None or mask.shape[1] == 1 else mask[:, at],
        lse=None if view.lse is None else view.lse[:, at],
        bias=None if view.bias is None else view.bias[:, at],
    )


def _pick_heads(columns: Columns, pick: slice | list[int]) -> Columns:
    return Columns(
        score=columns.score[:, pick],
        cosine=columns.cosine[:, pick],
        query_norm=columns.query_norm[:, pick],
        key_norm=columns.key_norm[:, pick],
        seen=columns.seen,
    )
