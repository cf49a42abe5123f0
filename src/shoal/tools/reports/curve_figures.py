"""Figures of curves over axes, with title, description for screen readers, and numbers.

A figure is drawn once as marks, for pages and pictures.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shoal.tools.reports.marks import Dots, Drawing, Fill, Mark, Stroke, Text, text_width

# A figure is about as wide as a phone, so that texts keep their size on a phone.
WIDTH, HEIGHT = 360.0, 236.0
LEFT, RIGHT, TOP, BOTTOM = 48.0, 10.0, 26.0, 40.0
ACROSS, LOW = WIDTH - LEFT - RIGHT, HEIGHT - BOTTOM
_MOST_TICKS = 6
_DASHED, _DOTTED = (6.0, 4.0), (1.5, 3.5)


@dataclass(frozen=True, slots=True)
class Numbers:
    """The numbers of a figure as a table; the row ``highlighted`` stands out."""

    caption: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    highlighted: int | None = None


@dataclass(frozen=True, slots=True)
class Figure:
    """A drawing with title, note, and a few numbers."""

    title: str
    note: str
    drawing: Drawing
    numbers: Numbers | None = None
    colour: str = "ink"  # colour of the title


@dataclass(frozen=True, slots=True)
class Line:
    """A curve and its kind: "data", "perfect" (a perfect shuffle), "other" for comparison, or a colour."""

    name: str
    xs: Sequence[float]
    ys: Sequence[float]
    kind: str = "data"
    has_dots: bool = False
    has_area: bool = False

    @property
    def colour(self) -> str:
        """Palette colour of the curve."""
        return "soft" if self.kind == "other" else self.kind

    @property
    def dash(self) -> tuple[float, ...]:
        """Dash pattern: no meaning depends on colour alone."""
        return {"perfect": _DASHED, "other": _DOTTED}.get(self.kind, ())


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis from ``low`` to ``high`` with labelled values."""

    label: str
    low: float
    high: float
    ticks: Sequence[tuple[float, str]]
    is_log: bool = False

    def share(self, value: float) -> float:
        """Return the position of a value on the axis, from 0 to 1."""
        value = min(max(value, self.low), self.high)
        if self.is_log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


def log_axis(label: str, values: Sequence[float], *, least: float, most: float) -> Axis:
    """Return a logarithmic axis over the values and ``least`` to ``most``."""
    low = min([least, *(value * 0.8 for value in values if value > 0)])
    high = max([most, *(value * 1.25 for value in values)])
    for steps in ((1, 2, 5), (1, 3), (1,)):
        marks = [step * 10.0**power for power in range(-4, 16) for step in steps]
        marks = [mark for mark in marks if low <= mark <= high]
        if len(marks) <= _MOST_TICKS:
            break
    marks = marks[:: math.ceil(len(marks) / _MOST_TICKS)] if len(marks) > _MOST_TICKS else marks
    return Axis(label, low, high, [(mark, _short(mark)) for mark in marks], is_log=True)


def size_axis(label: str, sizes: Sequence[int]) -> Axis:
    """Return a logarithmic axis of batch sizes."""
    shown = sizes[:: math.ceil(len(sizes) / _MOST_TICKS)]
    ticks = [(float(size), f"{size:,}" if size < 10_000 else _short(size)) for size in shown]
    return Axis(label, sizes[0] * 0.85, sizes[-1] * 1.1, ticks, is_log=True)


def plain_axis(label: str, values: Sequence[float], *, unit: float = 1.0) -> Axis:
    """Return an axis from 0 over the values, with three to six round numbers of a unit."""
    high = max([1e-12, *values]) / unit
    step = 10.0 ** math.floor(math.log10(high))
    step = next(step * times for times in (0.2, 0.5, 1.0, 2.0) if high / (step * times) <= 5.0)
    marks = [step * number for number in range(int(high / step) + 1)]
    return Axis(label, 0.0, high * unit * 1.08, [(mark * unit, f"{mark:,.4g}") for mark in marks])


