"""Colours by meaning, for light and dark, the same in pages, pictures and the terminal's charts.

Blue is measured or planned, green a perfect shuffle, red likely to do harm; orange is more than a perfect shuffle has,
violet is less. They stay distinct for people who do not see red or green, and no meaning depends on colour alone:
lines differ in their dashes, grades are words, and maps have a legend.
"""

from __future__ import annotations

from collections.abc import Mapping

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


def as_css(colours: Mapping[str, str]) -> str:
    """Return the colours as variables of a style.

    >>> as_css({"ink": "#000000"})
    '--ink:#000000'
    """
    return ";".join(f"--{name}:{colour}" for name, colour in colours.items())
