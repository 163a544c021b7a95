"""Patch: insert activations of another run at chosen steps, layers and positions.

This is activation patching. The other run, called the source run, is recorded once
(`fs.interventions.PatchSource`). The current run continues from the inserted values, so a patch can affect
later layers, all positions that read the patched position, and later steps.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ...decode.state import State
from ...errors import UsageError
from ...models import Model, attention_hook
from ...models.select import Choice, chosen
from .. import alignment
from ..base import Intervention
from ..layers import ActiveLayers, ZeroProbe
from ..patch_source import KINDS, QUERY, PatchSource
from ..selection import Names, Selection, check_classes


@dataclass(frozen=True)
class Patch(Intervention):
    """Replace head outputs, attention rows or the residual stream by those of another run, step by step.

    Step t is patched with the activations of the source's step t. Steps and rows that the source does not
    have are not changed; `Decoding.info["patched_rows"]` counts the patched rows. One source is used for
    every prompt of a batch. Positions are those of this run; tokens that match all of `regions`,
    `classes` and `positions` are patched.

    Args:
        what: quantity to patch: "residual" (default), the input of a layer; "head", the output of a head;
            "attention", a row's attention weights, applied to this run's values.
        source: `PatchSource.of(model, prompt, sampler)`. Required.
        layers: layers to patch, as a number, a slice or a sequence; all by default.
        heads: heads to patch, in the same way; not with "residual".
        steps: steps to patch, in the same way; all by default.
        regions: regions to patch, such as "question", "gold", "answer" or "predicting"; all by default.
        classes: token classes to patch, such as "punctuation" or "structural"; all by default.
        positions: positions of the prompt to patch, as a number, a slice or a sequence; all by default.
        align: how positions of the runs correspond: "positions" (default; prompts of equal length), or
            "regions", span by span.
    """

    what: str = "residual"
    source: PatchSource | None = None
    layers: Choice = None
    heads: Choice = None
    steps: Choice = None
    regions: Names = ()
    classes: Names = ()
    positions: Choice = None
    align: str = "positions"

    def check(self, model: Model) -> None:
        if self.what not in KINDS:
            raise UsageError(f"Patch: what = {self.what!r}", f"Use one of {', '.join(KINDS)}.")
        if self.align not in alignment.KINDS:
            raise UsageError(f"Patch: align = {self.align!r}", "Use 'positions' or 'regions'.")
        if self.what == "residual" and self.heads is not None:
            raise UsageError(
                "Patch: the residual has no heads", "Leave heads out, or use what='head'."
            )
        check_classes(self.classes)
        chosen(self.heads, model.n_heads, "head")
        layers = chosen(self.layers, model.n_layers, "layer")
        if not isinstance(self.source, PatchSource):
            raise UsageError(
                f"Patch: source = {self.source!r}",
                "Give source=fs.interventions.PatchSource.of(model, prompt, sampler).",
            )
        missing = [f"layer {n}" for n in layers if n not in self.source.layers]
        missing += [self.what] * (self.what not in self.source.keep)
        if missing:
            raise UsageError(
                f"the source did not record {missing[0]}",
                f"Record it: fs.interventions.PatchSource.of(…, keep={self.what!r}, layers=…).",
            )

    def probe(self) -> Intervention:
        return ZeroProbe(self.what, self.layers, self.heads)

    def acting(self, model: Model) -> "_Active":
        assert self.source is not None
        return _Active(self, model, self.source)


class _Active(ActiveLayers):
    def __init__(self, spec: Patch, model: Model, source: PatchSource) -> None:
        super().__init__(model, spec.what, spec.layers, spec.heads, spec.steps)
        self.source, self.align = source, spec.align
        self.selection = Selection(model, spec.regions, spec.classes, spec.positions)
        self.patched: dict[int, dict[int, int]] = {}  # by prompt and step: number of rows
        # In this forward, by prompt: patched rows, the corresponding rows of the source, and the source's
        # position of every key.
        self.rows: list[Tensor] = []
        self.theirs: list[Tensor] = []
        self.keys: list[Tensor] = []

    def acts(self, layer: int) -> bool:
        state = self.state
        recorded = state is not None and not state.blind and state.step in self.source.first_row
        return recorded and super().acts(layer)

    def begin(self, state: State) -> None:
        if state.step == 0 and not state.blind:
            self.patched = {}
        if not self.acts(min(self.layers)):
            return
        self.rows, self.theirs, self.keys = [], [], []
        flagged = self.selection.find(state)
        first = self.source.first_row[state.step]
        kind = QUERY if self.kind == "attention" else self.kind
        dim = 1 if self.kind == "attention" else 0
        count = self.source.of_step(kind, state.step, min(self.layers)).shape[dim]
        for place, b in enumerate(state.active):
            partners = self._partners(state, b).to(flagged.device)  # (k,), −1 for none
            row_partners = partners[-state.visible.queries :]
            recorded = (row_partners >= first) & (row_partners < first + count)
            rows = (flagged[place, -state.visible.queries :] & recorded).nonzero().squeeze(-1)
            self.rows.append(rows)
            self.theirs.append(row_partners[rows] - first)
            self.keys.append(partners)
            self.patched.setdefault(b, {})[state.step] = len(rows)

    def _partners(self, state: State, b: int) -> Tensor:
        prompt, other = state.prompts[b], self.source.prompt
        padding = state.prompt_end - len(prompt.ids)
        answer = state.canvas.shape[1] - state.prompt_end
        prompt_partners = alignment.partners(prompt, other, self.align)
        answer_positions = range(len(other.ids), len(other.ids) + answer)
        return torch.tensor([*[-1] * padding, *prompt_partners, *answer_positions])

    def residual(self, layer: int, x: Tensor) -> Tensor:
        assert self.state is not None
        source, x = self.source.of_step("residual", self.state.step, layer), x.clone()
        for b, (rows, theirs) in enumerate(zip(self.rows, self.theirs, strict=True)):
            x[b, rows] = source[theirs].to(x)
        return x

    def output(self, call: attention_hook.Call, output: Tensor) -> Tensor:
        assert self.state is not None
        output = output.clone()
        other = self._attended(call) if self.kind == "attention" else None
        heads = torch.tensor(self.heads, device=output.device)
        for b, (rows, theirs) in enumerate(zip(self.rows, self.theirs, strict=True)):
            if other is None:
                new = self.source.of_step("head", self.state.step, call.layer)[theirs]
            else:
                new = other[b, rows]
            output[b, rows[:, None], heads] = new[:, heads].to(output)
        return output

    def _attended(self, call: attention_hook.Call) -> Tensor:
        """Return the head outputs that the source's attention weights and this run's values give."""
        assert self.state is not None
        query, key = call.query.clone(), call.key.clone()
        theirs = self.source.keys(self.state.step, call.layer)
        source_query = self.source.of_step(QUERY, self.state.step, call.layer)
        for b, (rows, from_row, partners) in enumerate(
            zip(self.rows, self.theirs, self.keys, strict=True)
        ):
            real = self.state.visible.key_is_real[b]
            if int(real.sum()) != theirs.shape[1] or not bool((partners[real] >= 0).all()):
                raise UsageError(
                    f"Patch(what='attention') needs runs whose keys correspond one to one: this one has "
                    f"{int(real.sum())}, the source {theirs.shape[1]}, and "
                    f"{int((partners[real] < 0).sum())} keys have no partner",
                    "Use prompts of equal length, or what='head'.",
                )
            query[b, :, rows] = source_query[:, from_row].to(query)
            key[b, :, real] = theirs[:, partners[real]].to(key)
        return attention_hook.compute_attention(replace(call, query=query, key=key))

    def report(self, prompt: int, steps: int) -> dict[str, float]:
        rows = (n for step, n in self.patched.get(prompt, {}).items() if step < steps)
        return {"patched_rows": float(sum(rows))}
