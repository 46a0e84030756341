"""What all charts share: palette, margins, the caption, and labels that do not overlap."""

import functools
import math
import textwrap

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.text import Text
from matplotlib.transforms import Bbox

# Okabe and Ito's palette (jfly.uni-koeln.de/color) without its yellow, which vanishes on white.
BLUE, VERMILION, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
ORANGE, SKY, BLACK, GRAY = "#E69F00", "#56B4E9", "#000000", "#5F5F5F"
PALETTE = [BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, BLACK]
MARKERS = "osD^vPX"  # a second channel beside color
RECORDED, YOURS = BLUE, VERMILION

FONT_POINTS = 10.5
STYLE = {
    "font.size": FONT_POINTS,
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": "#E3E3E3",
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "legend.fontsize": FONT_POINTS,
    "xtick.labelsize": FONT_POINTS,
    "ytick.labelsize": FONT_POINTS,
    "figure.dpi": 100,
    "figure.facecolor": "white",
}


def styled(chart):
    """Decorator: draw a chart in the course's style, whatever the reader's own settings are."""

    @functools.wraps(chart)
    def wrapper(*args, **kwargs):
        with plt.rc_context(STYLE):
            figure = chart(*args, **kwargs)
            figure.draw_without_rendering()  # later ticks would have the reader's font sizes
            return figure

    return wrapper


def number(value: float) -> str:
    """Three significant digits, never an exponent: 4276.3 -> "4,280", 0.97123 -> "0.971"."""
    rounded = float(f"{value:.3g}")
    if abs(rounded) >= 1000:
        return f"{rounded:,.0f}"
    return f"{rounded:.10f}".rstrip("0").rstrip(".")


def canvas(
    plot_height=3.4,
    caption="",
    left=0.95,
    right=0.3,
    title="",
    note="",
    extra_bottom=0.0,
    width=8.0,
):
    """A figure whose axes are `plot_height` inches high; title, note and caption in place."""
    lines = textwrap.wrap(caption, 100)
    bottom = 0.62 + extra_bottom + 0.19 * len(lines)
    height = plot_height + bottom + 0.2 + (0.22 if title else 0) + (0.22 if note else 0)
    figure, axes = plt.subplots(figsize=(width, height))
    figure.subplots_adjust(
        left=left / width,
        right=1 - right / width,
        bottom=bottom / height,
        top=(bottom + plot_height) / height,
    )
    if title:
        axes.set_title(title, pad=27 if note else 10)
    if note:
        axes.annotate(note, (0, 1), (0, 8), xycoords="axes fraction", textcoords="offset points")
    if lines:
        y = 0.06 / height
        figure.text(
            left / width, y, "\n".join(lines), color=GRAY, fontsize=10, va="bottom", gid="caption"
        )
    return figure, axes


def text_size(figure, text: str, **style) -> tuple[float, float]:
    """Width and height in pixels that a text will take."""
    probe = figure.text(0, 0, text, **style)
    box = probe.get_window_extent(figure.canvas.get_renderer())
    probe.remove()
    return box.width, box.height


def spread(wanted: list[float], gap: float, low=-math.inf, high=math.inf) -> list[float]:
    """Positions near the wanted ones, at least `gap` apart, in the same order, within limits."""
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    groups = []  # [center, members], merged while they would collide
    for i in order:
        groups.append([wanted[i], [i]])
        while len(groups) > 1:
            (center, below), (next_center, above) = groups[-2:]
            if next_center - center >= gap * (len(below) + len(above)) / 2:
                break
            members = below + above
            groups[-2:] = [[sum(wanted[j] for j in members) / len(members), members]]
    placed = [0.0] * len(wanted)
    for center, members in groups:
        for rank, i in enumerate(members):
            placed[i] = center + gap * (rank - (len(members) - 1) / 2)
    for rank, i in enumerate(reversed(order)):
        placed[i] = min(placed[i], high - gap * rank)
    for rank, i in enumerate(order):
        placed[i] = max(placed[i], low + gap * rank)
    return placed


