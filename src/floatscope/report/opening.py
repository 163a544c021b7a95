"""Draw the picture at the top of the page: attention step by step, in one layer of each kind of model.

The picture is drawn from scenes that the run stores. The diffusion model is drawn at the layer whose anchor
moves most, and the causal model at the same layer.
"""

import base64
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Float

from ..plots import Figure, figure_size
from ..plots.steps import draw_steps
from ..scenes.codec import missing_code
from ..scenes.parts import Scene
from ..studies.draw import Picture
from ..studies.findings import Findings
from ..studies.verdict import NOT_TESTABLE

_MOVEMENT = "movement-states"  # where a run says which layers move
_CLAIM = "3"
_POINTS = 9  # of letters: the picture is looked at from afar


@dataclass(frozen=True)
class _Stored:
    """A stored scene: its run, model and example, and its place (shard id and index)."""

    findings: Findings
    model: str
    example: str
    place: tuple[str, int]

    def read(self) -> Scene:
        return self.findings.scene(*self.place)


def opening_pictures(findings: Findings) -> list[Picture]:
    """Return a picture of the diffusion model and one of the causal model, if their scenes are stored."""
    mdm = next(_scenes(findings, "MDM"), None)
    arm = _causal(findings, mdm)
    first = mdm or arm
    if first is None:
        return []
    layer = _layer(first, first.read())
    return [
        _picture(stored, layer, other_text=stored.example != first.example)
        for stored in (mdm, arm)
        if stored is not None
    ]


def _scenes(findings: Findings, kind: str) -> Iterator[_Stored]:
    """Yield the stored scenes of a kind of model ("MDM" or "ARM"), first of the run that decides claim 3."""
    decides = (c for c in findings.verdicts if c.number == _CLAIM and c.verdict != NOT_TESTABLE)
    first = next((findings.source(claim) for claim in decides), findings)
    parts = [first, *(p for p in (findings, *findings.extra_runs) if p is not first)]
    for part in parts:
        for model, example, shard, index in part.shown():
            if part.kind(model) == kind:
                yield _Stored(part, model, example, (shard, index))


def _causal(findings: Findings, mdm: _Stored | None) -> _Stored | None:
    """Return the causal model's scene of the same example, or else its first scene; None if it has none."""
    causal = list(_scenes(findings, "ARM"))
    twins = (stored for stored in causal if mdm and stored.example == mdm.example)
    return next(twins, causal[0] if causal else None)


def _layer(stored: _Stored, scene: Scene) -> int:
    """Return the index of the layer whose anchor moves most.

    If the run measured movement, this is the layer whose anchor moves in most texts of the run. Otherwise it
    is the layer whose strongest key changes most often in this scene, weighted by the key's share of
    attention.
    """
    part = stored.findings
    moved = part.result(_MOVEMENT, stored.model) if _MOVEMENT in part.measures else None
    if moved is not None and moved.data["moved"].notnull().any():
        return int(np.nan_to_num(moved.data["moved"].values).argmax())
    share = _shares(scene)
    top = np.nan_to_num(share, nan=-1).argmax(-1)  # (step, layer)
    changes = (np.diff(top, axis=0) != 0).mean(0) if len(top) > 1 else np.zeros(share.shape[1])
    return int((changes * np.nan_to_num(share).max(-1).mean(0)).argmax())


def _picture(stored: _Stored, layer: int, *, other_text: bool) -> Picture:
    scene, kind = stored.read(), stored.findings.kind(stored.model)
    index = min(layer, len(scene["layers"]) - 1)
    share = _shares(scene)[:, index]
    top = np.nan_to_num(share, nan=-1).argmax(1)
    places = len(set(top.tolist()))
    movement = f"{places} anchor{'s' if places > 1 else ''} over {len(top)} steps"
    if other_text:
        movement += " (another text)"
    model = f"{'Diffusion' if kind == 'MDM' else 'Causal'} model {stored.model}"
    name = f"{model}, layer {scene['layers'][index]}"
    alt = (
        f"{name}: share of attention by step and position. The strongest key is at position "
        f"{', '.join(map(str, dict.fromkeys(top.tolist())))}."
    )
    draw = partial(_draw, share, int(scene["prompt_length"]), f"{name}\n{movement}")
    return Picture(f"opening-{kind.lower()}", f"{kind} · {name}", alt, draw)


def _draw(share: np.ndarray, prompt_length: int, title: str) -> Figure:
    with figure_size(font_size=_POINTS):
        return draw_steps(share, prompt_length, title)


def _shares(scene: Scene) -> Float[np.ndarray, "step layer key"]:
    """Return each key's share of attention from masked positions or, if there are none, from all positions.

    Attention from all positions is used for causal models, and for a scene in which some step has no masked
    position.
    """
    groups: Any = scene.get("from")
    if scene["model"]["direction"] != "causal" and groups and "masked" in groups["names"]:
        masked = _unpacked(groups["share"])[:, groups["names"].index("masked")]
        if np.isfinite(masked).any((1, 2)).all():  # some position is masked at every step
            return masked
    return _unpacked(scene["share"])


def _unpacked(packed: Any) -> np.ndarray:
    """Return the values of a packed `log` array."""
    stored = np.dtype(packed["dtype"]).newbyteorder("<")
    codes = np.frombuffer(base64.b64decode(packed["data"]), stored).reshape(packed["shape"])
    values = np.exp2(packed["offset"] + packed["scale"] * (codes.astype(float) - 1))
    return np.where(
        codes == missing_code(packed["dtype"]), np.nan, np.where(codes == 0, 0.0, values)
    )
