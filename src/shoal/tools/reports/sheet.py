"""Lay out a report as one drawing: title, headline, figures side by side, and notes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from textwrap import wrap

from shoal.tools.reports.curve_figures import WIDTH, Figure
from shoal.tools.reports.marks import Cells, Dots, Drawing, Fill, Mark, Point, Stroke, Text, text_width

_MARGIN, _GAP = 20.0, 30.0
_TITLE, _HEADLINE, _NOTE, _WORDS = 17.0, 15.0, 10.5, 11.0
_LINE = 16.0


def sheet(
    title: str,
    *,
    about: str,
    headline: tuple[str, str] = ("", ""),
    rows: Sequence[Sequence[Figure]],
    lead: str = "",
    notes: Sequence[tuple[str, bool, str]] = (),
) -> Drawing:
    """Lay out a report: ``rows`` of figures side by side, then the paragraph ``lead`` and the notes.

    ``headline`` is a grade ("good", "fair", "poor" or "unknown") and a line in its colour; a note has a name, True if
    bad, and a text.
    """
    most = 2 * WIDTH + _GAP
    marks: list[Mark] = [Text(_MARGIN, 32, title, "ink", size=_TITLE, is_bold=True, most=most)]
    marks.append(Text(_MARGIN, 52, about, most=most))
    down = 66.0
    if headline[1]:
        colour = {"good": "perfect", "poor": "bad", "unknown": "soft"}.get(headline[0], headline[0])
        marks.append(Text(_MARGIN, down + 14, headline[1], colour, size=_HEADLINE, is_bold=True, most=most))
        down += 32
    for row in rows:
        heads = [_head(figure) for figure in row]
        below = down + max(high for _, high in heads)
        gap = (most - sum(figure.drawing.width for figure in row)) / max(1, len(row) - 1)
        left = _MARGIN
        for figure, (words, _) in zip(row, heads, strict=True):
            marks += [_moved(mark, left, down) for mark in words]
            marks += [_moved(mark, left, below) for mark in figure.drawing.marks]
            left += figure.drawing.width + min(gap, _GAP)
        down = below + max(figure.drawing.height for figure in row) + 14
    for line in _wrapped(lead, most, _WORDS):
        marks.append(Text(_MARGIN, down + 12, line, "ink", most=most))
        down += _LINE
    for name, is_bad, text in notes:
        marks.append(Text(_MARGIN, down + 22, name, "bad" if is_bad else "soft", is_bold=True))
        down += 10 + _LINE
        for line in _wrapped(text, most, _WORDS):
            marks.append(Text(_MARGIN, down + 12, line, "ink", most=most))
            down += _LINE
    texts = [f"{title}.", headline[1], lead, *(figure.drawing.says for row in rows for figure in row)]
    return Drawing(most + 2 * _MARGIN, down + _MARGIN, marks, " ".join(filter(None, texts)))


def in_pairs(figures: Sequence[Figure]) -> list[Sequence[Figure]]:
    """Split figures into rows of two."""
    return [figures[first : first + 2] for first in range(0, len(figures), 2)]


def _head(figure: Figure) -> tuple[list[Mark], float]:
    """Return the title and the note of a figure, and their height."""
    width = figure.drawing.width
    marks: list[Mark] = [Text(0, 16, figure.title, figure.colour, size=12.5, is_bold=True, most=width)]
    lines = _wrapped(figure.note, width, _NOTE)
    marks += [Text(0, 32 + 14 * number, line, size=_NOTE, most=width) for number, line in enumerate(lines)]
    return marks, 32.0 + 14.0 * len(lines)


def _wrapped(text: str, width: float, size: float) -> list[str]:
    """Wrap a text into lines of at most about ``width``."""
    return wrap(text, int(width / text_width("x", size)), break_long_words=False, break_on_hyphens=False)


def _moved(mark: Mark, right: float, down: float) -> Mark:
    def moved(points: Sequence[Point]) -> list[Point]:
        return [(x + right, y + down) for x, y in points]

    match mark:
        case Stroke():
            return replace(mark, lines=[moved(line) for line in mark.lines])
        case Fill() | Dots():
            return replace(mark, points=moved(mark.points))
        case Cells():
            return replace(mark, boxes=[(left + right, top + down, wide, high) for left, top, wide, high in mark.boxes])
        case Text():
            return replace(mark, x=mark.x + right, y=mark.y + down)
