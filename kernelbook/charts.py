"""The course's figures. Each function returns a matplotlib Figure; `plt.show()` ends the cell.

Every chart labels its axes with units, its curves directly, and says in its caption where the
numbers come from (`records.caption`). Blue circles are recorded measurements, vermilion
diamonds yours, hollow markers predictions.
"""

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from kernelbook import amdahl
from kernelbook.chart_roofline import Point, roofline
from kernelbook.chart_style import (
    PALETTE,
    RECORDED,
    YOURS,
    canvas,
    number,
    styled,
    text_size,
)
from kernelbook.plots import bars, heatmap, lines, series

__all__ = ["Point", "amdahl_bars", "bars", "heatmap", "lines", "roofline", "series", "timeline"]

# --- Amdahl --------------------------------------------------------------------------------


def _stack(axes, y, parts: Mapping[str, float], colors, unit):
    """One horizontal bar of stacked parts, each labeled inside where the label fits."""
    figure, whole, start = axes.figure, sum(parts.values()), 0.0
    pixels = axes.get_window_extent().width / np.ptp(axes.get_xlim())
    for name, value in parts.items():
        axes.barh(y, value, 0.62, left=start, color=colors[name], edgecolor="white")
        text = f"{value / whole:.0%}"
        if text_size(figure, text)[0] + 6 < value * pixels:
            dark = colors[name] in ("#0072B2", "#000000", "#D55E00", "#009E73")
            color = "white" if dark else "black"
            axes.text(start + value / 2, y, text, ha="center", va="center", color=color)
        start += value
    axes.text(start, y, f"  {number(start)} {unit}", va="center", ha="left")


