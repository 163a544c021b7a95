"""Map edits made on the page to interventions; a branch is a decoding under these interventions.

A branch can therefore be reproduced by a few lines of Python. An edit at step t leaves all earlier steps
unchanged. An edit of a token sets the token after the forward of step t. An edit of attention changes the
forward of step t and all later forwards.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..errors import UsageError
from ..instrument import Model
from ..interventions.base import Combined, Intervention
from ..interventions.head_outputs import HeadMeans
from ..interventions.library.ablate_heads import AblateHeads
from ..interventions.library.cut_edges import CutEdges
from ..interventions.library.force_token import ForceToken
from ..interventions.library.mask_tokens import MaskTokens
from ..interventions.library.mask_values import MaskValues
from ..interventions.library.remasked import Remasked
from ..sequences.prompt import Encoded

_SAID = {  # regions that are no names of a prompt's parts
    "predicting": "the rows that predict",
    "masked": "the masked positions",
    "revealed": "the revealed positions",
    "answer": "the answer's positions",
    "gold": "the gold passage",
}
_MEAN = "reference=fs.interventions.HeadMeans.of(model, [prompt])"


@dataclass(frozen=True)
class AppliedEdit:
    """One edit: its interventions, a sentence that describes it, and its Python code."""

    parts: tuple[Intervention, ...]
    text: str
    code: tuple[str, ...]


def touched(
    model: Model, prompt: Encoded, touches: Sequence[Mapping[str, Any]], length: int
) -> list[AppliedEdit]:
    """Convert every edit to interventions; positions are counted from the start of the prompt."""
    return [_Reader(model, prompt, length).read(touch) for touch in touches]


def together(edits: Sequence[AppliedEdit]) -> Intervention | None:
    """Combine all edits into one intervention, in order; None without edits."""
    parts = tuple(part for edit in edits for part in edit.parts)
    if len(parts) < 2:
        return parts[0] if parts else None
    return Combined(parts)


class _Reader:
    def __init__(self, model: Model, prompt: Encoded, length: int) -> None:
        self.model, self.prompt, self.start = model, prompt, len(prompt.ids)
        self.length = length

    def read(self, touch: Mapping[str, Any]) -> AppliedEdit:
        kind, step = str(touch["kind"]), int(touch["step"])
        parts, text = getattr(self, f"_{kind}")(touch, step)
        for part in parts:
            part.check(self.model)
        return AppliedEdit(tuple(parts), text, tuple(code_of(part) for part in parts))

    def _force(self, touch: Mapping[str, Any], step: int) -> tuple[list[Intervention], str]:
        (place,) = self._answers([touch["position"]], "force")
        part = ForceToken(place, int(touch["token"]), step)
        part.check(self.model)
        (word,) = self.model.token_texts([part.token])
        if not self.model.is_diffusion:
            part = replace(part, step=None)
        return [part], f"after step {step}, answer position {place} is {word!r}"

    def _remask(self, touch: Mapping[str, Any], step: int) -> tuple[list[Intervention], str]:
        places = self._answers(touch["positions"], "remask")
        text = f"after step {step}, {_listed('answer position', places)} masked again"
        return [Remasked(places, step)], text

    def _ablate(self, touch: Mapping[str, Any], step: int) -> tuple[list[Intervention], str]:
        heads = tuple((int(layer), int(head)) for layer, head in touch["heads"])
        part = AblateHeads(heads, "zero", slice(step, None))
        part.check(self.model)
        if touch.get("to") == "mean":
            part = replace(part, to="mean", reference=HeadMeans.of(self.model, [self.prompt]))
        effect = "ablated to its mean over the prompt" if part.to == "mean" else "ablated"
        return [part], f"from step {step}, {_listed_heads(heads, self.model.n_heads)} {effect}"

    def _hide(self, touch: Mapping[str, Any], step: int) -> tuple[list[Intervention], str]:
        parts = [MaskTokens(**where) for where in self._keys(touch, step)]
        return list(parts), f"from step {step}, {self._said(touch)} hidden{_where(touch)}"

    def _value(self, touch: Mapping[str, Any], step: int) -> tuple[list[Intervention], str]:
        to = str(touch.get("to", "zero"))
        parts = [MaskValues(**where, to=to) for where in self._keys(touch, step)]
        effect = "without its value" if to == "zero" else "with the mean value"
        return list(parts), f"from step {step}, {self._said(touch)} {effect}{_where(touch)}"

    def _cut(self, touch: Mapping[str, Any], step: int) -> tuple[list[Intervention], str]:
        queries, keys = tuple(touch["queries"]), tuple(touch["keys"])
        region_names = {*self.prompt.names, "answer", "masked", "revealed", "gold", "predicting"}
        for name in (*queries, *keys):
            if name not in region_names:
                raise UsageError(
                    f"cut: no region {name!r:.60}", f"There are: {', '.join(sorted(region_names))}."
                )
        part = CutEdges(
            **_chosen(touch), steps=slice(step, None), queries=queries, keys=keys, control=None
        )
        rows = (_SAID.get(name, name) for name in queries)
        sentence = f"{' and '.join(rows)} do not see {' and '.join(_SAID.get(k, k) for k in keys)}"
        return [part], f"from step {step}, {sentence}{_where(touch)}"

    # Positions

    def _answers(self, positions: Sequence[int], what: str) -> list[int]:
        """Convert positions to sorted places in the answer, from 0; raise UsageError outside the answer."""
        for position in positions:
            if not self.start <= position < self.start + self.length:
                raise UsageError(
                    f"{what}: position {position} is not one of the answer's, "
                    f"{self.start}–{self.start + self.length - 1}",
                    "Choose a position behind the prompt.",
                )
        return sorted({int(p) - self.start for p in positions})

    def _keys(self, touch: Mapping[str, Any], step: int) -> list[dict[str, Any]]:
        """Return the parameters of the interventions that mask an edit's positions as keys.

        Positions of the prompt and positions of the answer need separate interventions. The list therefore
        has one or two entries.
        """
        positions, size = [int(p) for p in touch["positions"]], self.start + self.length
        if max(positions) >= size:
            raise UsageError(
                f"{touch['kind']}: position {max(positions)} of {size}", "Choose one that is there."
            )
        common = {**_chosen(touch), "steps": slice(step, None)}
        prompt_positions = sorted({p for p in positions if p < self.start})
        answer_places = sorted({p - self.start for p in positions if p >= self.start})
        parts = [common | {"positions": prompt_positions}] if prompt_positions else []
        return parts + (
            [common | {"regions": tuple(f"answer {place}" for place in answer_places)}]
            if answer_places
            else []
        )

    def _said(self, touch: Mapping[str, Any]) -> str:
        return _listed("position", sorted({int(p) for p in touch["positions"]}))


def code_of(part: Intervention) -> str:
    """Return a Python call that creates the intervention, with the variables `model` and `prompt`."""
    if isinstance(part, AblateHeads) and part.reference is not None:
        return f"fs.interventions.{replace(part, reference=None).describe()[:-1]}, {_MEAN})"
    return f"fs.interventions.{part.describe()}"


def _chosen(touch: Mapping[str, Any]) -> dict[str, Any]:
    return {name: touch.get(name) for name in ("layers", "heads")}


def _where(touch: Mapping[str, Any]) -> str:
    parts = [
        f"{name} {', '.join(map(str, touch[name]))}"
        for name in ("layers", "heads")
        if touch.get(name) is not None
    ]
    return f" in {' and '.join(parts)}" if parts else ""


def _listed_heads(heads: Sequence[tuple[int, int]], n_heads: int) -> str:
    """List heads as text, complete layers by number, and at most 12 single heads."""
    by_layer: dict[int, set[int]] = {}
    for layer, head in heads:
        by_layer.setdefault(layer, set()).add(head)
    complete_layers = [layer for layer, chosen in by_layer.items() if len(chosen) == n_heads > 1]
    names = [_listed("layer", sorted(complete_layers))] if complete_layers else []
    single = [f"layer {layer} head {head}" for layer, head in heads if layer not in complete_layers]
    names += [*single[:12], *["…"] * (len(single) > 12)]
    return ", ".join(names)


def _listed(what: str, numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:12])) + (" …" if len(numbers) > 12 else "")
    return f"{what}{'s' if len(numbers) > 1 else ''} {shown}"
