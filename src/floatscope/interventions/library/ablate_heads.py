"""AblateHeads: replace a head's output by zero, by its mean, or by its output in another prompt.

The intervention replaces the head's contribution to the residual stream and does not change the head's
attention weights, which a trace shows.
"""

from collections.abc import Hashable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from ...decode.draw import check_seed, stream
from ...decode.state import State
from ...errors import UsageError
from ...models import Model, attention_hook
from ...models.placing import constant
from ...models.select import Choice, within
from ..base import ActiveIntervention, Intervention
from ..head_outputs import HeadMeans, HeadRows, Heads, by_layer

KINDS: dict[str, type | None] = {"zero": None, "mean": HeadMeans, "resample": HeadRows}


@dataclass(frozen=True)
class AblateHeads(Intervention):
    """Replace the output of chosen heads by zero, by the head's mean, or by the output in another prompt.

    Args:
        heads: pairs ((layer, head), …), at least one; negative numbers count from the end.
        to: "zero" (default). "mean" replaces each row by the mean over all rows of the runs of
            `reference`. "resample" replaces each row by a row of another prompt of `reference`. That
            prompt and its rows are drawn once per decoded prompt. The draws are the same for all heads,
            layers and steps, so the outputs of heads ablated together come from the same rows.
        steps: steps at which to ablate, as a number, a slice or a sequence; all by default.
        reference: `HeadMeans.of(model, prompts)` for "mean", `HeadRows.of(model, prompts)` for
            "resample", None for "zero".
        seed: seed of the draws of "resample", default 0.
    """

    heads: Heads = ()
    to: str = "zero"
    steps: Choice = None
    reference: HeadMeans | HeadRows | None = None
    seed: int = 0

    def check(self, model: Model) -> None:
        if not self.heads:
            raise UsageError(
                "AblateHeads needs heads", "Give heads=((layer, head), …), such as heads=((3, 1),)."
            )
        if self.to not in KINDS:
            raise UsageError(f"AblateHeads: to = {self.to!r}", f"Use one of {', '.join(KINDS)}.")
        check_seed(self.seed)
        layer_heads = by_layer(self.heads, model, "AblateHeads")
        kind, reference = KINDS[self.to], self.reference
        if kind is None:
            return
        if not isinstance(reference, kind):
            raise UsageError(
                f"AblateHeads(to={self.to!r}) has reference = {reference!r}",
                f"Give reference=fs.interventions.{kind.__name__}.of(model, prompts).",
            )
        self._check_reference(model, layer_heads)

    def _check_reference(self, model: Model, layer_heads: dict[int, list[int]]) -> None:
        reference, expected = self.reference, (model.n_layers, model.n_heads)
        if isinstance(reference, HeadMeans) and tuple(reference.mean.shape[:2]) != expected:
            raise UsageError(
                f"the reference has {tuple(reference.mean.shape[:2])} layers and heads, "
                f"{model.name} has {expected}",
                "Make the reference with the same model.",
            )
        recorded = reference.heads if isinstance(reference, HeadRows) else layer_heads
        for layer, heads in layer_heads.items():
            if missing := set(heads) - set(recorded.get(layer, ())):
                raise UsageError(
                    f"the reference has no outputs of head {min(missing)} of layer {layer}",
                    "Make it with these heads: fs.interventions.HeadRows.of(model, prompts, heads=…).",
                )

    def probe(self) -> "AblateHeads":
        return replace(self, to="zero", steps=None, reference=None)

    def acting(self, model: Model) -> "_Active":
        return _Active(self, model)


class Fills:
    """The replacements of head outputs that the settings of an AblateHeads define."""

    def __init__(self, spec: AblateHeads, model: Model) -> None:
        # "zero" ignores a reference.
        self.reference = None if spec.to == "zero" else spec.reference
        self.seed, self.positions = spec.seed, model.context
        self.drawn: dict[tuple[int, ...], tuple[int, Tensor]] = {}  # by prompt

    def compute(
        self, layer: int, heads: list[int], state: State | None, outputs: Float[Tensor, "b q h d"]
    ) -> Float[Tensor, "#b #q n d"]:
        """Return the replacements of these heads' outputs, broadcastable to (batch, row, head, channel)."""
        reference = self.reference
        if isinstance(reference, HeadMeans):
            means = [reference.mean[layer, head] for head in heads]
            return torch.stack(means).to(outputs)[None, None]
        if not isinstance(reference, HeadRows):
            return outputs.new_zeros(1, 1, len(heads), outputs.shape[-1])
        if state is None:
            raise UsageError(
                "AblateHeads(to='resample') draws by prompt, and no prompt is being decoded or read",
                "Use generate, trace or read inside the `with` block.",
            )
        indices = [reference.heads[layer].index(head) for head in heads]
        filled = []
        for place, b in enumerate(state.active):
            positions = state.visible.query_positions - state.visible.padding[place]
            other, noise = self._draw(state.prompts[b].ids, reference)
            rows = reference.rows[layer][other]
            number = (noise.to(positions.device)[positions.clamp(min=0)] * len(rows)).long()
            filled.append(rows[number][:, indices].to(outputs))
        return torch.stack(filled)

    def _draw(self, ids: tuple[int, ...], reference: HeadRows) -> tuple[int, Tensor]:
        """Return the index of another prompt of the reference, and a random number for each position."""
        if ids not in self.drawn:
            other_prompts = [
                n for n, recorded_ids in enumerate(reference.ids) if recorded_ids != ids
            ]
            if not other_prompts:
                raise UsageError(
                    "AblateHeads(to='resample') needs another prompt in its reference than this one",
                    "Give the reference more prompts.",
                )
            generator = stream(self.seed, ids)
            place = int(torch.randint(len(other_prompts), (), generator=generator))
            # Drawn for all possible positions, so that later positions do not change the draws.
            noise = torch.rand(self.positions, generator=generator, dtype=torch.float64)
            self.drawn[ids] = other_prompts[place], noise
        return self.drawn[ids]


class _Active(ActiveIntervention):
    def __init__(self, spec: AblateHeads, model: Model) -> None:
        super().__init__(model, None, spec.steps)
        self.heads = by_layer(spec.heads, model, "AblateHeads")
        self.fills = Fills(spec, model)

    def same_forward(self, state: State) -> Hashable | None:
        """Return whether the step is ablated; None for "resample", whose draws depend on the prompts."""
        resampled = isinstance(self.fills.reference, HeadRows)
        return None if resampled else within(self.steps, state.step, "step")

    def attention(self, call: attention_hook.Call, proceed: attention_hook.Proceed) -> Tensor:
        output = proceed(call)
        heads = self.heads.get(call.layer)
        if heads is None or not self.acts(call.layer):
            return output
        output = output.clone()
        output[:, :, constant(heads, output.device)] = self.fills.compute(
            call.layer, heads, self.state, output
        )
        return output
