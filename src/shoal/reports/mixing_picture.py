"""The picture of how well several orders mix: origin of samples, variance of batches, and labels in a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shoal.reports.marks import Cells, Drawing, Mark, Stroke, Text
from shoal.reports.sheet import sheet
from shoal.reports.svg_figures import HEIGHT, WIDTH, Figure, Line, curve_figure, log_axis, size_axis

# By name, so that an order has the same colour in all pictures; grey for the order that does nothing.
_COLOURS = {"none": "soft", "buffer": "more", "window": "data", "perfect": "perfect"}
_PANEL, _BELOW = 172.0, 26.0  # the plot of a dataset over an epoch, and room for the text below it
_DOTS, _DOT = 4000, 1.3  # a million points take no more ink than a few thousand
_NAMES, _BAR, _STEP = 62.0, 30.0, 46.0


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredOrder:
    """One order in the picture.

    Parameters
    ----------
    name
        "none", "buffer", "window" or "perfect"; it gives the colour.
    detail
        A few words below the name, such as the memory held.
    ids
        The sample ids of one epoch in the order of delivery, shape (N,).
    variance_ratios
        Variance ratio by batch size.
    distinct
        Different labels in a batch.
    correlation
        Correlation between a sample's place in storage and its time in the epoch.
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
    orders: Sequence[MeasuredOrder],
    *,
    title: str,
    subtitle: str,
    label: str,
    batch: int,
    expected_distinct: float,
) -> Drawing:
    """Draw the origin of each order's samples, the variance of its batches, and the labels they hold.

    Parameters
    ----------
    orders
        Up to four orders; one called "perfect" is the reference.
    title, subtitle
        Title of the picture, and the data it shows.
    label
        Plural noun for the labels of samples: "packages".
    batch
        Size of the batches in which labels were counted.
    expected_distinct
        Different labels in a batch of a perfect shuffle.
    """
    below = [_variance(orders), _distinct(orders, label, batch, expected_distinct)]
    panels = [_panel(order, first=number == 0) for number, order in enumerate(orders)]
    return sheet(title, about=subtitle, rows=[panels, below])


def _panel(order: MeasuredOrder, *, first: bool) -> Figure:
    """Plot source position against output position: storage order is a diagonal, a perfect shuffle an even mist."""
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
    says = f"Samples of the order {order.name} by when they come and where they are stored: correlation "
    drawing = Drawing(_PANEL, _PANEL + _BELOW, marks, f"{says}{order.correlation:.2f}.")
    note = f"{order.detail}; correlation {order.correlation:.2f}"
    return Figure(order.name, note, drawing, colour=order.colour)


def _variance(orders: Sequence[MeasuredOrder]) -> Figure:
    """Plot the variance ratio against the batch size; 1 is perfect."""
    sizes = sorted(orders[0].variance_ratios)
    lines = [
        Line(
            order.name,
            sizes,
            [order.variance_ratios[size] for size in sizes],
            order.colour,
            has_dots=order.name != "perfect",
        )
        for order in orders
    ]
    last = ", ".join(f"{line.name} {_short(line.ys[-1])}" for line in lines if line.name != "perfect")
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
    """Draw the labels per batch as bars, with a perfect shuffle's as reference."""
    shown = [order for order in orders if order.name != "perfect"]
    unit = (WIDTH - _NAMES - 20.0) / max(expected_distinct, *(order.distinct for order in shown))
    marks: list[Mark] = []
    for number, order in enumerate(shown):
        top = 26.0 + _STEP * number
        wide, middle = order.distinct * unit, top + _BAR / 2 + 4
        marks.append(Cells([(_NAMES, top, wide, _BAR)], order.colour))
        marks.append(Text(_NAMES - 8, middle, order.name, order.colour, anchor="end", is_bold=True))
        if wide > 60:
            marks.append(Text(_NAMES + wide - 6, middle, f"{order.distinct:.1f}", "paper", "end", is_bold=True))
        else:
            marks.append(Text(_NAMES + wide + 6, middle, f"{order.distinct:.1f}", "ink", is_bold=True))
    at, end = _NAMES + expected_distinct * unit, 26.0 + _STEP * len(shown)
    marks.append(Stroke([[(at, 16.0), (at, end)]], "perfect", 2.0, (6.0, 4.0)))
    text = f"perfect {expected_distinct:.1f}"
    marks.append(Text(at - 6, end, text, "perfect", "end", is_bold=True))
    counts = ", ".join(f"{order.name} {order.distinct:.1f}" for order in shown)
    says = f"Different {label} in a batch of {batch}: {counts}, {text}."
    title = f"Different {label} in a batch of {batch}"
    return Figure(title, "On average; more is better mixed.", Drawing(WIDTH, HEIGHT, marks, says))


def _short(ratio: float) -> str:
    return f"{ratio:.0f}" if ratio >= 10 else f"{ratio:.1f}"
