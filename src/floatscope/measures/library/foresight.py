"""Foresight: while a position is still masked, does it already hold the token that will be revealed there?

A token that any prompt would get there is known without knowing anything: an untrained model says one word
everywhere, and keeps to it. So the null is the same question asked with the tokens of other prompts' answers,
at the same place. What a layer holds is read by the logit lens; it says nothing of what the layer is for.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import xarray as xr
from jaxtyping import Bool, Float, Int

from ...plots import SHARE, Figure, lines
from ...trace import Trace
from ..base import Measure
from ..result import Result


@dataclass(frozen=True)
class Foresight(Measure):
    """How often a masked position's arg-max is already the token revealed there later, beyond chance.

    Over the content of an answer (no end tokens), and every step before the one that reveals a position:

    - `known`: by layer, share of these where the lens's arg-max is the final token
    - `before`: by how many steps the reveal is away, the same in the last kept layer
    - `early`: the same in the last kept layer over all of them; `waits`: how many there are

    - `elsewhere`: as `early`, where the answer has content at another place too: beyond how often the
      arg-max is a token of another place of the same answer

    Null: the final tokens of the other examples' answers at the same place, where those are content; an
    example that stands there several times was decoded by several networks, each compared with itself. A
    place at which no other example has content does not count. NaN with one example, and for a causal
    model, which predicts a position once.
    """

    needs: ClassVar[tuple[str, ...]] = ("lens",)
    windows: ClassVar[bool] = True
    own_tokens: ClassVar[bool] = True
    units: ClassVar[dict[str, str]] = {
        **dict.fromkeys(("known", "before", "early", "elsewhere"), "share"),
        "waits": "positions × steps",
    }

    def compute(self, trace: Trace) -> xr.Dataset:
        """Token ids, not yet values: chance is known when all examples are there."""
        start, steps = int(trace.info["prompt_length"]), trace.data["step"].values
        final = trace.canvas.values[-1, start:]
        empty = [int(trace.info.get("mask_id", -1)), *map(int, trace.info.get("end_ids", ()))]
        content = (final >= 0) & ~np.isin(final, empty)
        reveals = trace.change.values[:, start:] == 1  # (step, place)
        last = np.where(reveals.any(0), len(reveals) - 1 - reveals[::-1].argmax(0), -1)
        guess = trace.lens["token"].transpose("step", "layer", "key").values[:, :, start:]
        ahead = last - steps[:, None]  # steps until the reveal
        waiting = (ahead > 0)[:, None] & content & (guess >= 0)
        if trace.info["direction"] == "causal":
            waiting = np.zeros_like(waiting)
        return xr.Dataset(
            {
                "guess": (("step", "layer", "place"), np.where(waiting, guess, -1)),
                "final": (("place",), np.where(content, final, -1)),
                "ahead": (("step", "place"), ahead),
            },
            {"step": steps, "layer": trace.data["layer"].values, "place": np.arange(len(final))},
        )

    def summarise(self, examples: Sequence[xr.Dataset], model: str) -> Result:
        finals = [one["final"].values for one in examples]
        most = max(one.sizes["place"] for one in examples)
        padded = np.stack([np.pad(f, (0, most - len(f)), constant_values=-1) for f in finals])
        farthest = max(1, *(int(one["ahead"].max(initial=1)) for one in examples))
        made = []
        networks = _networks([one.attrs.get("id") for one in examples])
        for number, example in enumerate(examples):
            same = networks == networks[number]
            same[number] = False
            others = padded[same][:, : example.sizes["place"]]
            values = _values(example, others, farthest)
            made.append(values.assign_attrs(id=example.attrs.get("id")))
        return super().summarise(made, model)

    def plot(self, result: Result) -> Figure:
        return lines(
            result,
            ("arg-max is the later token", "known", SHARE),
            ("the same in the last layer", "before", SHARE),
            note=": still masked (dotted: other prompts)",
            width=2.9,
        )


def _networks(ids: Sequence[str | None]) -> Int[np.ndarray, " n"]:
    """Which network decoded each example: a prompt's first decoding is the first network's, and so on."""
    seen: Counter[str | None] = Counter()
    found = []
    for one in ids:
        found.append(seen[one])
        seen[one] += one is not None
    return np.array(found)


def _values(example: xr.Dataset, others: Int[np.ndarray, "n p"], farthest: int) -> xr.Dataset:
    """Shares of one example, and what other examples' tokens would have earned."""
    guess = example["guess"].transpose("step", "layer", "place").values
    final, ahead = example["final"].values, example["ahead"].transpose("step", "place").values
    content = others >= 0  # (example, place)
    waiting = (guess >= 0) & content.any(0)
    right = waiting & (guess == final)
    same = (guess[None] == others[:, None, None]) & content[:, None, None]
    chance = np.where(waiting, same.sum(0) / np.maximum(content.sum(0), 1), 0.0)
    far = np.arange(1, farthest + 1)
    at = [waiting[:, -1] & (ahead == n) for n in far]  # (step, place) each
    last = guess[:, -1]
    own = final[final >= 0]  # one word everywhere is the token of every place
    at_others = (last[..., None] == own).sum(-1) - (last == final)  # (step, place)
    several = (last >= 0) & (len(own) > 1)
    values = {
        "elsewhere": ((), _mean(last == final, several)),
        "elsewhere_null": ((), _mean(at_others / max(len(own) - 1, 1), several)),
        "known": ("layer", _share(right, waiting)),
        "known_null": ("layer", _share(chance, waiting)),
        "before": ("ahead", np.array([_mean(right[:, -1], there) for there in at])),
        "before_null": ("ahead", np.array([_mean(chance[:, -1], there) for there in at])),
        "early": ((), _mean(right[:, -1], waiting[:, -1])),
        "early_null": ((), _mean(chance[:, -1], waiting[:, -1])),
        "waits": ((), float(waiting[:, -1].sum())),
    }
    return xr.Dataset(values, {"layer": example["layer"].values, "ahead": far})


def _share(
    hits: Float[np.ndarray, "t l p"] | Bool[np.ndarray, "t l p"], there: Bool[np.ndarray, "t l p"]
) -> Float[np.ndarray, " l"]:
    with np.errstate(invalid="ignore"):
        found: np.ndarray = hits.sum((0, 2)) / there.sum((0, 2))
    return found


def _mean(
    hits: Float[np.ndarray, "t p"] | Bool[np.ndarray, "t p"], there: Bool[np.ndarray, "t p"]
) -> float:
    return float(hits[there].mean()) if there.any() else np.nan
