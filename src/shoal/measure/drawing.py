"""Figures of matplotlib, where it is installed: one look for all pictures."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from shoal.errors import UsageError

__all__ = ["FAINT", "INK", "new_figure"]

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
        raise UsageError(msg, hint="pip install matplotlib") from error
    style: dict[Any, Any] = {"font.size": 9.5, "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": FAINT}
    style |= {"xtick.color": INK, "ytick.color": INK, "axes.linewidth": 0.8, "svg.hashsalt": "shoal"}
    with rc_context(style):
        yield Figure(figsize=(width_inches, height_inches), facecolor="white", **options)
