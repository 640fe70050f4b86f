"""What makes a figure legible, measured on what is drawn: texts inside the picture and apart, no empty axes."""

from itertools import combinations

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

SLACK_PIXELS = 1.0


def faults(figure: Figure) -> list[str]:
    """What is wrong with a figure, in words; empty if nothing is."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer, found = canvas.get_renderer(), []
    boxes = [(text.get_text(), text.get_window_extent(renderer)) for text in _texts(figure)]
    for words, box in boxes:
        outside = box.x0 < -SLACK_PIXELS or box.y0 < -SLACK_PIXELS
        if outside or box.x1 > figure.bbox.width + SLACK_PIXELS or box.y1 > figure.bbox.height + SLACK_PIXELS:
            found.append(f"{words!r} is clipped at the figure's edge")
    for (words, box), (others, other) in combinations(boxes, 2):
        width = min(box.x1, other.x1) - max(box.x0, other.x0)
        height = min(box.y1, other.y1) - max(box.y0, other.y0)
        if width > SLACK_PIXELS and height > SLACK_PIXELS:
            found.append(f"{words!r} overlaps {others!r}")
    for axis in figure.axes:
        if not axis.has_data():
            found.append(f"axes {axis.get_title(loc='left')!r} are empty")
        legend = axis.get_legend()
        if legend:
            box = legend.get_window_extent(renderer)
            points = [point for line in axis.lines for point in line.get_transform().transform(line.get_xydata())]
            found += [f"the legend covers a point at {tuple(point)}" for point in points if box.contains(*point)]
    return found


def _texts(figure: Figure) -> list[Text]:
    """The texts that are seen: tick labels beyond an axis' limits exist too, and are not drawn."""
    hidden = set()
    for axis in figure.axes:
        for one in (axis.xaxis, axis.yaxis):
            low, high = sorted(one.get_view_interval())
            for tick in (*one.get_major_ticks(), *one.get_minor_ticks()):
                if not low - 1e-9 <= tick.get_loc() <= high + 1e-9:
                    hidden |= {tick.label1, tick.label2}
    return [
        text for text in figure.findobj(Text) if text.get_visible() and text.get_text().strip() and text not in hidden
    ]