def _boxes_around(x, y, width, height):
    """Candidate boxes for a label at pixel (x, y), the nearest first, with their distance."""
    for distance in (9, 20, 34, 50, 70, 95, 125):
        for left in (x + distance, x - distance - width):
            for bottom in (y - height / 2, y + distance * 0.6, y - distance * 0.6 - height):
                yield distance, Bbox.from_bounds(left, bottom, width, height)
        for part in (0.5, 0.25, 0.75, 0, 1):
            for bottom in (y + distance, y - distance - height):
                yield distance, Bbox.from_bounds(x - part * width, bottom, width, height)


def _squares(pixels, half: float) -> np.ndarray:
    """[n, 4] boxes (left, bottom, right, top) around pixel positions."""
    centers = np.asarray(pixels, dtype=float).reshape(-1, 2)
    return np.hstack([centers - half, centers + half])


def _hits(box: Bbox, boxes: np.ndarray) -> int:
    """How many of the [n, 4] boxes a box overlaps."""
    left, bottom, right, top = boxes.T
    beside = (left > box.x1) | (right < box.x0) | (bottom > box.y1) | (top < box.y0)
    return int((~beside).sum())


def place_labels(axes, labels, markers=(), curve=()):
    """Write each (x, y, text, color) beside its point, clear of other labels and of the drawing.

    markers  data points (x, y) that no label may cover.
    curve    samples (x, y) of lines that labels keep off where they can.
    """
    figure = axes.figure
    figure.draw_without_rendering()
    frame = axes.get_window_extent()
    pixels = axes.transData.transform
    blocked = _squares([pixels(point) for point in markers], 6)
    soft = _squares([pixels(point) for point in curve], 2)
    taken = [text.get_window_extent() for text in axes.texts]
    taken += [axes.get_legend().get_window_extent()] if axes.get_legend() else []
    for x, y, text, color in labels:
        px, py = pixels((x, y))
        width, height = text_size(figure, text)

        def cost(candidate, distance):
            touches = sum(candidate.padded(4).overlaps(box) for box in taken) * 1e6
            inside = frame.x0 <= candidate.x0 and candidate.x1 <= frame.x1
            inside &= frame.y0 <= candidate.y0 and candidate.y1 <= frame.y1
            covered = 1e4 * _hits(candidate, blocked)
            on_line = 200 * _hits(candidate, soft)
            return touches + 1e6 * (not inside) + covered + on_line + distance

        candidates = _boxes_around(px, py, width, height)
        distance, box = min(candidates, key=lambda pair: cost(pair[1], pair[0]))
        taken.append(box)
        axes.annotate(
            text,
            (x, y),
            xytext=((box.x0 - px) * 72 / figure.dpi, (box.y0 - py) * 72 / figure.dpi),
            textcoords="offset points",
            color=color,
            arrowprops={"arrowstyle": "-", "color": GRAY, "lw": 0.6} if distance > 30 else None,
        )


def texts(figure) -> list[Text]:
    """Every non-empty text that is drawn (matplotlib keeps ticks outside the limits, undrawn)."""
    figure.draw_without_rendering()
    undrawn = set()
    for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
        drawn = {id(tick) for tick in axis._update_ticks()}
        for tick in [*axis.get_major_ticks(), *axis.get_minor_ticks()]:
            if id(tick) not in drawn:
                undrawn |= {id(tick.label1), id(tick.label2)}
    found = figure.findobj(Text)
    shown = [text for text in found if text.get_visible() and id(text) not in undrawn]
    return [text for text in shown if text.get_text().strip()]


def overlaps(figure) -> list[tuple[str, str]]:
    """Pairs of texts whose boxes overlap on the drawn figure, by more than a pixel."""
    # Text's own extent: an annotation's includes its leader line.
    boxes = [(t.get_text(), Text.get_window_extent(t).padded(-1)) for t in texts(figure)]
    return [
        (one, other)
        for i, (one, box) in enumerate(boxes)
        for other, other_box in boxes[i + 1 :]
        if box.overlaps(other_box)
    ]
