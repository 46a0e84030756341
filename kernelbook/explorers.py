"""Widgets that vary the arguments of a function; the function's static result is the lesson.

`roofline_explorer` varies `roofline_answer`, `softmax_stepper` varies `softmax_figure`. Both work
as plain calls where widgets do not render. `guess` asks the reader before the notebook tells.
"""

from dataclasses import dataclass

import ipywidgets as widgets
import matplotlib.pyplot as plt
import torch
from IPython.display import display
from matplotlib.figure import Figure

from kernelbook import charts
from kernelbook.chart_style import BLUE, GRAY, SKY, VERMILION, canvas, number, styled
from kernelbook.guesses import Guess, guess
from kernelbook.kernels import attention_naive, attention_prefill, elementwise_chain, matmul
from kernelbook.online_softmax import softmax_steps, softmax_table
from kernelbook.work import MACHINES, Work

__all__ = [
    "Guess",
    "guess",
    "roofline_answer",
    "roofline_explorer",
    "softmax_figure",
    "softmax_stepper",
    "softmax_steps",
    "softmax_table",
]

# --- roofline ------------------------------------------------------------------------------


def _tiled(batch, heads, queries, keys, head_dim, dtype):
    return attention_prefill.work(batch, heads, heads, queries, keys, head_dim, dtype)


def _naive(batch, heads, queries, keys, head_dim, dtype):
    return attention_naive.work(batch, heads, heads, queries, keys, head_dim, dtype)


_ATTENTION = {"batch": 1, "heads": 16, "queries": 4096, "keys": 4096, "head_dim": 128}

# operator: (its work, its sizes with their defaults)
OPERATORS = {
    "matmul": (matmul.work, {"m": 4096, "n": 4096, "k": 4096}),
    "elementwise chain": (elementwise_chain.work, {"elements": 2**26}),
    "naive attention": (_naive, _ATTENTION),
    "tiled attention": (_tiled, _ATTENTION),
}
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


@dataclass(frozen=True)
class Answer:
    """An operator at given sizes on a machine: its work, its roofline bound."""

    operator: str
    sizes: dict[str, int]
    dtype: str
    machine: str
    work: Work

    @property
    def bound(self) -> str:
        return self.work.bound(MACHINES[self.machine], self.dtype)

    @property
    def seconds(self) -> float:
        return self.work.seconds(MACHINES[self.machine], self.dtype)

    def point(self) -> charts.Point:
        """Where it stands on the machine's roofline."""
        return charts.Point(self.operator, self.work)

    def __str__(self) -> str:
        sizes = ", ".join(f"{name} {size:,}" for name, size in self.sizes.items())
        ridge = MACHINES[self.machine].ridge(self.dtype)
        return (
            f"{self.operator}: {sizes}; {self.dtype} on {self.machine}\n"
            f"  {self.work.flops:,} FLOPs, {self.work.bytes:,} bytes\n"
            f"  {number(self.work.intensity)} FLOP/byte, ridge at {number(ridge)}: "
            f"bound by {self.bound}, {number(self.seconds * 1e6)} µs at least"
        )


def roofline_answer(operator="matmul", dtype="bf16", machine="H200", **sizes: int) -> Answer:
    """FLOPs, bytes, intensity and bound of an operator; print it, or draw its `point()`.

    sizes  of the operator, see OPERATORS; those left out have their default.
    Raises ValueError for an unknown operator, size, dtype or machine.
    """
    for name, value, known in [
        ("operator", operator, OPERATORS),
        ("machine", machine, MACHINES),
        ("dtype", dtype, DTYPES),
    ]:
        if value not in known:
            raise ValueError(f"{name} must be one of {', '.join(known)}; got {value!r}")
    rates = MACHINES[machine].flops_per_s
    if dtype not in rates:
        raise ValueError(f"{machine} has no {dtype} matrix units; it has {', '.join(rates)}")
    work, defaults = OPERATORS[operator]
    if unknown := sizes.keys() - defaults.keys():
        raise ValueError(f"{operator} has the sizes {', '.join(defaults)}; got {sorted(unknown)}")
    sizes = defaults | sizes
    if any(size < 1 for size in sizes.values()):
        raise ValueError(f"sizes are 1 or more, got {sizes}")
    return Answer(operator, sizes, dtype, machine, work(**sizes, dtype=DTYPES[dtype]))


