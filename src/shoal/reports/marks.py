"""Drawings as lists of marks, independent of their later form as a page or a picture.

Coordinates count from the upper left corner. Colours are names of the palette.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

Point: TypeAlias = tuple[float, float]

_LETTER = 0.56  # of the font size, for an average letter; a little more than most fonts take


@dataclass(frozen=True, slots=True)
class Stroke:
    """Open lines through points."""

    lines: Sequence[Sequence[Point]]
    colour: str
    width: float = 1.0
    dash: tuple[float, ...] = ()

    def moved(self, right: float, down: float) -> Stroke:
        """Return a copy moved by an offset."""
        return replace(self, lines=[_moved(line, right, down) for line in self.lines])


@dataclass(frozen=True, slots=True)
class Fill:
    """The area enclosed by points."""

    outline: Sequence[Point]
    colour: str
    opacity: float = 1.0

    def moved(self, right: float, down: float) -> Fill:
        """Return a copy moved by an offset."""
        return replace(self, outline=_moved(self.outline, right, down))


@dataclass(frozen=True, slots=True)
class Cells:
    """Rectangles, each as left, top, width and height."""

    boxes: Sequence[tuple[float, float, float, float]]
    colour: str
    opacity: float = 1.0

    def moved(self, right: float, down: float) -> Cells:
        """Return a copy moved by an offset."""
        boxes = [(left + right, top + down, wide, high) for left, top, wide, high in self.boxes]
        return replace(self, boxes=boxes)


@dataclass(frozen=True, slots=True)
class Dots:
    """Filled dots at points, or rings filled with the paper's colour."""

    points: Sequence[Point]
    colour: str
    radius: float = 3.0
    are_rings: bool = False

    def moved(self, right: float, down: float) -> Dots:
        """Return a copy moved by an offset."""
        return replace(self, points=_moved(self.points, right, down))


@dataclass(frozen=True, slots=True)
class Text:
    """Text with its base line at ``y``; ``anchor`` says which part is at ``x``: "start", "middle" or "end".

    ``most`` is the maximum width, met by smaller letters if need be. ``is_turned`` text reads upwards.
    """

    x: float
    y: float
    text: str
    colour: str = "soft"
    anchor: str = "start"
    size: float = 11.0
    is_bold: bool = False
    is_turned: bool = False
    most: float = 0.0

    def moved(self, right: float, down: float) -> Text:
        """Return a copy moved by an offset."""
        return replace(self, x=self.x + right, y=self.y + down)


Mark: TypeAlias = Stroke | Fill | Cells | Dots | Text


@dataclass(frozen=True, slots=True)
class Drawing:
    """Marks on paper of a given size, later ones above earlier ones; ``says`` is a description for screen readers."""

    width: float
    height: float
    marks: Sequence[Mark]
    says: str


def text_width(text: str, size: float, *, is_bold: bool = False) -> float:
    """Estimate the width of a text.

    >>> round(text_width("perfect", 10.0))
    39
    """
    return len(text) * size * _LETTER * (1.08 if is_bold else 1.0)


def wrapped(text: str, *, width: float, size: float) -> list[str]:
    """Wrap a text into lines of at most about ``width``.

    >>> wrapped("a few short words", width=60.0, size=10.0)
    ['a few', 'short', 'words']
    """
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".lstrip()
        if lines[-1] and text_width(longer, size) > width:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines


def _moved(points: Sequence[Point], right: float, down: float) -> list[Point]:
    return [(x + right, y + down) for x, y in points]
