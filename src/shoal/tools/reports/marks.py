"""Drawings as lists of marks in the colours of one palette, for pages and pictures.

Coordinates count from the upper left corner.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

Point: TypeAlias = tuple[float, float]

LIGHT: Mapping[str, str] = {
    "paper": "#ffffff",
    "panel": "#f6f7f8",
    "ink": "#1b1d1f",
    "soft": "#555b61",
    "rule": "#d5d9dd",
    "data": "#0068a3",
    "perfect": "#00724f",
    "bad": "#b02a1c",
    "fair": "#7d5a00",
    "more": "#c25700",
    "less": "#5a47a6",
}
"""Colours by meaning.

Blue is measured or planned, green a perfect shuffle, red harmful; orange is more than in a perfect shuffle, violet
less. They stay distinct for colour-blind people, and no meaning depends on colour alone: lines have dashes, grades are
words, and maps have a legend.
"""
DARK: Mapping[str, str] = {
    "paper": "#14171a",
    "panel": "#1d2125",
    "ink": "#eceef0",
    "soft": "#adb4bb",
    "rule": "#3d444b",
    "data": "#5cb8ee",
    "perfect": "#45c69b",
    "bad": "#ff8d78",
    "fair": "#e3bd58",
    "more": "#f59a45",
    "less": "#a797f7",
}

_LETTER = 0.56  # width of an average letter by font size; a little more than in most fonts


@dataclass(frozen=True, slots=True)
class Stroke:
    """Open lines through points."""

    lines: Sequence[Sequence[Point]]
    colour: str
    width: float = 1.0
    dash: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Fill:
    """A filled area within points."""

    points: Sequence[Point]
    colour: str
    opacity: float = 1.0


@dataclass(frozen=True, slots=True)
class Cells:
    """Rectangles, each as left, top, width and height."""

    boxes: Sequence[tuple[float, float, float, float]]
    colour: str
    opacity: float = 1.0


@dataclass(frozen=True, slots=True)
class Dots:
    """Dots at points, or rings in the colour of the paper."""

    points: Sequence[Point]
    colour: str
    radius: float = 3.0
    are_rings: bool = False


@dataclass(frozen=True, slots=True)
class Text:
    """Text with its base line at ``y``, and its "start", "middle" or "end" (``anchor``) at ``x``.

    Letters shrink to the maximum width ``most``. ``is_turned`` text reads upwards.
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


Mark: TypeAlias = Stroke | Fill | Cells | Dots | Text


@dataclass(frozen=True, slots=True)
class Drawing:
    """Marks on paper, later marks above earlier marks; ``says`` is a description for screen readers."""

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
