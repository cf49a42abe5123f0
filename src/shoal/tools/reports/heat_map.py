"""Heat maps of the origin of samples over time, compared with a perfect shuffle.

A field of the map is coloured if it has more or fewer samples than chance explains. A perfect shuffle puts at least 25
samples into each field: with fewer, an empty field would be usual, and an order that leaves a third of the map empty
would look perfect.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from shoal.tools.reports.curve_figures import ACROSS, HEIGHT, LEFT, LOW, RIGHT, TOP, WIDTH, Axis, Figure, label_marks
from shoal.tools.reports.marks import Cells, Drawing, Mark, Stroke, Text

_LEAST = 25.0  # samples of a perfect shuffle in a field
_CLASSES = 3  # shades of more, and shades of less
_MOST_TIMES = 50
_FALSE_FIELDS = 0.05  # coloured fields of a perfect shuffle, on average
_SWATCH = 15.0


@dataclass(frozen=True, slots=True, eq=False)
class HeatMap:
    """A map divided into fields.

    ``levels`` are ratios to a perfect shuffle in doublings, from -3 to 3, and 0 if chance explains the count; shape
    (num_times, num_sources). ``expected`` is the mean count of a field in a perfect shuffle. ``absent`` is True for
    sources that are not expected, shape (num_sources,).
    """

    levels: NDArray[np.int64]
    expected: float
    absent: NDArray[np.bool_]

    @property
    def words(self) -> str:
        """Description of the map."""
        more, less = int((self.levels > 0).sum()), int((self.levels < 0).sum())
        text = f"Of {self.levels.size:,} fields, each about {self.expected:,.0f} samples in a perfect shuffle, "
        text += f"{more:,} have more and {less:,} fewer than chance explains"
        missing = float(self.absent.mean())
        return text + (f"; {missing:.0%} of the dataset are not in this part." if missing else ".")


def heat_map(heat: NDArray[np.int64], shares: NDArray[np.float64] | None = None) -> HeatMap:
    """Compare counts of shape (times, sources) with a perfect shuffle, in large enough fields.

    ``shares`` are the expected shares of the sources, shape (sources,); by default the actual shares.
    """
    counts = _in_fields(heat)
    total = max(1.0, float(counts.sum()))
    of_sources = counts.sum(axis=0, dtype=np.float64) / total
    absent = of_sources == 0.0
    if shares is not None:
        of_sources = shares.reshape(counts.shape[1], -1).sum(axis=1)
        # Replacements for missing parts should not look like an excess of all other parts.
        of_sources[~absent] /= max(1e-12, float(of_sources[~absent].sum()))
        absent &= of_sources == 0.0
    usual = counts.sum(axis=1, keepdims=True, dtype=np.float64) * of_sources
    doublings = np.log2(np.maximum(counts, 0.05) / np.maximum(usual, 0.05))
    levels = np.rint(doublings).clip(-_CLASSES, _CLASSES).astype(np.int64)
    # Few maps of perfect shuffles exceed this many standard deviations in any field.
    most_by_chance = NormalDist().inv_cdf(1.0 - _FALSE_FIELDS / counts.size / 2.0)
    levels[np.abs(counts - usual) <= most_by_chance * np.sqrt(usual)] = 0
    return HeatMap(levels, float(usual.mean()), absent)


def heat_figure(heat: HeatMap, *, note: str, time: str, says: str) -> Figure:
    """Draw a map with shades for 1/8, 1/4, 1/2, 2, 4 and 8 times the count of a perfect shuffle."""
    levels = heat.levels
    wide, high = ACROSS / levels.shape[0], (LOW - TOP) / levels.shape[1]
    marks: list[Mark] = []
    for level in (-3, -2, -1, 1, 2, 3):
        boxes = [
            (LEFT + first * wide, LOW - (source + 1) * high, (stop - first) * wide, high)
            for source in range(levels.shape[1])
            for first, stop in _runs(levels[:, source] == level)
        ]
        marks.append(Cells(boxes, *_shade(level)))
    unseen = [(LEFT, LOW - stop * high, ACROSS, (stop - first) * high) for first, stop in _runs(heat.absent)]
    marks.append(Cells(unseen, "rule"))
    corners = [(LEFT, TOP), (WIDTH - RIGHT, TOP), (WIDTH - RIGHT, LOW), (LEFT, LOW), (LEFT, TOP)]
    marks.append(Stroke([corners], "rule"))
    up = Axis("position in the dataset", 0, 1, [(0, "first"), (1, "last")])
    marks += label_marks(Axis(time, 0, 1, [(0, "start"), (1, "end")]), up)
    marks += _legend(is_part=bool(unseen))
    fields = f"Each part of the dataset at each time, in {levels.shape[0]} by {levels.shape[1]} fields."
    drawing = Drawing(WIDTH, HEIGHT, marks, f"{says} {heat.words}")
    return Figure("Where samples come from", f"{fields} {note}", drawing)


def _legend(*, is_part: bool) -> list[Mark]:
    marks: list[Mark] = [Text(LEFT - 6, 9, "less", anchor="end")]
    for number in range(2 * _CLASSES + 1):
        left = LEFT + _SWATCH * number
        if level := number - _CLASSES:
            marks.append(Cells([(left, 1, _SWATCH, 9)], *_shade(level)))
    right = LEFT + _SWATCH * (2 * _CLASSES + 1)
    marks.append(Stroke([[(LEFT, 1), (right, 1), (right, 10), (LEFT, 10), (LEFT, 1)]], "rule"))
    marks.append(Text(right + 6, 9, "more than perfect" if is_part else "more than a perfect shuffle"))
    if is_part:
        left = WIDTH - RIGHT - 76
        marks += [Cells([(left, 1, _SWATCH, 9)], "rule"), Text(left + _SWATCH + 6, 9, "not in it")]
    return marks


def _shade(level: int) -> tuple[str, float]:
    return ("more" if level > 0 else "less"), abs(level) / _CLASSES


def _in_fields(heat: NDArray[np.int64]) -> NDArray[np.int64]:
    """Sum the counts over as many large enough fields as possible, nearly square."""
    times, sources = heat.shape
    most = max(1.0, float(heat.sum()) / _LEAST)
    shapes = [
        (across, up)
        for across in range(1, min(times, _MOST_TIMES) + 1)
        for up in range(1, sources + 1)
        if not times % across and not sources % up and across * up <= most
    ]
    across, up = max(shapes, key=lambda shape: (shape[0] * shape[1], -abs(shape[0] - shape[1])))
    counts: NDArray[np.int64] = heat.reshape(across, times // across, up, sources // up).sum(axis=(1, 3))
    return counts


def _runs(chosen: NDArray[np.bool_]) -> list[tuple[int, int]]:
    edges = np.flatnonzero(np.diff(np.concatenate([[False], chosen, [False]]).astype(np.int8)))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))