def curve_figure(
    title: str,
    note: str,
    lines: Sequence[Line],
    *,
    x: Axis,
    y: Axis,
    band: tuple[Sequence[float], Sequence[float], Sequence[float]] | None = None,
    mark: tuple[float, str] | None = None,
    says: str,
    numbers: Numbers | None = None,
    has_legend: bool = True,
) -> Figure:
    """Draw curves over two axes, with a legend of several curves.

    ``band`` is the range of chance, as x, low and high; ``mark`` is a notable x and its name; ``says`` describes the
    figure for screen readers.
    """
    rules = [LOW - y.share(value) * (LOW - TOP) for value, _ in y.ticks]
    marks: list[Mark] = [Stroke([[(LEFT, down), (WIDTH - RIGHT, down)] for down in rules], "rule"), *label_marks(x, y)]
    if band is not None:
        upper = [point_of(x, y, at, value) for at, value in zip(band[0], band[2], strict=True)]
        lower = [point_of(x, y, at, value) for at, value in zip(band[0], band[1], strict=True)]
        marks.append(Fill(upper + lower[::-1], "perfect", 0.2))
    if mark is not None:
        at = LEFT + x.share(mark[0]) * ACROSS
        anchor, shift = ("end", -4.0) if x.share(mark[0]) > 0.6 else ("start", 4.0)
        marks.append(Stroke([[(at, TOP), (at, LOW)]], "soft", dash=(2.0, 3.0)))
        marks.append(Text(at + shift, TOP + 11, mark[1], anchor=anchor))
    for line in lines:
        marks += _drawn(line, x, y)
    if len(lines) > 1 and has_legend:
        marks += _legend(lines)
    return Figure(title, note, Drawing(WIDTH, HEIGHT, marks, says), numbers)


def variance_figure(note: str, lines: Sequence[Line], sizes: Sequence[int], *, says: str, **more: Any) -> Figure:
    """Draw VR over batch sizes, beside a perfect shuffle; ``more`` are arguments of `curve_figure`."""
    x = size_axis("samples in a batch", sizes)
    y = log_axis("VR", [value for line in lines for value in line.ys], least=0.5, most=4.0)
    lines = [*lines, Line("perfect", [sizes[0], sizes[-1]], [1.0, 1.0], "perfect")]
    return curve_figure("How much batches vary", note, lines, x=x, y=y, says=says, **more)


def label_marks(x: Axis, y: Axis) -> list[Mark]:
    """Return the labels of two axes."""
    marks: list[Mark] = []
    for value, text in x.ticks:
        share = x.share(value)
        anchor = "start" if share < 0.02 else "end" if share > 0.97 else "middle"
        marks.append(Text(LEFT + share * ACROSS, LOW + 15, text, anchor=anchor))
    for value, text in y.ticks:
        marks.append(Text(LEFT - 6, LOW - y.share(value) * (LOW - TOP) + 4, text, anchor="end"))
    marks.append(Text(LEFT + ACROSS / 2, LOW + 32, x.label, "ink", anchor="middle"))
    if y.label:
        marks.append(Text(9, TOP + (LOW - TOP) / 2, y.label, "ink", anchor="middle", is_turned=True))
    return marks


def point_of(x: Axis, y: Axis, at: float, value: float) -> tuple[float, float]:
    """Return the place of a value in a figure with these axes."""
    return LEFT + x.share(at) * ACROSS, LOW - y.share(value) * (LOW - TOP)


def _drawn(line: Line, x: Axis, y: Axis) -> list[Mark]:
    points = [point_of(x, y, at, value) for at, value in zip(line.xs, line.ys, strict=True)]
    marks: list[Mark] = []
    if line.has_area:
        marks.append(Fill([(points[0][0], LOW), *points, (points[-1][0], LOW)], line.colour, 0.16))
    marks.append(Stroke([points], line.colour, 2.0, line.dash))
    if line.has_dots:
        marks.append(Dots(points, line.colour, 3.0, are_rings=line.kind == "other"))
    return marks


def _legend(lines: Sequence[Line]) -> list[Mark]:
    marks: list[Mark] = []
    at = LEFT
    for line in lines:
        marks.append(Stroke([[(at, 8), (at + 20, 8)]], line.colour, 2.0, line.dash))
        marks.append(Text(at + 26, 12, line.name, "ink"))
        at += 26 + text_width(line.name, 11.0) + 14
    return marks


def _short(value: float) -> str:
    """Format a number for an axis.

    >>> _short(0.5), _short(20), _short(16384), _short(3e6), _short(2e9)
    ('0.5', '20', '16k', '3M', '2G')
    """
    for unit, scale in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= scale:
            return f"{value / scale:.3g}{unit}" if value / scale < 10 else f"{value / scale:.0f}{unit}"
    return f"{value:.3g}"
