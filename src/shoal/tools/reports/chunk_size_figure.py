"""Draw what chunk sizes trade in a window of the same bytes: smaller chunks mix better, and take more requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.figures import format_bytes, format_count
from shoal.quality.curves import MOST_NEAR_RATIO, NEAR_BATCHES
from shoal.tools.reports.curve_figures import (
    ACROSS,
    LEFT,
    LOW,
    TOP,
    Figure,
    Line,
    Numbers,
    curve_figure,
    log_axis,
    point_of,
)
from shoal.tools.reports.marks import Dots, Mark, Point, Text, text_width

VR_OF_FOUR = "VR of four batches"
_LETTERS = 10.0
_PLACES = ((0.0, -8.0), (0.0, 17.0), (0.7, -3.0), (-0.7, -3.0), (0.7, 10.0), (-0.7, 10.0), (0.3, -18.0), (0.0, 29.0))
"""Places of a label beside its dot: its middle in widths to the right, and its base line in units below."""


@dataclass(frozen=True, slots=True)
class ChunkSize:
    """A plan whose window has the same bytes in chunks of ``chunk_bytes``.

    ``near_vr`` is the VR of the mean of four successive batches. ``num_requests`` and ``epoch_price`` are of an epoch,
    ``delivered_bytes_per_second`` of all nodes. ``options`` are words of `shoal plan` that ask for this plan;
    ``is_planned`` is True for the plan that the others are compared with.
    """

    chunk_bytes: float
    window_chunks: int
    near_vr: float
    num_requests: int
    node_requests_per_second: float
    node_traffic_bytes_per_second: float
    node_memory_bytes: float
    delivered_bytes_per_second: float
    waiting_share: float
    epoch_price: float
    options: str
    is_planned: bool


def largest_mixed(sizes: Sequence[ChunkSize]) -> ChunkSize | None:
    """Return the largest chunks that mix four batches well enough for the loss of a full permutation, if any do."""
    mixed = [size for size in sizes if size.near_vr <= MOST_NEAR_RATIO]
    return max(mixed, key=lambda size: size.chunk_bytes, default=None)


def chunk_size_figure(sizes: Sequence[ChunkSize]) -> Figure:
    """Draw the VR of four batches over the requests of an epoch, with a dot for each chunk size, smallest first."""
    requests, ratios = [float(size.num_requests) for size in sizes], [size.near_vr for size in sizes]
    x = log_axis("requests of an epoch", requests, least=min(requests) * 0.6, most=max(requests) * 2.2)
    y = log_axis(VR_OF_FOUR, ratios, least=0.5, most=4.0)
    lines = [
        Line("chunk sizes", requests, ratios, has_dots=True),
        Line(f"limit {MOST_NEAR_RATIO:g}", [x.low, x.high], [MOST_NEAR_RATIO] * 2, "bad"),
    ]
    dots = [point_of(x, y, at, ratio) for at, ratio in zip(requests, ratios, strict=True)]
    limit = [point_of(x, y, at, MOST_NEAR_RATIO) for at in (x.low, x.high)]
    marks: list[Mark] = [Dots([dot for dot, size in zip(dots, sizes, strict=True) if size.is_planned], "more", 5.5)]
    marks += _labels(sizes, dots, limit)
    first, last = sizes[0], sizes[-1]
    planned = next(number for number, size in enumerate(sizes) if size.is_planned)
    figure = curve_figure(
        "Smaller chunks: better mixing, more requests",
        f"Means of {NEAR_BATCHES} successive batches against a perfect shuffle, in the same window; "
        "the large dot is this plan.",
        lines,
        x=x,
        y=y,
        says=f"A dot for each of {len(sizes)} chunk sizes: from {format_bytes(first.chunk_bytes)} with a "
        f"{VR_OF_FOUR} of {first.near_vr:.2f} and {first.num_requests:,} requests, to {format_bytes(last.chunk_bytes)} "
        f"with {last.near_vr:.2f} and {last.num_requests:,}. The plan has {format_bytes(sizes[planned].chunk_bytes)}, "
        f"{ratios[planned]:.2f} and {sizes[planned].num_requests:,}. Up to {MOST_NEAR_RATIO:g}, the loss of a model is "
        "about that of a perfect shuffle.",
        numbers=_numbers(sizes, planned),
    )
    return replace(figure, drawing=replace(figure.drawing, marks=[*figure.drawing.marks, *marks]))


def _labels(sizes: Sequence[ChunkSize], dots: Sequence[Point], limit: Sequence[Point]) -> list[Text]:
    """Return the size of each dot's chunks beside the dot, where the label hides the least."""
    drawn = np.concatenate([np.linspace(begin, end, 200) for line in (dots, limit) for begin, end in pairwise(line)])
    taken: list[_Box] = []
    labels = []
    for (right, down), size in sorted(zip(dots, sizes, strict=True), key=lambda each: not each[1].is_planned):
        text, colour = format_bytes(size.chunk_bytes), "ink" if size.is_planned else "soft"
        wide = text_width(text, _LETTERS, is_bold=size.is_planned)
        places = [(right + (across - 0.5) * wide, down + below) for across, below in _PLACES]
        boxes = [_Box(left, base - _LETTERS, left + wide, base) for left, base in places]
        taken.append(min(boxes, key=lambda box: box.hides(drawn, taken)))
        labels.append(Text(taken[-1].left, taken[-1].low, text, colour, size=_LETTERS, is_bold=size.is_planned))
    return labels


class _Box(NamedTuple):
    left: float
    high: float
    right: float
    low: float

    def hides(self, drawn: NDArray[np.float64], taken: Sequence[_Box]) -> float:
        """Weigh what a label here hides: drawn points, shape (num_points, 2), other labels, or a part of itself."""
        is_outside = self.left < LEFT or self.right > LEFT + ACROSS or self.high < TOP or self.low > LOW
        num_overlaps = sum(self.left < box.right and box.left < self.right and self.high < box.low
                           and box.high < self.low for box in taken)  # fmt: skip
        num_covered = np.count_nonzero(((drawn >= self[:2]) & (drawn <= self[2:])).all(axis=1))
        return 10_000.0 * is_outside + 1000.0 * num_overlaps + num_covered


def _numbers(sizes: Sequence[ChunkSize], planned: int) -> Numbers:
    heads = ["Chunk", "Chunks in the window", VR_OF_FOUR, "Requests of an epoch", "Requests of a node"]
    heads += ["Traffic of a node", "Memory of a node", "Delivered", "Waiting"]
    has_price = any(size.epoch_price for size in sizes)
    rows = [
        [
            format_bytes(size.chunk_bytes),
            f"{size.window_chunks:,}",
            f"{size.near_vr:.2f}",
            f"{size.num_requests:,}",
            f"{format_count(size.node_requests_per_second)}/s",
            f"{format_bytes(size.node_traffic_bytes_per_second)}/s",
            format_bytes(size.node_memory_bytes),
            f"{format_bytes(size.delivered_bytes_per_second)}/s",
            f"{size.waiting_share:.1%}",
            *([f"{size.epoch_price:,.4g}"] if has_price else []),
        ]
        for size in sizes
    ]
    return Numbers("The same window in chunks of other sizes", heads + ["Price"] * has_price, rows, planned)
