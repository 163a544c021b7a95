"""What a figure looks like on paper: is every word inside it, and how large are the letters?"""

from matplotlib.text import Text


def words(figure):
    """Texts that are drawn, once the layout is found; a tick beyond the axis is none."""
    figure.draw_without_rendering()
    axes = [axis for one in figure.axes for axis in (one.xaxis, one.yaxis)]
    drawn = {label for axis in axes for tick in axis._update_ticks() for label in labels(tick)}
    ticks = {
        label
        for axis in axes
        for tick in (*axis.majorTicks, *axis.minorTicks)
        for label in labels(tick)
    }
    every = [t for t in figure.findobj(Text) if t.get_visible() and t.get_text().strip()]
    return [text for text in every if text in drawn or text not in ticks]


def labels(tick):
    return tick.label1, tick.label2


def texts_outside(figure):
    """Words that leave the figure by more than a point."""
    edge = figure.dpi / 72
    found = []
    for text in words(figure):
        box = text.get_window_extent()
        inside = box.x0 >= -edge and box.x1 <= figure.bbox.x1 + edge
        if not (inside and box.y0 >= -edge and box.y1 <= figure.bbox.y1 + edge):
            found.append(text.get_text())
    return found
