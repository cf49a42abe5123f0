"""Figures of matplotlib, where it is installed: one look for all pictures."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from shoal.errors import UsageError
from shoal.hints import pip_install

__all__ = ["FAINT", "INK", "fit_width", "new_figure"]

INK, FAINT = "#222222", "#9a9a9a"


@contextmanager
def new_figure(width_inches: float, height_inches: float, **options: Any) -> Iterator[Any]:
    """A white figure, to be drawn and saved inside the ``with``.

    Raises
    ------
    UsageError
        matplotlib is not installed.
    """
    try:
        from matplotlib import rc_context  # noqa: PLC0415
        from matplotlib.figure import Figure  # noqa: PLC0415  # not pyplot: it keeps figures, and wants a screen
    except ImportError as error:
        msg = "the picture needs matplotlib, which is not installed"
        raise UsageError(msg, hint=pip_install("report")) from error
    style: dict[Any, Any] = {"font.size": 9.5, "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": FAINT}
    style |= {"xtick.color": INK, "ytick.color": INK, "axes.linewidth": 0.8, "svg.hashsalt": "shoal"}
    with rc_context(style):
        yield Figure(figsize=(width_inches, height_inches), facecolor="white", **options)


def fit_width(text: Any, *, right: float) -> None:
    """Make the letters of a text of a figure as small as they must be for it to end before ``right``, a share of it."""
    most = right * text.figure.bbox.x1
    for _ in range(4):  # letters of half the size are a little more than half as wide
        place = text.get_window_extent()
        if place.x1 <= most:
            return
        text.set_fontsize(text.get_fontsize() * (most - place.x0) / place.width)
