"""The reader's guess, written down before the notebook tells: the notebook runs without one."""

import re

import ipywidgets as widgets
from IPython.display import display

from kernelbook.chart_style import number

_SUFFIX = {"": 1, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
# Commas stand between thousands alone: whether "29,4" is 29.4 or 294 nobody can know.
_NUMBER = r"((?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d*)?|\.\d+)((?:e[+-]?\d+)?)\s*([kmgt]?)"


def parse(text: str, unit: str = "") -> float | None:
    """A number as people write it ("1,000", "4.2k", "3e6", with the unit or without), or None."""
    written, unit = text.strip().lower(), unit.strip().lower()
    for number_alone in (written.removesuffix(unit).strip(), written):
        match = re.fullmatch(_NUMBER, number_alone)
        if match:
            return float(match[1].replace(",", "") + match[2]) * _SUFFIX[match[3]]
    return None


class Guess:
    """A question with a field for the answer; shown by ending a cell with it."""

    def __init__(self, question: str, unit: str = ""):
        self.question, self.unit = question, unit
        self.field = widgets.Text(placeholder=f"your guess ({unit})" if unit else "your guess")

    def _ipython_display_(self):
        text = widgets.HTML(f"<b>{self.question}</b>")
        row = widgets.HBox([self.field, widgets.Label(self.unit)])
        display(widgets.VBox([text, row]))

    @property
    def value(self) -> float | None:
        """The number written so far, None if there is none or it cannot be read."""
        return parse(self.field.value, self.unit)

    def compare(self, answer: float) -> None:
        """Print the answer, and how far the guess was from it, if there was one."""
        told = f"{number(answer)} {self.unit}".strip()
        if self.value is None:
            written = self.field.value.strip()
            why = f"could not read {written!r} as a number" if written else "no guess written"
            print(f"answer: {told} ({why})")
            return
        guessed = f"{number(self.value)} {self.unit}".strip()
        if self.value == 0 or answer == 0:
            verdict = "right" if self.value == answer else "off"
        else:
            ratio = max(self.value / answer, answer / self.value)
            high = "high" if self.value > answer else "low"
            verdict = "close" if ratio < 1.25 else f"{number(ratio)}x too {high}"
        print(f"answer: {told}; your guess: {guessed}, {verdict}")


def guess(question: str, unit: str = "") -> Guess:
    """Ask before telling: `bytes_moved = guess("How many bytes?", "MB")`, later `.compare(512)`."""
    return Guess(question, unit)
