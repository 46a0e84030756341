"""Splits, programs, waves and the tail of a decode launch, for any shape and GPU.

A program takes one split of one KV head of one sequence; a GPU runs one program on each SM at a
time (`per_sm` where a kernel lets more of them fit), and gives the next program to the SM that is
free first. Time is counted in tiles of KV. `splits_explorer` varies the arguments of `plan` and
`splits_figure`, which work as plain calls where widgets do not render.
"""

import heapq
from dataclasses import dataclass
from functools import cached_property

import ipywidgets as widgets
import matplotlib.pyplot as plt
import numpy as np
import torch
from IPython.display import display
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from kernelbook import backend, tables
from kernelbook.chart_style import BLUE, SKY, canvas, number, styled
from kernelbook.kernels import attention_decode
from kernelbook.work import MACHINES

__all__ = ["Plan", "plan", "splits_explorer", "splits_figure", "splits_table"]

GROUP, HEAD_DIM, DTYPE = 4, 128, torch.bfloat16  # what the launcher is asked about
COUNTS = (1, 2, 4, 8, 16, 32, 64)
IDLE = "#DDDDDD"


@dataclass(frozen=True)
class Plan:
    """How a launch cuts `batch` sequences of `length` tokens, and how it fills a machine's SMs."""

    machine: str
    batch: int
    kv_heads: int
    length: int
    splits: int  # asked for; `used` of them have tokens
    tile: int
    per_sm: int = 1

    @property
    def slots(self) -> int:
        """Programs that run at the same time: SMs × programs an SM."""
        return MACHINES[self.machine].sms * self.per_sm

    @property
    def tiles(self) -> int:
        """Tiles of one KV head of one sequence."""
        return -(-self.length // self.tile)

    @property
    def each(self) -> int:
        """Tiles of a split; the last one may have fewer."""
        return -(-self.tiles // self.splits)

    @property
    def used(self) -> int:
        """Splits that have a tile."""
        return -(-self.tiles // self.each)

    @property
    def programs(self) -> int:
        """Programs with work: one for each split of each KV head of each sequence."""
        return self.batch * self.kv_heads * self.used

    @property
    def waves(self) -> float:
        """Programs over places: 0.25 leaves three quarters idle, 1.1 needs a second turn."""
        return self.programs / self.slots

    @property
    def idle_in_tail(self) -> int:
        """Places without a program in the last turn."""
        return -self.programs % self.slots

    @cached_property
    def schedule(self) -> np.ndarray:
        """[slots, time]: 1 or 2 where a place works in an odd or even turn, 0 where it is idle."""
        last = self.tiles - (self.used - 1) * self.each
        free = [(0, slot) for slot in range(self.slots)]
        turns, blocks = [0] * self.slots, []
        for program in range(self.programs):
            start, slot = heapq.heappop(free)
            end = start + (last if program % self.used == self.used - 1 else self.each)
            turns[slot] += 1
            blocks.append((slot, start, end, 2 - turns[slot] % 2))
            heapq.heappush(free, (end, slot))
        busy = np.zeros((self.slots, max(end for *_, end, _ in blocks)), dtype=np.uint8)
        for slot, start, end, shade in blocks:
            busy[slot, start:end] = shade
        return busy

    @property
    def time(self) -> int:
        """Tiles until the last program ends."""
        return self.schedule.shape[1]

    @property
    def in_use(self) -> float:
        """Share of places × time that does work."""
        return float((self.schedule > 0).mean())

    @property
    def cut(self) -> str:
        """ "16 splits of 4 tiles"."""
        kinds = ("split" if self.used == 1 else "splits", "tile" if self.each == 1 else "tiles")
        return f"{self.used} {kinds[0]} of {self.each:,} {kinds[1]}"

    def __str__(self) -> str:
        sms = MACHINES[self.machine].sms
        return (
            f"batch {self.batch}, {self.kv_heads} KV heads, {self.length:,} tokens in "
            f"{self.tiles:,} tiles of {self.tile}, on {self.machine} ({sms} SMs)\n"
            f"  {self.cut}: {self.programs:,} programs, "
            f"{number(self.waves)} waves, {self.idle_in_tail} of {self.slots} places idle in the "
            f"last turn\n"
            f"  the time of {self.time} tiles, {self.in_use:.0%} of the SMs' time in use"
        )


def plan(
    batch=1, kv_heads=8, length=8192, machine="H200", splits: int | None = None,
    tile: int | None = None, per_sm: int = 1,
) -> Plan:  # fmt: skip
    """The plan of a decode launch; print it.

    splits  runs that each sequence's KV is cut into; None: as `attention_decode` chooses
    tile    tokens of a tile; None: as `attention_decode` chooses for bf16 heads of 128
    Raises ValueError for an unknown machine and for sizes below 1.
    """
    if machine not in MACHINES:
        raise ValueError(f"machine must be one of {', '.join(MACHINES)}; got {machine!r}")
    sizes = {"batch": batch, "kv_heads": kv_heads, "length": length, "per_sm": per_sm}
    sizes |= {"splits": splits, "tile": tile}
    if any(size is not None and size < 1 for size in sizes.values()):
        raise ValueError(f"sizes are 1 or more, got {sizes}")
    tile = tile or tile_on(machine, batch, kv_heads)
    if splits is None:
        slots = MACHINES[machine].sms * per_sm
        splits = attention_decode.choose_splits(batch, kv_heads, length, slots, tile)
    return Plan(machine, batch, kv_heads, length, splits, tile, per_sm)


def tile_on(machine: str, batch: int, kv_heads: int) -> int:
    """Tokens of a tile that `attention_decode` takes on a machine."""
    one = MACHINES[machine]
    with backend.assume(sms=one.sms, capability=one.capability):
        device = torch.device("cpu")  # whose capability and SMs are the assumed ones
        sizes = batch, GROUP * kv_heads, kv_heads, HEAD_DIM, 1, DTYPE, DTYPE, device
        return attention_decode.tile(*sizes).block_n


def splits_table(batch=1, kv_heads=8, length=8192, machine="H200", counts=COUNTS) -> str:
    """A line for each number of splits, the chosen one marked."""
    chosen = plan(batch, kv_heads, length, machine).splits
    rows = []
    for splits in sorted({*counts, chosen}):
        one = plan(batch, kv_heads, length, machine, splits)
        mark = "chosen" if splits == chosen else ""
        waves, used = f"{one.waves:.2f}", f"{one.in_use:.0%}"
        rows.append([splits, one.used, one.each, one.programs, waves, one.time, used, mark])
    header = ["splits", "with tokens", "tiles each", "programs", "waves", "time", "SMs in use", ""]
    return tables.plain(header, rows, left=0)


@styled
def splits_figure(batch=1, kv_heads=8, length=8192, machine="H200", splits=None) -> Figure:
    """Which SM works when: each turn of programs in its shade, idle SMs gray."""
    one = plan(batch, kv_heads, length, machine, splits)
    note = (
        f"{one.cut}: {one.programs:,} programs, {number(one.waves)} waves, "
        f"{one.in_use:.0%} of the SMs' time in use"
    )
    caption = f"Computed, not measured: {machine}, batch {batch}, {kv_heads} KV heads, "
    caption += f"{length:,} tokens, tiles of {one.tile}."
    figure, axes = canvas(2.6, caption, title="Which SM works when", note=note, right=1.3)
    axes.imshow(
        one.schedule, aspect="auto", cmap=ListedColormap([IDLE, BLUE, SKY]), vmin=0, vmax=2,
        extent=(0, one.time, one.slots, 0), interpolation="nearest",
    )  # fmt: skip
    axes.set(xlabel="time (tiles of KV)", ylabel="SM")
    names = {BLUE: "odd turns", SKY: "even turns", IDLE: "idle"}
    handles = [Patch(color=color, label=name) for color, name in names.items()]
    axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(1.0, 1.0), handlelength=1)
    return figure


def _powers(name: str, default: int, last: int) -> widgets.SelectionSlider:
    options = [(f"{2**i:,}", 2**i) for i in range(last + 1)]
    return widgets.SelectionSlider(options=options, value=default, description=name)


def splits_explorer() -> widgets.Widget:
    """Choose shape, GPU and splits (0: as the launcher chooses); see programs, waves and tail."""
    machine = widgets.Dropdown(options=list(MACHINES), description="machine")
    sliders = [_powers("batch", 1, 6), _powers("kv_heads", 8, 5), _powers("length", 8192, 17)]
    splits = widgets.IntSlider(0, 0, 64, description="splits")
    controls, shown = [machine, *sliders, splits], widgets.Output()

    def draw(_=None):
        shown.clear_output(wait=True)
        chosen = {control.description: control.value for control in controls}
        chosen["splits"] = chosen["splits"] or None
        with shown:
            print(plan(**chosen))
            figure = splits_figure(**chosen)
            display(figure)
            plt.close(figure)

    for control in controls:
        control.observe(draw, "value")
    draw()
    return widgets.VBox([widgets.HBox([machine, splits]), widgets.HBox(sliders), shown])
