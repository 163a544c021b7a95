"""Compare samplers on one task by accuracy, number of steps and decoding order.

All samplers get the same model, questions and number of masks. The samplers differ only in the order in which
they reveal positions; this order is reported next to the accuracy.
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
    """The answers and the decoding order of each sampler.

    Args:
        answers (dict of str to Answers): The answers, by the sampler's name.
        orders (dict of str to Result): The results of `DecodingOrder`, by the sampler's name.
    """

    answers: dict[str, Answers]
    orders: dict[str, Result] = field(repr=False)

    def table(self) -> pd.DataFrame:
        """Return one row per sampler: scores and decoding-order values with their intervals, and steps."""
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
        """Draw one map per sampler, which shows when each part of the answer is revealed."""
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
    """Ask the same questions with several samplers, and compare their answers and decoding orders.

    Args:
        model (Model): A loaded model.
        records (sequence of Record): The questions.
        samplers (mapping of str to Sampler): The samplers by name. By default all samplers, without early
            stop, because an order is defined only if every position is revealed.
        length (int): Number of masks for the default samplers; 32 by default.
        steps (int): Number of steps for the default samplers; by default one step per mask.
        frequencies (str or Path): A .npy file with the share of each token id in a corpus. The
            position-calibrated sampler and the share of trivial tokens use the file; None by default.
        progress (callable): Called with (questions done, questions in all), over all samplers.
        **options: Options of `evaluate`: condition, template, intervention, batch_size, skip_bad.

    Returns:
        Answers and decoding orders by sampler, with `table()` and `plot()`.
    """
    presets = all_samplers(length, steps, frequencies)
    defaults = {name: replace(preset, stop_at_eos=False) for name, preset in presets.items()}
    chosen = dict(samplers or defaults)
    measure = DecodingOrder(frequencies=frequencies)
    answers: dict[str, Answers] = {}
    orders: dict[str, Result] = {}
    for number, (name, sampler) in enumerate(chosen.items()):

        def tick(completed: int, total: int, before: int = number) -> None:
            if progress:
                progress(before * total + completed, len(chosen) * total)

        answers[name] = evaluate(model, records, sampler, progress=tick, **options)
        orders[name] = measure.of_decodings(answers[name].decodings, model.name, model.end_ids)
    return SamplersCompared(answers, orders)
