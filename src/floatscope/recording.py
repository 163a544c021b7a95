"""The Recorder: a watcher that captures every forward of a decoding and turns it into Traces.

Here meet what the capture saw (tensors of a padded batch, on the model's device) and what the
decoding decided; out come labelled arrays, one Trace a prompt, without padding.
"""

import warnings
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from .assemble import assemble
from .attention import STATISTICS, Capture, Labels, Scene, Seen
from .choose import Choice, chosen
from .decode import Autoregressive, Decoding, Sampler, State
from .decode.steps import Watcher
from .errors import UsageError
from .models import Model
from .outbox import Outbox
from .prompt import Encoded
from .recorded import Recorded, record
from .running import Running
from .trace import Trace, readable

# Labels 0 and 1 of every position; the prompt's own regions follow.
MASKED, REVEALED = "masked", "revealed"
_LARGE = 8_000_000_000


def check_keep(keep: Collection[str] | None) -> frozenset[str]:
    """The statistics to keep; all of them by default."""
    wanted = frozenset(STATISTICS if keep is None else [keep] if isinstance(keep, str) else keep)
    unknown = sorted(wanted - STATISTICS.keys())
    if unknown or not wanted:
        raise UsageError(
            f"no statistic {unknown[0]!r}" if unknown else "keep is empty",
            f"keep takes: {', '.join(STATISTICS)}.",
        )
    return wanted


