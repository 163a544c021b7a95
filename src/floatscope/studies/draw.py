"""Draw the figures of studies: a measure's figure for every model, and the shares of right answers."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from ..measures.result import Result
from ..plots import COLOURS, MARKERS, Figure, legend, panels, share_scales
from .claim import SHARES, Number
from .evidence import Evidence


@dataclass(frozen=True)
class Picture:
    """A figure of a page or of a paper, which is drawn when `draw` is called.

    Args:
        name (str): Name of the figure's file, without suffix.
        title (str): Title of the figure on the page.
        alt (str): Description of the figure in words.
        draw (callable): Function without arguments that draws the figure.
    """

    name: str
    title: str
    alt: str
    draw: Callable[[], Figure]


def dots(
    series: Mapping[str, Sequence[Number | None]],
    ticks: Sequence[str],
    label: str = "right (%)",
    *,
    width: float = 3.6,
) -> Figure:
    """Draw numbers as dots with intervals: one row per tick, and one marker per series in each row."""
    with panels(1, 1, width=width, height=0.6 + 0.24 * len(ticks)) as (figure, axes):
        axis = axes[0][0]
        for s, (name, numbers) in enumerate(series.items()):
            shift = (s - (len(series) - 1) / 2) * 0.22
            first = True
            for y, number in enumerate(numbers):
                if number is None:
                    continue
                scale = 100 if number.unit in SHARES else 1
                if number.low is not None and number.high is not None:
                    ends = [scale * number.low, scale * number.high]
                    axis.plot(ends, [y + shift] * 2, color=COLOURS[s], linewidth=1)
                axis.plot(
                    scale * number.value,
                    y + shift,
                    MARKERS[s],
                    color=COLOURS[s],
                    markersize=4,
                    label=name if first else None,
                )
                first = False
        axis.set_yticks(range(len(ticks)), ticks)
        axis.set(ylim=(len(ticks) - 0.5, -0.5), xlabel=label)
        axis.grid(axis="x", color="0.5", alpha=0.3, linewidth=0.6)
        axis.set_axisbelow(True)
        if len(series) > 1:
            legend(figure, axis, "upper")
    return figure


def draw_measure(evidence: Evidence, key: str, title: str, alt: str) -> list[Picture]:
    """Return a figure of a measure for each model, with the model's untrained control as light crosses.

    The figures of all models have the same scales.
    """
    controls = {model: evidence.control(key, model) for model in evidence.models}
    shown = {
        model: replace(result, control=controls[model])
        for model, result in evidence.results(key).items()
    }
    pictures = []
    for model in shown:
        beside = "" if controls[model] is None else " Light crosses: the untrained control."
        words = f"{alt} Model: {model}.{beside}"
        draw = partial(_on_shared_scales, shown, model)
        pictures.append(Picture(f"{key}-{slug(model)[-40:]}", f"{title}: {model}", words, draw))
    return pictures


def _on_shared_scales(results: Mapping[str, Result], model: str) -> Figure:
    figures = {name: result.plot() for name, result in results.items()}
    share_scales(figures.values())
    return figures[model]


def draw_answers(
    evidence: Evidence, settings: Sequence[str], name: str, title: str, alt: str
) -> Picture:
    """Return the figure of the share of right answers in each setting, with one series per model."""
    series = {m: [evidence.right(setting, m) for setting in settings] for m in evidence.models}
    return Picture(name, title, alt, partial(dots, series, settings))


def slug(text: str) -> str:
    """Return a text for file names: every run of characters other than letters and digits becomes "-"."""
    return re.sub(r"[\W_]+", "-", text).strip("-")
