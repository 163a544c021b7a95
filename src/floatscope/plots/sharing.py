"""Give figures of the same kind the same scales, so that two models can be compared by eye."""

from collections.abc import Iterable, Sequence
from typing import Any

from .drawing import Axes, Figure


def share_scales(figures: Iterable[Figure]) -> None:
    """Set the y axes and the colour scales of corresponding panels to their common range.

    A figure is not changed if its number of panels differs from that of the first figure. Maps keep their y
    axes, because models differ in their numbers of heads.

    Args:
        figures (iterable of Figure): Figures of one measure, one per model.
    """
    several = [_panels_of(figure) for figure in figures]
    several = [panels for panels in several if len(panels) == len(several[0])]
    if len(several) < 2:
        return
    for peers in zip(*several, strict=True):
        maps = [_maps_of(axis) for axis in peers]
        if any(maps):
            _share_colours([image for images in maps for image in images])
        elif len({(axis.get_yscale(), axis.yaxis_inverted()) for axis in peers}) == 1:
            low, high = zip(*(sorted(axis.get_ylim()) for axis in peers), strict=True)
            ends = min(low), max(high)
            for axis in peers:
                axis.set_ylim(*(reversed(ends) if axis.yaxis_inverted() else ends))


def _panels_of(figure: Figure) -> list[Axes]:
    return [axis for axis in figure.axes if axis.get_label() != "<colorbar>"]


def _maps_of(axis: Axes) -> list[Any]:
    candidates = [*axis.images, *axis.collections]
    return [image for image in candidates if image.get_array() is not None]


def _share_colours(images: Sequence[Any]) -> None:
    """Set the colour scales of images to their common range, if norms and colour maps are equal."""
    if len({(type(image.norm), image.get_cmap().name) for image in images}) > 1:
        return
    low, high = zip(*(image.get_clim() for image in images), strict=True)
    for image in images:
        image.set_clim(min(low), max(high))
