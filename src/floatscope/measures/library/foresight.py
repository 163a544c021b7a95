"""Foresight: whether a masked position already predicts the token that will be revealed there.

An untrained model may predict the same token at every position. The null therefore compares the prediction
with the tokens at the same position in the answers to other prompts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import xarray as xr
from jaxtyping import Int

from ...plots import SHARE, Figure, lines
from ...trace import Trace
from ..base import Measure
from ..result import Result, side_by_side


@dataclass(frozen=True)
class Foresight(Measure):
    """Share of masked positions whose arg-max is already the token revealed there later, against chance.

    A case is a content token of an answer (end tokens are not content) and a step before the step that
    reveals the token:

    - `known`: by layer, share of cases in which the logit lens's arg-max is the final token
    - `before`: the same share in the last kept layer, by the number of steps until the reveal
    - `early`: the same share in the last kept layer, over all cases
    - `waits`: number of cases
    - `elsewhere`: the same as `early`, for answers with more than one content token; null: how often the
      arg-max is the token at another position of the same answer

    The null of the other values uses, in place of the final token, the final tokens of the other examples'
    answers at the same position, if they are content. Examples of several networks are compared within each
    network. Positions at which no other example has content do not count. The values are NaN with one
    example, and for a causal model, which predicts each position once.
    """

    needs: ClassVar[tuple[str, ...]] = ("lens",)
    windows: ClassVar[bool] = True
    own_tokens: ClassVar[bool] = True
    units: ClassVar[dict[str, str]] = {
        **dict.fromkeys(("known", "before", "early", "elsewhere"), "share"),
        "waits": "positions × steps",
    }

    def compute(self, trace: Trace) -> xr.Dataset:
        """Return token ids; `summarise` computes the values, because the null needs all examples."""
        start, steps = int(trace.info["prompt_length"]), trace.data["step"].values
        final = trace.canvas.values[-1, start:]
        empty = [int(trace.info.get("mask_id", -1)), *map(int, trace.info.get("end_ids", ()))]
        content = (final >= 0) & ~np.isin(final, empty)
        reveals = trace.change.values[:, start:] == 1  # (step, place)
        last = np.where(reveals.any(0), len(reveals) - 1 - reveals[::-1].argmax(0), -1)
        guess = trace.lens["token"].transpose("step", "layer", "key").values[:, :, start:]
        ahead = last - steps[:, None]  # number of steps until the reveal
        waiting = (ahead > 0)[:, None] & content & (guess >= 0)
        if trace.info["direction"] == "causal":
            waiting = np.zeros_like(waiting)
        ids = {
            "guess": (("step", "layer", "place"), np.where(waiting, guess, -1)),
            "final": (("place",), np.where(content, final, -1)),
            "ahead": (("step", "place"), ahead),
        }
        return xr.Dataset(ids, {"place": np.arange(len(final))})

    def summarise(self, examples: Sequence[xr.Dataset], model: str) -> Result:
        """Compute each example's values and their null from the other examples, and combine all examples."""
        # The n-th example with the same id belongs to the n-th network; examples without id to the first.
        ids = pd.Series([example.attrs.get("id") for example in examples], dtype=object)
        networks = ids.groupby(ids).cumcount().where(ids.notna(), 0).reindex(ids.index).to_numpy()
        joined = side_by_side([example[["final"]] for example in examples])
        final = joined["final"].fillna(-1).astype(int)
        farthest = max(1, *(int(example["ahead"].max(initial=1)) for example in examples))
        compared = []
        for number, example in enumerate(examples):
            same_network = networks == networks[number]
            same_network[number] = False
            other_finals = final.values[same_network][:, : example.sizes["place"]]
            compared.append(_values(example, other_finals, farthest).assign_attrs(id=ids[number]))
        return super().summarise(compared, model)

    def plot(self, result: Result) -> Figure:
        return lines(
            result,
            ("arg-max is the later token", "known", SHARE),
            ("the same in the last layer", "before", SHARE),
            note=": still masked (dotted: other prompts)",
            width=2.9,
        )


def _values(example: xr.Dataset, other_tokens: Int[np.ndarray, "n p"], farthest: int) -> xr.Dataset:
    """Compute the shares of one example, and the null shares from other examples' tokens."""
    guess = example["guess"].transpose("step", "layer", "place").values
    final, ahead = example["final"].values, example["ahead"].transpose("step", "place").values
    content = other_tokens >= 0  # (example, place)
    waiting = (guess >= 0) & content.any(0)
    right = waiting & (guess == final)
    matches = (guess[None] == other_tokens[:, None, None]) & content[:, None, None]
    chance = np.where(waiting, matches.sum(0) / np.maximum(content.sum(0), 1), 0.0)
    far = np.arange(1, farthest + 1)
    last, waits = guess[:, -1], waiting[:, -1]  # (step, place)
    words = final[final >= 0]  # content tokens of the answer
    at_others = (last[..., None] == words).sum(-1) - (last == final)
    several = (last >= 0) & (len(words) > 1)
    values: dict[str, Any] = {
        "elsewhere": _mean(last == final, several),
        "elsewhere_null": _mean(at_others / max(len(words) - 1, 1), several),
    }
    for end, hits in (("", right), ("_null", chance)):
        layers = range(hits.shape[1])
        values[f"known{end}"] = "layer", [_mean(hits[:, i], waiting[:, i]) for i in layers]
        values[f"before{end}"] = "ahead", [_mean(hits[:, -1], waits & (ahead == n)) for n in far]
        values[f"early{end}"] = _mean(hits[:, -1], waits)
    values["waits"] = float(waits.sum())
    return xr.Dataset(values, {"layer": example["layer"].values, "ahead": far})


def _mean(hits: np.ndarray, chosen: np.ndarray) -> float:
    return float(hits[chosen].mean()) if chosen.any() else np.nan