def _power_of_two(name: str, default: int) -> widgets.SelectionSlider:
    options = [(f"{2**i:,}", 2**i) for i in range(0, 31 if name == "elements" else 16)]
    return widgets.SelectionSlider(options=options, value=default, description=name)


def roofline_explorer() -> widgets.Widget:
    """Choose operator, sizes, dtype and machine; see the point and the bound."""
    operator = widgets.Dropdown(options=list(OPERATORS), description="operator")
    dtype = widgets.Dropdown(options=list(DTYPES), description="dtype")
    machine = widgets.Dropdown(options=list(MACHINES), description="machine")
    sizes, shown = widgets.VBox(), widgets.Output()

    def draw(_=None):
        shown.clear_output(wait=True)
        chosen = {slider.description: slider.value for slider in sizes.children}
        with shown:
            try:
                answer = roofline_answer(operator.value, dtype.value, machine.value, **chosen)
            except ValueError as error:
                print(error)
                return
            print(answer)
            figure = charts.roofline(MACHINES[machine.value], [answer.point()], dtype.value)
            display(figure)
            plt.close(figure)

    def renew_sizes(_=None):
        sliders = [_power_of_two(*size) for size in OPERATORS[operator.value][1].items()]
        for slider in sliders:
            slider.observe(draw, "value")
        sizes.children = sliders
        draw()

    operator.observe(renew_sizes, "value")
    dtype.observe(draw, "value")
    machine.observe(draw, "value")
    renew_sizes()
    return widgets.VBox([widgets.HBox([operator, dtype, machine]), sizes, shown])


# --- online softmax ------------------------------------------------------------------------

SCORES = (0.5, 1.0, -0.5, 0.2, 2.0, 1.5, 0.0, 0.8, 3.0, -1.0, 0.4, 1.2)


@styled
def softmax_figure(scores=SCORES, block: int = 4, step: int = 0) -> Figure:
    """Scores as bars, the running maximum as a line, and the state after block number `step`."""
    steps = softmax_steps(scores, block)
    if not 0 <= step < len(steps):
        raise ValueError(f"there are blocks 0 to {len(steps) - 1}, got {step}")
    now = steps[step]
    end = now.start + len(now.block)
    colors = [SKY] * now.start + [BLUE] * len(now.block) + ["#DDDDDD"] * (len(scores) - end)
    before_max, before_sum = (
        ("-inf", 0.0)
        if step == 0
        else (
            f"{steps[step - 1].maximum:.2f}",
            steps[step - 1].total,
        )
    )
    added = now.total - now.rescale * before_sum
    note = (
        f"max {before_max} → {now.maximum:.2f}, rescale {now.rescale:.3f}, "
        f"sum {now.rescale:.3f} × {before_sum:.3f} + {added:.3f} = {now.total:.3f}"
    )
    caption = (
        "Light blue: read before. Blue: this block. Gray: not read yet. Line: the maximum so far."
    )
    figure, axes = canvas(
        2.6, caption, title=f"Block {step + 1} of {len(steps)}", note=note, left=0.9
    )
    axes.bar(range(len(scores)), scores, color=colors)
    axes.axhline(now.maximum, color=VERMILION, lw=1.5)
    axes.axhline(0, color=GRAY, lw=0.8)
    axes.set(xlabel="key", ylabel="score", xlim=(-0.6, len(scores) - 0.4))
    axes.set_xticks(range(0, len(scores), block))
    return figure


def softmax_stepper(scores=SCORES, block: int = 4) -> widgets.Widget:
    """Step through online softmax block by block: maximum, rescale, sum."""
    last = len(softmax_steps(scores, block)) - 1
    slider = widgets.IntSlider(0, 0, last, description="block")
    shown = widgets.Output()

    def draw(_=None):
        shown.clear_output(wait=True)
        with shown:
            print(softmax_table(softmax_steps(scores, block)[: slider.value + 1]))
            figure = softmax_figure(scores, block, slider.value)
            display(figure)
            plt.close(figure)

    slider.observe(draw, "value")
    draw()
    return widgets.VBox([slider, shown])
