"""Draw the mixing of several orders: origin of samples, variance of batches, and labels in a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shoal.tools.reports.curve_figures import HEIGHT, WIDTH, Figure, Line, curve_figure, log_axis, size_axis
from shoal.tools.reports.marks import Cells, Drawing, Mark, Stroke, Text
from shoal.tools.reports.sheet import sheet

# An order has the same colour in all pictures; storage order is grey.
_COLOURS = {"none": "soft", "buffer": "more", "window": "data", "perfect": "perfect"}
_PANEL, _BELOW = 172.0, 26.0  # the plot of a dataset over an epoch, and its text
_DOTS, _DOT = 4000, 1.3  # a million points take no more ink than a few thousand
_NAMES, _BAR, _STEP = 62.0, 30.0, 46.0


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredOrder:
    """One order in the picture, named "none", "buffer", "window" or "perfect".

    ``detail`` is a text below the name, ``ids`` are the samples of one epoch in the order of delivery, shape (N,).
    ``distinct`` counts the labels in a batch; ``correlation`` relates the positions in storage and in the epoch.
    """

    name: str
    detail: str
    ids: NDArray[np.int64]
    variance_ratios: Mapping[int, float]
    distinct: float
    correlation: float

    @property
    def colour(self) -> str:
        """Palette colour of the order."""
        return _COLOURS.get(self.name, "ink")


def mixing_picture(
    orders: Sequence[MeasuredOrder], *, title: str, subtitle: str, label: str, batch: int, expected_distinct: float
) -> Drawing:
    """Draw the origin of samples, the variance of batches, and the labels in a batch, for up to four orders.

    ``label`` is the plural noun for labels; a batch of a perfect shuffle has ``expected_distinct``.
    """
    below = [_variance(orders), _distinct(orders, label, batch, expected_distinct)]
    panels = [_panel(order, first=number == 0) for number, order in enumerate(orders)]
    return sheet(title, about=subtitle, rows=[panels, below])


def _panel(order: MeasuredOrder, *, first: bool) -> Figure:
    """Plot storage position over delivery: storage order is a diagonal, a perfect shuffle an even mist."""
    num_samples = len(order.ids)
    shown = np.arange(0, num_samples, max(1, num_samples // _DOTS))
    across = shown / num_samples * (_PANEL - _DOT)
    down = (1.0 - order.ids[shown] / num_samples) * (_PANEL - _DOT)
    boxes = [(x, y, _DOT, _DOT) for x, y in zip(across.tolist(), down.tolist(), strict=True)]
    frame = [(0.0, 0.0), (_PANEL, 0.0), (_PANEL, _PANEL), (0.0, _PANEL), (0.0, 0.0)]
    marks: list[Mark] = [Cells(boxes, order.colour), Stroke([frame], "rule")]
    marks.append(Text(_PANEL / 2, _PANEL + 16, "when it comes out", "ink", anchor="middle"))
    if first:
        marks.append(Text(-7, _PANEL / 2, "where it is stored", "ink", anchor="middle", is_turned=True))
    says = f"Samples of the order {order.name} by position in the epoch and in storage: correlation "
    drawing = Drawing(_PANEL, _PANEL + _BELOW, marks, f"{says}{order.correlation:.2f}.")
    note = f"{order.detail}; correlation {order.correlation:.2f}"
    return Figure(order.name, note, drawing, colour=order.colour)


def _variance(orders: Sequence[MeasuredOrder]) -> Figure:
    """Plot the variance ratio against the batch size; 1 is perfect."""
    sizes = sorted(orders[0].variance_ratios)
    lines = []
    for order in orders:
        ratios = [order.variance_ratios[size] for size in sizes]
        lines.append(Line(order.name, sizes, ratios, order.colour, has_dots=order.name != "perfect"))
    last = ", ".join(
        f"{line.name} {line.ys[-1]:{'.0f' if line.ys[-1] >= 10 else '.1f'}}" for line in lines if line.name != "perfect"
    )
    values = [ratio for order in orders for ratio in order.variance_ratios.values()]
    return curve_figure(
        "How much batches vary",
        f"Against a perfect shuffle (VR). At {sizes[-1]:,} samples: {last}.",
        lines,
        x=size_axis("samples in a batch", sizes),
        y=log_axis("VR", values, least=0.75, most=4.0),
        says=f"Curves of the variance ratio over batch sizes; at {sizes[-1]:,} samples: {last}.",
    )


def _distinct(orders: Sequence[MeasuredOrder], label: str, batch: int, expected_distinct: float) -> Figure:
    """Draw the labels per batch as bars, beside a perfect shuffle."""
    shown = [order for order in orders if order.name != "perfect"]
    unit = (WIDTH - _NAMES - 20.0) / max(expected_distinct, *(order.distinct for order in shown))
    marks: list[Mark] = []
    for number, order in enumerate(shown):
        top = 26.0 + _STEP * number
        wide, middle = order.distinct * unit, top + _BAR / 2 + 4
        marks.append(Cells([(_NAMES, top, wide, _BAR)], order.colour))
        marks.append(Text(_NAMES - 8, middle, order.name, order.colour, anchor="end", is_bold=True))
        shift, colour, anchor = (-6, "paper", "end") if wide > 60 else (6, "ink", "start")
        marks.append(Text(_NAMES + wide + shift, middle, f"{order.distinct:.1f}", colour, anchor, is_bold=True))
    at, end = _NAMES + expected_distinct * unit, 26.0 + _STEP * len(shown)
    marks.append(Stroke([[(at, 16.0), (at, end)]], "perfect", 2.0, (6.0, 4.0)))
    text = f"perfect {expected_distinct:.1f}"
    marks.append(Text(at - 6, end, text, "perfect", "end", is_bold=True))
    counts = ", ".join(f"{order.name} {order.distinct:.1f}" for order in shown)
    says = f"Different {label} in a batch of {batch}: {counts}, {text}."
    title = f"Different {label} in a batch of {batch}"
    return Figure(title, "On average; more is better mixed.", Drawing(WIDTH, HEIGHT, marks, says))
