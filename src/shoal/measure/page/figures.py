"""Drawings for pages: curves and heat maps as inline SVG, in the colours of the page's style, with words beside them.

Own code and not a plotting library's: its drawings come with fixed colours and texts as outlines, which neither turn
dark with the page nor can be read aloud, and are ten times as large.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["Axis", "Line", "curve_figure", "heat_figure", "log_axis", "plain_axis", "size_axis"]

# In these units a figure is about as wide as a phone, so that its texts keep their size there.
_WIDTH, _HEIGHT = 360.0, 236.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 48.0, 10.0, 26.0, 40.0
_CLASSES = 3  # shades of more, and as many of less
_MOST_TICKS = 6


@dataclass(frozen=True, slots=True)
class Line:
    """A curve of a ``kind``: "data", "other" or "perfect"; with dots where values are few, an area where time runs."""

    name: str
    xs: Sequence[float]
    ys: Sequence[float]
    kind: str = "data"
    has_dots: bool = False
    has_area: bool = False


@dataclass(frozen=True, slots=True)
class Axis:
    """From ``low`` to ``high``, with texts at some values."""

    label: str
    low: float
    high: float
    ticks: Sequence[tuple[float, str]]
    is_log: bool = False

    def share(self, value: float) -> float:
        """Where a value lies: 0 at the low end, 1 at the high one."""
        value = min(max(value, self.low), self.high)
        if self.is_log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


def log_axis(label: str, values: Sequence[float], *, least: float, most: float, suffix: str = "") -> Axis:
    """A logarithmic axis that covers the values and ``least`` to ``most``."""
    low = min([least, *(value * 0.8 for value in values if value > 0)])
    high = max([most, *(value * 1.25 for value in values)])
    for steps in ((1, 2, 5), (1, 3), (1,)):
        marks = [step * 10.0**power for power in range(-4, 16) for step in steps]
        marks = [mark for mark in marks if low <= mark <= high]
        if len(marks) <= _MOST_TICKS:
            break
    marks = marks[:: math.ceil(len(marks) / _MOST_TICKS)] if len(marks) > _MOST_TICKS else marks
    return Axis(label, low, high, [(mark, _short(mark) + suffix) for mark in marks], is_log=True)


def size_axis(label: str, sizes: Sequence[int]) -> Axis:
    """A logarithmic axis of batch sizes, with texts at some of them."""
    shown = sizes[:: math.ceil(len(sizes) / _MOST_TICKS)]
    ticks = [(float(size), f"{size:,}" if size < 10_000 else _short(size)) for size in shown]
    return Axis(label, sizes[0] * 0.85, sizes[-1] * 1.1, ticks, is_log=True)


def plain_axis(label: str, values: Sequence[float], *, unit: float = 1.0, suffix: str = "") -> Axis:
    """An axis from 0 that covers the values, with round numbers of a unit at four or five places."""
    high = max([1e-12, *values]) / unit
    step = 10.0 ** math.floor(math.log10(high))
    step = next(step * times for times in (0.2, 0.5, 1.0, 2.0) if high / (step * times) <= 5.0)
    marks = [step * number for number in range(int(high / step) + 1)]
    return Axis(label, 0.0, high * unit * 1.08, [(mark * unit, f"{mark:,.4g}{suffix}") for mark in marks])


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
    after: str = "",
) -> str:
    """Curves over an axis.

    Parameters
    ----------
    title, note
        Above the figure: what it shows, and how to read it.
    lines
        The curves; where there is more than one, a legend names them.
    band
        What chance allows: x, low and high.
    mark
        An x that matters, and its name.
    says
        What a person sees in it, for who does not.
    after
        HTML below the figure: the numbers as a table.
    """
    parts = [*_frame(x, y)]
    if band is not None:
        upper = [_point(x, y, at, value) for at, value in zip(band[0], band[2], strict=True)]
        lower = [_point(x, y, at, value) for at, value in zip(band[0], band[1], strict=True)]
        parts.append(f'<path class="band" d="M{" ".join(upper + lower[::-1])}Z"/>')
    if mark is not None:
        at = _LEFT + x.share(mark[0]) * _across()
        anchor, shift = ("end", -4) if x.share(mark[0]) > 0.6 else ("start", 4)
        parts.append(f'<path class="mark" d="M{at:.1f} {_TOP:.0f}V{_HEIGHT - _BOTTOM:.0f}"/>')
        parts.append(f'<text x="{at + shift:.1f}" y="{_TOP + 11:.0f}" text-anchor="{anchor}">{escape(mark[1])}</text>')
    for line in lines:
        parts += _drawn(line, x, y)
    if len(lines) > 1:
        parts += _legend(lines)
    return _figure(title, note, says, parts, after, top=0.0 if len(lines) > 1 else _TOP - 10.0)


def heat_figure(
    title: str, note: str, heat: ArrayLike, *, x_label: str, y_label: str, says: str, after: str = ""
) -> str:
    """A table of counts of shape (times, sources) against what a perfect shuffle has: the same everywhere.

    Shades begin beyond three standard deviations of chance, and stand for half, a quarter and an eighth, or 2, 4 and 8
    times as much.
    """
    levels = _levels(np.asarray(heat, dtype=np.float64))
    wide, high = _across() / levels.shape[0], (_HEIGHT - _TOP - _BOTTOM) / levels.shape[1]
    parts = []
    for level in [-3, -2, -1, 1, 2, 3]:
        cells = []
        for source in range(levels.shape[1]):
            for first, stop in _runs(levels[:, source] == level):
                top = _HEIGHT - _BOTTOM - (source + 1) * high
                cells.append(f"M{_LEFT + first * wide:.1f} {top:.1f}h{(stop - first) * wide:.1f}v{high:.1f}H"
                             f"{_LEFT + first * wide:.1f}z")  # fmt: skip
        if cells:
            kind = "more" if level > 0 else "less"
            parts.append(f'<path class="{kind}" opacity="{abs(level) / _CLASSES:.2f}" d="{"".join(cells)}"/>')
    low = _HEIGHT - _BOTTOM
    parts.append(f'<path class="rule" d="M{_LEFT} {_TOP}H{_WIDTH - _RIGHT}V{low}H{_LEFT}z"/>')
    parts += _labels(Axis(x_label, 0, 1, [(0, "start"), (1, "end")]), Axis(y_label, 0, 1, [(0, "first"), (1, "last")]))
    parts.append(f'<text x="{_LEFT - 6:.0f}" y="9" text-anchor="end">less</text>')
    for number in range(2 * _CLASSES + 1):
        level = number - _CLASSES
        kind, at = ("more" if level > 0 else "less"), _LEFT + 15 * number
        fill = f'class="{kind}" opacity="{abs(level) / _CLASSES:.2f}"' if level else 'fill="none"'
        parts.append(f'<rect x="{at:.0f}" y="1" width="15" height="9" {fill}/>')
        parts.append(f'<rect class="rule" x="{at:.0f}" y="1" width="15" height="9"/>')
    parts.append(f'<text x="{_LEFT + 111:.0f}" y="9">more than a perfect shuffle</text>')
    return _figure(title, note, says, parts, after)


def _levels(heat: NDArray[np.float64]) -> NDArray[np.int64]:
    """How many times as much as usual, in doublings from -3 to 3; 0 where chance does as much."""
    total = max(1.0, float(heat.sum()))
    usual = heat.sum(axis=1, keepdims=True) * heat.sum(axis=0, keepdims=True) / total
    doublings = np.log2(np.maximum(heat, 0.05) / np.maximum(usual, 0.05))
    found: NDArray[np.int64] = np.rint(doublings).clip(-_CLASSES, _CLASSES).astype(np.int64)
    found[np.abs(heat - usual) <= 3.0 * np.sqrt(usual)] = 0
    return found


def _runs(chosen: NDArray[np.bool_]) -> list[tuple[int, int]]:
    edges = np.flatnonzero(np.diff(np.concatenate([[False], chosen, [False]]).astype(np.int8)))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


def _across() -> float:
    return _WIDTH - _LEFT - _RIGHT


def _place(x: Axis, y: Axis, at: float, value: float) -> tuple[float, float]:
    down = _HEIGHT - _BOTTOM - y.share(value) * (_HEIGHT - _TOP - _BOTTOM)
    return _LEFT + x.share(at) * _across(), down


def _point(x: Axis, y: Axis, at: float, value: float) -> str:
    right, down = _place(x, y, at, value)
    return f"{right:.1f},{down:.1f}"


def _frame(x: Axis, y: Axis) -> list[str]:
    rules = [_HEIGHT - _BOTTOM - y.share(value) * (_HEIGHT - _TOP - _BOTTOM) for value, _ in y.ticks]
    path = "".join(f"M{_LEFT} {down:.1f}H{_WIDTH - _RIGHT}" for down in rules)
    return [f'<path class="rule" d="{path}"/>', *_labels(x, y)]


def _labels(x: Axis, y: Axis) -> list[str]:
    low, parts = _HEIGHT - _BOTTOM, []
    for value, text in x.ticks:
        share = x.share(value)
        anchor = "start" if share < 0.02 else "end" if share > 0.97 else "middle"
        at = _LEFT + share * _across()
        parts.append(f'<text x="{at:.1f}" y="{low + 15:.0f}" text-anchor="{anchor}">{escape(text)}</text>')
    for value, text in y.ticks:
        down = low - y.share(value) * (low - _TOP) + 4
        parts.append(f'<text x="{_LEFT - 6:.0f}" y="{down:.1f}" text-anchor="end">{escape(text)}</text>')
    middle = _LEFT + _across() / 2
    parts.append(
        f'<text class="name" x="{middle:.0f}" y="{low + 32:.0f}" text-anchor="middle">{escape(x.label)}</text>'
    )
    if y.label:
        up = _TOP + (low - _TOP) / 2
        turn = f'transform="rotate(-90 9 {up:.0f})"'
        parts.append(f'<text class="name" x="9" y="{up:.0f}" {turn} text-anchor="middle">{escape(y.label)}</text>')
    return parts


def _drawn(line: Line, x: Axis, y: Axis) -> list[str]:
    points = [_point(x, y, at, value) for at, value in zip(line.xs, line.ys, strict=True)]
    parts = []
    if line.has_area:
        low = _HEIGHT - _BOTTOM
        first, last = points[0].partition(",")[0], points[-1].partition(",")[0]
        parts.append(f'<path class="area" d="M{first},{low} {" ".join(points)} {last},{low}Z"/>')
    dashed = " dashed" if line.kind == "perfect" else ""
    parts.append(f'<path class="line {line.kind}{dashed}" d="M{" ".join(points)}"/>')
    if line.has_dots:
        for point in points:
            right, down = point.split(",")
            parts.append(f'<circle class="dot {line.kind}" cx="{right}" cy="{down}" r="3"/>')
    return parts


def _legend(lines: Sequence[Line]) -> list[str]:
    parts, at = [], _LEFT
    for line in lines:
        dashed = " dashed" if line.kind == "perfect" else ""
        parts.append(f'<path class="line {line.kind}{dashed}" d="M{at:.0f} 8h20"/>')
        parts.append(f'<text class="name" x="{at + 26:.0f}" y="12">{escape(line.name)}</text>')
        at += 26 + 6.2 * len(line.name) + 16
    return parts


def _figure(title: str, note: str, says: str, parts: Sequence[str], after: str, *, top: float = 0.0) -> str:
    name = "figure-" + "".join(letter if letter.isalnum() else "-" for letter in title.lower())
    return "\n".join(
        [
            f'<figure aria-labelledby="{name}">',
            f'<figcaption><h3 id="{name}">{escape(title)}</h3><p>{escape(note)}</p></figcaption>',
            f'<svg viewBox="0 {top:.0f} {_WIDTH:.0f} {_HEIGHT - top:.0f}" role="img" aria-label="{escape(says)}">',
            *parts,
            "</svg>",
            after,
            "</figure>",
        ]
    )


def _short(value: float) -> str:
    """A number of an axis.

    >>> _short(0.5), _short(20), _short(16384), _short(3e6), _short(2e9)
    ('0.5', '20', '16k', '3M', '2G')
    """
    for unit, scale in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= scale:
            return f"{value / scale:.3g}{unit}" if value / scale < 10 else f"{value / scale:.0f}{unit}"
    return f"{value:.3g}"