@styled
def amdahl_bars(
    before: Mapping[str, float],
    block: str,
    s: float,
    after: Mapping[str, float] | None = None,
    unit: str = "ms",
    title: str = "",
    caption: str = "",
) -> Figure:
    """A step's parts before, as predicted, and after `block` got s times faster.

    before, after  time of each part of the step, in `unit`, by name; `after` as measured.
    s              how many times faster the block alone was measured to be.
    """
    if block not in before:
        raise ValueError(f"{block!r} is not a part of the step: {', '.join(before)}")
    p = amdahl.share(before[block], sum(before.values()))
    steps = {"before": before, "predicted": before | {block: before[block] / s}}
    steps |= {"measured": after} if after else {}
    names = list(dict.fromkeys(name for parts in steps.values() for name in parts))
    names.sort(key=lambda name: name != block)  # the block first, at the left
    colors = dict(zip(names, [YOURS, RECORDED, *PALETTE[2:], "#BBBBBB", "#DDDDDD"], strict=False))
    speedups = f"{block} ({p:.0%}) {number(s)}x faster: "
    speedups += f"predicted {number(amdahl.speedup(p, s))}x"
    if after:
        speedups += f", measured {number(sum(before.values()) / sum(after.values()))}x"
    speedups += f", limit {number(amdahl.limit(p))}x"
    rows = -(-len(names) // 4)
    figure, axes = canvas(
        0.55 * len(steps) + 0.25,
        caption,
        1.1,
        title=title,
        note=speedups,
        extra_bottom=0.15 + 0.24 * rows,
    )
    widest = max(sum(parts.values()) for parts in steps.values())
    axes.set(xlim=(0, widest * 1.14), ylim=(-0.5, len(steps) - 0.5))
    for y, parts in enumerate(reversed(steps.values())):
        ordered = {name: parts[name] for name in names if name in parts}
        _stack(axes, y, ordered, colors, unit)
    axes.set_yticks(range(len(steps)), list(reversed(steps)))
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(f"time of one step ({unit})")
    handles = [Patch(color=colors[name], label=name) for name in names]
    legend_y = -0.5 / axes.bbox.height * figure.dpi
    axes.legend(
        handles=handles,
        ncols=min(4, len(names)),
        loc="upper left",
        bbox_to_anchor=(-0.02, legend_y),
        handlelength=1,
    )
    return figure


# --- timeline ------------------------------------------------------------------------------


def _short_kernel(name: str, width=34) -> str:
    """A kernel's name without its template arguments and namespaces."""
    name = name.removeprefix("void ").split("<")[0].split("(")[0].split("::")[-1].strip()
    return name if len(name) <= width else name[: width - 1] + "…"


def _busy_us(events) -> float:
    """Time during which at least one kernel runs, in µs."""
    busy, end = 0.0, -np.inf
    for event in sorted(events, key=lambda event: event.start_us):
        stop = event.start_us + event.duration_us
        busy += max(0.0, stop - max(end, event.start_us))
        end = max(end, stop)
    return busy


def _span_us(events) -> float:
    """From the first kernel's start to the last one's end, in µs."""
    return max(e.start_us + e.duration_us for e in events) - min(e.start_us for e in events)


def _tracks(timelines) -> dict[str, list]:
    """{row label: events}: one row a stream, each timeline starting at zero."""
    tracks = {}
    for name, timeline in timelines.items():
        events = list(getattr(timeline, "kernels", timeline))
        streams = sorted({event.stream for event in events}, key=str)
        for stream in streams:
            label = name if len(streams) == 1 else f"{name} stream {stream}".strip()
            tracks[label] = [event for event in events if event.stream == stream]
    return tracks


@styled
def timeline(timelines, title: str = "", caption: str = "") -> Figure:
    """Kernels as blocks on a row a stream; what stays white between them is the GPU idle.

    timelines  a `timeline.Timeline`, a list of its events, or {name: either} to compare.
    """
    if not isinstance(timelines, Mapping):
        timelines = {"GPU": timelines}
    starts = {}
    for name, one in timelines.items():
        events = list(getattr(one, "kernels", one))
        if not events:
            raise ValueError(f"the timeline {name!r} holds no kernel")
        starts[name] = (min(e.start_us for e in events), events)
    tracks = _tracks({name: events for name, (_, events) in starts.items()})
    zero = {id(e): start for start, events in starts.values() for e in events}
    totals: dict[str, float] = {}
    for event in (event for events in tracks.values() for event in events):
        short_name = _short_kernel(event.name)
        totals[short_name] = totals.get(short_name, 0) + event.duration_us
    top = sorted(totals, key=totals.get, reverse=True)[:6]
    colors = dict(zip(top, PALETTE, strict=False))
    ends = [e.start_us - zero[id(e)] + e.duration_us for es in tracks.values() for e in es]
    end = max(ends)
    unit, scale = ("ms", 1e-3) if end >= 5000 else ("µs", 1)
    busy = [
        f"{name}: busy {_busy_us(events) / _span_us(events):.0%}"
        for name, (_, events) in starts.items()
    ]
    rows = -(-(len(top) + (len(totals) > 6)) // 2)
    figure, axes = canvas(
        0.6 * len(tracks) + 0.15,
        caption,
        title=title,
        note=", ".join(busy),
        extra_bottom=0.12 + 0.24 * rows,
        left=1.5,
    )
    for y, events in enumerate(reversed(tracks.values())):
        blocks = [((e.start_us - zero[id(e)]) * scale, e.duration_us * scale) for e in events]
        faces = [colors.get(_short_kernel(e.name), "#BBBBBB") for e in events]
        axes.broken_barh(blocks, (y - 0.36, 0.72), facecolors=faces, edgecolor="white", lw=0.3)
    axes.set(xlim=(0, end * scale), ylim=(-0.5, len(tracks) - 0.5))
    axes.set_yticks(range(len(tracks)), list(reversed(tracks)))
    axes.tick_params(axis="y", length=0)
    axes.grid(True, axis="x")
    axes.set_xlabel(f"time since the first kernel began ({unit})")
    handles = [Patch(color=colors[name], label=name) for name in top]
    if len(totals) > 6:
        handles.append(Patch(color="#BBBBBB", label=f"{len(totals) - 6} other kernels"))
    legend_y = -0.5 / axes.bbox.height * figure.dpi
    axes.legend(
        handles=handles, ncols=2, loc="upper left", bbox_to_anchor=(-0.02, legend_y), handlelength=1
    )
    return figure
