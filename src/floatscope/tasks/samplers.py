"""Samplers compared on one task: do they answer as well, how many steps do they take, in what order?

One model, one set of questions, one number of masks. What differs is the order in which positions
are revealed, and that is shown beside the accuracy.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from ..decode import Sampler, all_samplers
from ..measures import DecodingOrder, Result
from ..measures.library.order import maps
from ..models import Model
from ..plots import Figure
from ..sequences.decoding import Progress
from .answers import Answers, evaluate
from .record import Record

_ORDER = ("left_to_right", "boundary", "ends_first", "trivial", "end_or_trivial")


@dataclass(frozen=True, eq=False)
class SamplersCompared:
    """Answers and decoding orders by sampler."""

    answers: dict[str, Answers]
    orders: dict[str, Result] = field(repr=False)

    def table(self) -> pd.DataFrame:
        """One line per sampler: accuracy with interval, steps, and the order's numbers."""
        lines = []
        for name, answers in self.answers.items():
            line: dict[str, Any] = {"name": name, **answers.summary()}
            order = self.orders[name].data
            for value in _ORDER:
                line[value] = float(order[value])
                for end in ("low", "high", "null"):
                    line[f"{value}_{end}"] = float(order[f"{value}_{end}"])
            lines.append(line)
        return pd.DataFrame(lines)

    def plot(self) -> Figure:
        """The map of every sampler: when is each part of the answer revealed?"""
        titles = {
            name: f"{name}\n{100 * answers.mean()[0]:.0f} % right"
            if "contains" in answers.scores
            else name
            for name, answers in self.answers.items()
        }
        return maps({titles[name]: order for name, order in self.orders.items()})


def compare_samplers(
    model: Model,
    records: Sequence[Record],
    samplers: Mapping[str, Sampler] | None = None,
    *,
    length: int = 32,
    steps: int | None = None,
    frequencies: str | Path | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> SamplersCompared:
    """Ask the same questions with every sampler (all of them by default).

    `frequencies` serves the calibrated sampler and the share of trivial tokens; `options` are
    `evaluate`'s: condition, template, intervention, batch_size, skip_bad. The default samplers have no
    early stop: an order can be read only where every position is revealed.
    """
    presets = all_samplers(length, steps, frequencies)
    whole = {name: replace(one, stop_at_eos=False) for name, one in presets.items()}
    chosen = dict(samplers or whole)
    measure = DecodingOrder(frequencies=frequencies)
    answers: dict[str, Answers] = {}
    orders: dict[str, Result] = {}
    for number, (name, sampler) in enumerate(chosen.items()):

        def tick(done: int, of: int, before: int = number) -> None:
            if progress:
                progress(before * of + done, len(chosen) * of)

        answers[name] = evaluate(model, records, sampler, progress=tick, **options)
        orders[name] = measure.of_decodings(answers[name].decodings, model.name, model.end_ids)
    return SamplersCompared(answers, orders)
