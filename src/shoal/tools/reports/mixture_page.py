"""Draw a mixture as a page and as a picture: composition over the run, visits, and batches."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from shoal.tools.reports.curve_figures import (
    BOTTOM,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Figure,
    Line,
    curve_figure,
    plain_axis,
    variance_figure,
)
from shoal.tools.reports.marks import Dots, Drawing, Fill, Mark, Stroke, Text
from shoal.tools.reports.page_document import document, figures, section, table
from shoal.tools.reports.sheet import sheet

# Without green, the colour of a perfect shuffle. Six more sources are paler.
_COLOURS = ("data", "more", "less", "fair", "bad", "soft")
_MOST_SOURCES = 2 * len(_COLOURS)
_WIDE = 2 * WIDTH + 30.0
_NAMES = 190.0  # room for the names beside the areas
_HIGH = 300.0
_LINE = 16.0


@dataclass(frozen=True, slots=True, eq=False)
class MixtureFigures:
    """The numbers of the figures of a mixture.

    ``edges`` are ascending positions; ``counts`` are the samples of each source before an edge, shape (edges, sources);
    sources have ``sizes`` samples. ``changes`` are positions and ramps; ``exhausted`` is the end of the first round of
    a source, by name. ``steps`` before each edge are named by ``unit``. ``shares`` are the shares of sources between
    edges among ``parts``, shape (edges - 1, sources). ``vr`` is predicted by batch size.
    """

    names: Sequence[str]
    sizes: Sequence[int]
    edges: NDArray[np.int64]
    counts: NDArray[np.int64] = field(repr=False)
    changes: Sequence[tuple[int, int]]
    exhausted: Mapping[str, int | None]
    steps: NDArray[np.float64]
    shares: NDArray[np.float64] = field(repr=False)
    vr: Mapping[int, float]
    unit: str = "position"
    parts: str = "samples"

    def step_at(self, position: float) -> float:
        """Return the step of a position."""
        return float(np.interp(position, self.edges, self.steps))


def mixture_page(
    drawn: MixtureFigures,
    rows: Sequence[Mapping[str, str]],
    *,
    title: str,
    about: str,
    call: str,
    lead: str,
    made_by: str,
) -> str:
    """Return the page of a mixture as self-contained HTML; ``rows`` are facts about the sources."""
    wide, *small = _figures(drawn)
    sources = table("The sources", list(rows[0]), [list(row.values()) for row in rows])
    body = [section("Composition", figures([wide])), section("Repeats and batches", figures(small), sources)]
    return document(title=title, lead=lead, about=about, call=call, body=body, made_by=made_by)


def mixture_picture(drawn: MixtureFigures, *, title: str, about: str, lead: str) -> Drawing:
    """Return the figures as one drawing."""
    wide, *small = _figures(drawn)
    return sheet(title, about=about, rows=[[wide], small], lead=lead)


def _figures(drawn: MixtureFigures) -> list[Figure]:
    kept = _largest(drawn)
    return [_composition(drawn, kept), _visits(drawn, kept), *([_variance(drawn)] if drawn.vr else [])]


def _largest(drawn: MixtureFigures) -> list[int]:
    """Return the sources with the most samples, in the order of the file; the others are drawn together."""
    order = np.argsort(-(drawn.counts[-1] - drawn.counts[0]), kind="stable")
    most = _MOST_SOURCES if len(drawn.names) <= _MOST_SOURCES else _MOST_SOURCES - 1
    return sorted(order[:most].tolist())


def _composition(drawn: MixtureFigures, kept: Sequence[int]) -> Figure:
    """Draw the share of each source over the run as stacked areas, from the bottom up."""
    parts = drawn.shares
    shares = [parts[:, number] for number in kept]
    names = [drawn.names[number] for number in kept]
    if len(kept) < len(drawn.names):
        shares.append(parts.sum(axis=1) - sum(shares))
        names.append(f"{len(drawn.names) - len(kept)} others")
    low, right = _HIGH - BOTTOM, _WIDE - RIGHT - _NAMES
    first, last = int(drawn.edges[0]), int(drawn.edges[-1])
    xs = [LEFT + at * (right - LEFT) for at in _along(drawn, drawn.edges)]
    marks: list[Mark] = []
    below = np.zeros(len(parts))
    rings: list[Mark] = []
    for number, (name, share) in enumerate(zip(names, shares, strict=True)):
        above = below + share
        marks.append(Fill(_band(xs, below, above, low), *_shade(number)))
        at = drawn.exhausted.get(name)
        if at is not None and first < at <= last:
            column = int(np.searchsorted(drawn.edges, at, side="left")) - 1
            middle = (below[column] + above[column]) / 2
            x = LEFT + _along(drawn, [at])[0] * (right - LEFT)
            rings.append(Dots([(x, low - middle * (low - TOP))], "ink", 4.0, are_rings=True))
        below = above
    for at, ramp in drawn.changes:
        ends = [end for end in dict.fromkeys((at, at + ramp)) if first < end < last]
        lines = [[(x := LEFT + share * (right - LEFT), TOP), (x, low)] for share in _along(drawn, ends)]
        marks += [Stroke([line], "ink", 1.0, (4.0, 3.0)) for line in lines]
    marks += [*rings, *_frame(drawn, low, right), *_names(drawn, names, right)]
    texts = ", ".join(f"{name} {share[0]:.0%} to {share[-1]:.0%}" for name, share in zip(names, shares, strict=True))
    note = f"Share of each source among the {drawn.parts} of the run."
    note += " A ring: every sample of the source has come once." if rings else ""
    note += " Dashed: weights change (a second line ends a ramp)." if drawn.changes else ""
    return Figure("Composition of the run", note, Drawing(_WIDE, _HIGH, marks, f"Stacked areas: {texts}."))


def _along(drawn: MixtureFigures, positions: Sequence[int] | NDArray[np.int64]) -> list[float]:
    """Return positions as shares of the run, from 0 to 1."""
    first, last = float(drawn.steps[0]), float(drawn.steps[-1])
    return [(drawn.step_at(position) - first) / (last - first) for position in positions]


def _band(
    xs: Sequence[float], below: NDArray[np.float64], above: NDArray[np.float64], low: float
) -> list[tuple[float, float]]:
    """Return the outline of a band with constant height between edges."""
    top, bottom = [], []
    for number, (left, right) in enumerate(itertools.pairwise(xs)):
        top += [(x, low - float(above[number]) * (low - TOP)) for x in (left, right)]
        bottom += [(x, low - float(below[number]) * (low - TOP)) for x in (left, right)]
    return top + bottom[::-1]


def _frame(drawn: MixtureFigures, low: float, right: float) -> list[Mark]:
    ticks = (0.0, 0.25, 0.5, 0.75, 1.0)
    marks: list[Mark] = [Text(LEFT - 6, low - at * (low - TOP) + 4, f"{at:.0%}", anchor="end") for at in ticks]
    length = float(drawn.steps[-1] - drawn.steps[0])
    axis = plain_axis("", [length])
    for value, text in axis.ticks:
        x = LEFT + value / length * (right - LEFT)
        if x <= right + 1:
            anchor = "start" if value == 0 else "end" if x > right - 12 else "middle"
            marks.append(Text(x, low + 15, text, anchor=anchor))
    marks.append(Text((LEFT + right) / 2, low + 32, drawn.unit, "ink", anchor="middle"))
    return marks


def _names(drawn: MixtureFigures, names: Sequence[str], right: float) -> list[Mark]:
    """Return the legend from the top down: sources, and the steps where they have come once."""
    marks: list[Mark] = []
    for number, name in enumerate(reversed(names)):
        down = TOP + 4 + _LINE * number
        at = drawn.exhausted.get(name)
        text = "" if at is None or at > drawn.edges[-1] else f"  once at {math.ceil(drawn.step_at(at)):,}"
        corners = [(right + 14, down), (right + 26, down), (right + 26, down + 11), (right + 14, down + 11)]
        marks.append(Fill(corners, *_shade(len(names) - 1 - number)))
        marks.append(Text(right + 32, down + 10, f"{name}{text}", "ink", most=_NAMES - 34))
    return marks


def _visits(drawn: MixtureFigures, kept: Sequence[int]) -> Figure:
    """Draw the visits of each sample over the run."""
    xs = drawn.steps.tolist()
    lines = []
    for number, colour in zip(kept, _COLOURS, strict=False):
        ys = (drawn.counts[:, number] / drawn.sizes[number]).tolist()
        lines.append(Line(drawn.names[number], xs, ys, colour))
    last = ", ".join(f"{line.name} {line.ys[-1]:.2g}" for line in lines)
    few = f"The first {len(lines)} sources, c" if len(lines) < len(drawn.names) else "C"
    return curve_figure(
        "How often each sample has come",
        f"Above 1, samples of a source repeat. {few}olours as above.",
        lines,
        x=plain_axis(drawn.unit, xs),
        y=plain_axis("visits", [max([1.0, *line.ys]) for line in lines]),
        says=f"Curves of the visits of each sample; at the end {last}.",
        has_legend=False,
    )


def _variance(drawn: MixtureFigures) -> Figure:
    sizes, ratios = list(drawn.vr), list(drawn.vr.values())
    lines = [Line("predicted", sizes, ratios, "data", has_dots=True)]
    says = f"Curve of the predicted VR: {ratios[0]:.2f} at {sizes[0]:,}, {ratios[-1]:.2f} at {sizes[-1]:,} samples."
    return variance_figure("Within sources, against perfect shuffles (VR).", lines, sizes, says=says)


def _shade(number: int) -> tuple[str, float]:
    """Return the colour and opacity of a source."""
    return _COLOURS[number % len(_COLOURS)], 0.85 if number < len(_COLOURS) else 0.45
