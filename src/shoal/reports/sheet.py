"""A report as one drawing: title and headline, the figures side by side, and notes below."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.reports.marks import Drawing, Mark, Text, wrapped
from shoal.reports.svg_figures import WIDTH, Figure

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
    """Lay out a whole report as one drawing.

    Parameters
    ----------
    title, about
        Title of the report, and a line about its data.
    headline
        A grade ("good", "fair", "poor" or "unknown"), and the line in its colour.
    rows
        Rows of figures, which stand side by side.
    lead, notes
        Texts below: a paragraph, then notes as name, whether it is bad, and text.
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
            marks += [mark.moved(left, down) for mark in words]
            marks += [mark.moved(left, below) for mark in figure.drawing.marks]
            left += figure.drawing.width + min(gap, _GAP)
        down = below + max(figure.drawing.height for figure in row) + 14
    for line in wrapped(lead, width=most, size=_WORDS) if lead else []:
        marks.append(Text(_MARGIN, down + 12, line, "ink", most=most))
        down += _LINE
    for name, is_bad, text in notes:
        marks.append(Text(_MARGIN, down + 22, name, "bad" if is_bad else "soft", is_bold=True))
        down += 10 + _LINE
        for line in wrapped(text, width=most, size=_WORDS):
            marks.append(Text(_MARGIN, down + 12, line, "ink", most=most))
            down += _LINE
    said = " ".join(
        filter(None, [f"{title}.", headline[1], lead, *(figure.drawing.says for row in rows for figure in row)])
    )
    return Drawing(most + 2 * _MARGIN, down + _MARGIN, marks, said)


def in_pairs(figures: Sequence[Figure]) -> list[Sequence[Figure]]:
    """Split figures into rows of two."""
    return [figures[first : first + 2] for first in range(0, len(figures), 2)]


def _head(figure: Figure) -> tuple[list[Mark], float]:
    """Return title and note of a figure, and their height."""
    width = figure.drawing.width
    marks: list[Mark] = [Text(0, 16, figure.title, figure.colour, size=12.5, is_bold=True, most=width)]
    lines = wrapped(figure.note, width=width, size=_NOTE)
    marks += [Text(0, 32 + 14 * number, line, size=_NOTE, most=width) for number, line in enumerate(lines)]
    return marks, 32.0 + 14.0 * len(lines)
