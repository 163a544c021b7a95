"""Figures of answers: accuracies with intervals, side by side, in the look of all figures."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..measures.figures import COLOURS, MARKERS, canvas
from ..measures.result import Result
from .claim import Number
from .study import Picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from .findings import Findings


def dots(
    series: Mapping[str, Sequence[Number | None]],
    ticks: Sequence[str],
    label: str = "right (%)",
    *,
    width: float = 3.6,
) -> "Figure":
    """One row a setting, one marker a series, with its interval."""
    with canvas(1, 1, width=width, height=0.6 + 0.24 * len(ticks)) as (figure, axes):
        axis = axes[0][0]
        for s, (name, numbers) in enumerate(series.items()):
            shift = (s - (len(series) - 1) / 2) * 0.22
            first = True
            for y, number in enumerate(numbers):
                if number is None:
                    continue
                scale = 100 if number.unit in ("%", "points") else 1
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
        axis.grid(axis="x", color="0.9", linewidth=0.6)
        axis.set_axisbelow(True)
        if len(series) > 1:
            axis.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderpad=0)
    return figure


def of_measure(found: "Findings", key: str, title: str, alt: str) -> list[Picture]:
    """A measure's own figure for every model."""
    pictures = []
    for model, result in found.results(key).items():
        name = f"{key}-{_slug(model)}"
        pictures.append(
            Picture(name, f"{title}: {model}", f"{alt} Model: {model}.", _drawer(result))
        )
    return pictures


def _drawer(result: Result):  # type: ignore[no-untyped-def]
    return lambda: result.plot()


def _slug(text: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in text).strip("-")[-40:]