class Recorder(Watcher):
    """Records one batch. Use as a context manager around `decode`, then call `traces`."""

    def __init__(
        self,
        model: Model,
        prompts: Sequence[Encoded],
        sampler: Sampler | Autoregressive,
        *,
        keep: Collection[str] | None = None,
        layers: Choice = None,
        heads: Choice = None,
        steps: Choice = None,
        groups: str = "coarse",
        top: int = 8,
        dtype: str = "float32",
    ) -> None:
        if dtype not in ("float32", "float16"):
            raise UsageError(f"a trace cannot be kept as {dtype!r}", "Use float32 or float16.")
        if groups not in ("coarse", "regions"):
            raise UsageError(
                f"groups = {groups!r}",
                "Use 'coarse' (prompt, masked, revealed) or 'regions' (each prompt region apart).",
            )
        if top < 1:
            raise UsageError(f"top = {top}", "Keep at least one key of a row.")
        self.model, self.prompts, self.sampler = model, prompts, sampler
        self.keep = check_keep(keep)
        self.layers = chosen(layers, model.n_layers, "layer")
        self.heads = chosen(heads, model.n_heads, "head")
        self.steps = frozenset(chosen(steps, sampler.n_steps, "step"))
        self.by_region = groups == "regions" and "groups" in self.keep
        self.dtype = np.dtype(dtype)
        self.names = [(MASKED, REVEALED, *p.names) for p in prompts]
        self.n_regions = max(map(len, self.names))
        self.capture = Capture(model, self.keep, self.layers, self.heads, top)
        self.recorded = [Recorded() for _ in prompts]
        self.outbox = Outbox(model.device)
        self.running = Running()
        self.prompt_region = _prompt_regions(prompts, self.names).to(model.device)
        self.seen: dict[int, Seen] = {}
        self.scene: Scene | None = None
        self._warn_if_large()

    def __enter__(self) -> "Recorder":
        self.capture.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self.capture.__exit__(*exc)
        self.outbox.settle()

    # Watching

    def forward(self, state: State) -> AbstractContextManager[object]:
        # With a cache, sums accumulate: every step must be seen even if only some are kept.
        if state.step not in self.steps and not state.cached:
            return nullcontext()
        return self._watch(state)

    @contextmanager
    def _watch(self, state: State) -> Iterator[None]:
        self.scene = scene = self._scene(state)
        with self.capture.forward(scene) as seen:
            yield
        self.seen = self.running.add(seen, scene) if state.cached else seen
        if state.step in self.steps:
            width = state.canvas.shape[1]
            places = [(self.recorded[b], width - self._size(b, state)) for b in state.rows]
            record(state.step, self.seen, scene, places, self.dtype, self.outbox)

    def committed(
        self, state: State, revealed: Bool[Tensor, "b w"], token: Int[Tensor, "b w"]
    ) -> None:
        if "rows" not in self.keep or state.step not in self.steps or self.scene is None:
            return
        revealed, token = revealed.cpu(), token.cpu()  # one wait, not one a position
        which = [one.nonzero().squeeze(-1) for one in revealed]
        if not any(map(len, which)):
            return
        found = self.capture.rows(self.seen, self.scene.labels, which)
        for place, (b, some, rows) in enumerate(zip(state.rows, which, found, strict=True)):
            if len(some):
                padding = len(state.canvas[0]) - self._size(b, state)
                first = state.window[0] - padding
                at = [(first + w, int(token[place, w])) for w in some.tolist()]
                self.recorded[b].reveal(state.step, at, rows, padding, self.dtype, self.outbox)
        for one in self.seen.values():
            one.held = one.candidates = None  # they may go

    def _size(self, b: int, state: State) -> int:
        return len(self.prompts[b].ids) + state.canvas.shape[1] - state.prompt_end

    def _scene(self, state: State) -> Scene:
        answer = state.hollow[:, state.prompt_end :].logical_not().long()  # 0 masked, 1 revealed
        region = torch.cat([self.prompt_region[list(state.rows)], answer], dim=1)
        of_query = region[:, -state.visible.queries :]
        if self.by_region:
            group, n_groups = of_query, self.n_regions
        elif "groups" in self.keep:
            group, n_groups = of_query.clamp(max=2), 3  # masked, revealed, prompt
        else:
            group, n_groups = of_query.clamp(max=0), 1
        return Scene(
            visible=state.visible,
            labels=Labels(group, n_groups, region, self.n_regions),
            rows=state.predicting,
            cached=state.cached,
        )

    # Afterwards

    def traces(self, decodings: Sequence[Decoding]) -> list[Trace]:
        """One Trace a prompt, in order."""
        self.outbox.settle()  # where the recorder was not used as a context
        return [
            Trace(
                assemble(
                    self.model,
                    self.sampler,
                    decoding,
                    recorded,
                    self.layers,
                    self.heads,
                    self._group_names(b),
                    self.names[b],
                )
            )
            for b, (decoding, recorded) in enumerate(zip(decodings, self.recorded, strict=True))
        ]

    def _group_names(self, b: int) -> tuple[str, ...]:
        if self.by_region:
            return self.names[b]
        return (MASKED, REVEALED, "prompt") if "groups" in self.keep else ("all",)

    def _warn_if_large(self) -> None:
        size = max(len(p.ids) for p in self.prompts) + self.sampler.length
        per_head = {
            "mass": 1,
            "groups": self.n_regions if self.by_region else 3,
            "entropy": 1,
            "qk": 4,
            "value_norm": 1,
        }
        numbers = sum(n for name, n in per_head.items() if name in self.keep)
        numbers -= {"mass", "groups"} <= self.keep  # one array serves both
        cells = len(self.steps) * len(self.layers) * len(self.heads) * size
        total = cells * numbers * self.dtype.itemsize * len(self.prompts)
        if total > _LARGE:
            warnings.warn(
                f"these traces will take about {readable(total)} of memory. Keep less with keep=, "
                "layers=, heads= or steps=, smaller batches, or dtype='float16'.",
                stacklevel=2,
            )


def _prompt_regions(
    prompts: Sequence[Encoded], names: Sequence[tuple[str, ...]]
) -> Int[Tensor, "b p"]:
    width = max(len(p.ids) for p in prompts)
    region = torch.full((len(prompts), width), -1)
    for b, prompt in enumerate(prompts):
        at = {name: i for i, name in enumerate(names[b]) if i >= 2}
        region[b, width - len(prompt.ids) :] = torch.tensor([at[r] for r in prompt.regions])
    return region
