"""Curves, bars and maps of measurements: the plain charts behind `charts`."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from kernelbook.chart_style import (
    GRAY,
    MARKERS,
    PALETTE,
    RECORDED,
    YOURS,
    canvas,
    number,
    spread,
    styled,
    text_size,
)


def series(rows: Sequence[dict], x: str | Callable, scale=1.0) -> dict:
    """Rows of records as the curves that `lines` draws: {variant: [(x, median, p10, p90), ...]}.

    x      a key of the row or of its shape, or a function of the row.
    scale  multiplies the recorded microseconds (1e-3 for milliseconds).
    """

    def abscissa(row):
        return x(row) if callable(x) else row["shape"].get(x, row.get(x))

    curves: dict[str, list] = {}
    for row in sorted(rows, key=abscissa):
        median = row["median_us"]
        times = (median, row.get("p10_us", median), row.get("p90_us", median))
        curves.setdefault(row["variant"], []).append((abscissa(row), *(t * scale for t in times)))
    return curves


def _columns(points) -> tuple[np.ndarray, ...]:
    """x, median, p10, p90 of points given as (x, y) or (x, median, p10, p90)."""
    full = [
        point if len(point) == 4 else (point[0], point[1], point[1], point[1]) for point in points
    ]
    return tuple(np.array(column, dtype=float) for column in zip(*full, strict=True))


def binary(value: float, _=None) -> str:
    """Sizes as the field writes them: 2048 -> "2k", 1.5 -> "1.5"."""
    for unit, size in (("M", 2**20), ("k", 1024)):
        if value >= size and value % size == 0:
            return f"{value / size:.0f}{unit}"
    return number(value)


def _label_ends(axes, ends):
    """Curve names right of the axes, apart from each other, each with a thin line to its end.

    ends: (x, y, name, color) of the last point of each curve.
    """
    figure = axes.figure
    figure.draw_without_rendering()
    frame = axes.get_window_extent()
    height = text_size(figure, "Ag")[1] * 1.2
    pixels = [axes.transData.transform((x, y)) for x, y, *_ in ends]
    places = spread([y for _, y in pixels], height, frame.y0 + height / 2, frame.y1 - height / 2)
    for (px, py), place, (x, y, name, color) in zip(pixels, places, ends, strict=True):
        axes.annotate(
            name,
            (x, y),
            xytext=((frame.x1 + 12 - px) * 72 / figure.dpi, (place - py) * 72 / figure.dpi),
            textcoords="offset points",
            va="center",
            color=color,
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": color,
                "lw": 0.7,
                "shrinkA": 0,
                "shrinkB": 4,
                "relpos": (0, 0.5),
            },
        )


def _log_ticks(axis, values):
    """Ticks at the measured sizes themselves, thinned to at most eight."""
    values = sorted(set(values))
    kept = values[:: -(-len(values) // 8)]
    axis.set_major_locator(FixedLocator(kept))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(binary))


@styled
def lines(
    curves: Mapping[str, Sequence],
    xlabel: str,
    ylabel: str,
    yours: Mapping[str, Sequence] | None = None,
    logx: bool = True,
    logy: bool = True,
    reference: tuple[float, str] | None = None,
    title: str = "",
    caption: str = "",
) -> Figure:
    """Curves over a size, each with its p10..p90 band and its name at its right end.

    curves     {name: [(x, median, p10, p90) or (x, y), ...]}; from records: `series(rows, x="n")`.
    yours      the same, measured on the reader's machine: dashed, in the same color.
    reference  (y, text): a horizontal line, such as a bar to reach or a ceiling.
    """
    named = [(name, points, "-", name) for name, points in curves.items()]
    named += [(f"{name}, yours", points, "--", name) for name, points in (yours or {}).items()]
    named = [entry for entry in named if len(entry[1])]
    if not named:
        raise ValueError("lines got no points to draw")
    order = list(dict.fromkeys(base for *_, base in named))
    longest = max((name for name, *_ in named), key=len)
    figure, axes = canvas(3.8, caption, title=title, right=0.45 + 0.079 * len(longest))
    axes.set(xscale="log" if logx else "linear", yscale="log" if logy else "linear")
    ends = []
    for name, points, style, base in named:
        i = order.index(base)
        color, marker = PALETTE[i % len(PALETTE)], MARKERS[i % len(MARKERS)]
        x, median, low, high = _columns(points)
        axes.plot(x, median, style, color=color, marker=marker, ms=6, lw=1.8)
        axes.fill_between(x, low, high, color=color, alpha=0.18, lw=0)
        ends.append((x[-1], median[-1], name, color))
    if logx:
        _log_ticks(axes.xaxis, [point[0] for _, points, *_ in named for point in points])
    if logy:
        low, high = axes.get_ylim()
        axes.yaxis.set_major_locator(LogLocator(subs=(1,) if high > 100 * low else (1, 2, 5)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
        axes.yaxis.set_minor_formatter(FuncFormatter(lambda value, _: ""))
    else:
        axes.set_ylim(0, axes.get_ylim()[1] * 1.05)
    axes.grid(True, which="major")
    axes.set(xlabel=xlabel, ylabel=ylabel)
    if reference:
        axes.axhline(reference[0], color=GRAY, lw=1, ls=":")
        ends.append((axes.get_xlim()[1], *reference, GRAY))
    _label_ends(axes, ends)
    return figure


def _triple(value) -> tuple[float, float, float]:
    """(median, p10, p90) of a number, a triple, or a Timing."""
    if hasattr(value, "median_us"):
        return value.median_us, value.p10_us, value.p90_us
    return tuple(value) if isinstance(value, Sequence) else (value, value, value)


@styled
def bars(
    values: Mapping[str, object],
    xlabel: str,
    yours: Mapping[str, object] | None = None,
    reference: tuple[float, str] | None = None,
    title: str = "",
    caption: str = "",
) -> Figure:
    """A horizontal bar for each variant with its p10..p90 spread; the reader's own under it.

    values, yours  {name: number, (median, p10, p90), or Timing}.
    reference      (value, text): a vertical line, such as a ceiling.
    """
    yours = yours or {}
    names = list(dict.fromkeys([*values, *yours]))
    row = 0.62 if yours else 0.42
    left = 0.3 + 0.08 * max(map(len, names))
    figure, axes = canvas(row * len(names) + 0.3, caption, left=left, title=title)
    groups = [(values, RECORDED, "recorded" if yours else "")]
    groups += [(yours, YOURS, "yours")] if yours else []
    height = 0.7 / len(groups)
    widest = 0.0
    for g, (group, color, kind) in enumerate(groups):
        for y, name in enumerate(names):
            if name not in group:
                continue
            median, low, high = _triple(group[name])
            at = y + (g - (len(groups) - 1) / 2) * height
            axes.barh(at, median, height * 0.92, color=color)
            if high > low:
                axes.plot([low, high], [at, at], color="black", lw=1.3, marker="|", ms=6)
            label = f"{number(median)} {kind}".strip()
            axes.annotate(
                label,
                (max(high, median), at),
                (6, 0),
                textcoords="offset points",
                va="center",
                bbox={"fc": "white", "ec": "none", "pad": 0.5},
            )
            widest = max(widest, high, median)
    if reference:
        axes.axvline(reference[0], color=GRAY, lw=1.2, ls="--")
        axes.set_title(
            f"dashed: {reference[1]}", loc="right", fontsize=10.5, color=GRAY, weight="normal"
        )
        widest = max(widest, reference[0])
    axes.set(
        xlim=(0, widest * (1.25 if yours else 1.13)), ylim=(len(names) - 0.5, -0.5), xlabel=xlabel
    )
    axes.set_yticks(range(len(names)), names)
    axes.tick_params(axis="y", length=0)
    axes.grid(True, axis="x")
    return figure


@styled
def heatmap(
    values,
    rows: Sequence,
    columns: Sequence,
    xlabel: str,
    ylabel: str,
    unit: str,
    ratio: bool = False,
    title: str = "",
    caption: str = "",
) -> Figure:
    """A table in color, each cell with its number; NaN cells stay white and say "-".

    ratio  values are speedups: colors part at 1 (orange loses, purple gains).
    """
    table = np.asarray(values, dtype=float)
    if table.shape != (len(rows), len(columns)):
        raise ValueError(
            f"values are {table.shape}, for {len(rows)} rows and {len(columns)} columns"
        )
    left = 0.65 + 0.08 * max(len(str(row)) for row in rows)
    figure, axes = canvas(0.42 * len(rows) + 0.2, caption, left=left, right=0.2, title=title)
    finite = table[np.isfinite(table)]
    if ratio:
        reach = max(1.05, float(np.max(np.maximum(finite, 1 / finite))))
        norm, colors = LogNorm(1 / reach, reach), "PuOr"
    else:
        wide = finite.min() > 0 and finite.max() > 20 * finite.min()
        norm, colors = (LogNorm if wide else Normalize)(finite.min(), finite.max()), "cividis"
    image = axes.imshow(table, norm=norm, cmap=colors, aspect="auto")
    for i, j in np.ndindex(table.shape):
        text = number(table[i, j]) if np.isfinite(table[i, j]) else "-"
        r, g, b, _ = image.cmap(norm(table[i, j])) if np.isfinite(table[i, j]) else (1, 1, 1, 1)
        dark = 0.299 * r + 0.587 * g + 0.114 * b < 0.5
        axes.text(j, i, text, ha="center", va="center", color="white" if dark else "black")
    axes.set_xticks(range(len(columns)), [str(column) for column in columns])
    axes.set_yticks(range(len(rows)), [str(row) for row in rows])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set(xlabel=f"{xlabel}   (cells: {unit})", ylabel=ylabel)
    return figure
