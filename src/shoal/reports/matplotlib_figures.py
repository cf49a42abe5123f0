"""Drawings as files: SVG by shoal itself, PNG and PDF by matplotlib if it is installed (the extra ``report``)."""

from __future__ import annotations

import io
from typing import Any

from shoal.errors import UsageError
from shoal.hints import pip_install
from shoal.reports.marks import Cells, Dots, Drawing, Fill, Mark, Stroke, Text
from shoal.reports.palette import LIGHT
from shoal.reports.svg import svg_file

PICTURES = (".svg", ".png", ".pdf")
_PIXELS = 1200  # across
_POINTS_AN_INCH, _DOTS_AN_INCH = 72.0, 120


def has_matplotlib() -> bool:
    """Return True if pictures other than SVG can be drawn here."""
    try:
        import matplotlib.figure  # noqa: F401, PLC0415
    except ImportError:
        return False
    return True


def rendered(drawing: Drawing, suffix: str) -> bytes:
    """Render a drawing as a file, in light colours; PNG is 1200 pixels wide. Equal drawings give equal bytes.

    Raises
    ------
    UsageError
        The suffix is not in `PICTURES`, or matplotlib is needed and not installed.
    """
    if suffix == ".svg":
        return svg_file(drawing).encode("utf-8", errors="backslashreplace")
    if suffix not in PICTURES:
        msg = f"pictures are {', '.join(PICTURES)}; got {suffix!r}"
        raise UsageError(msg)
    try:
        from matplotlib import rc_context  # noqa: PLC0415
        from matplotlib.figure import Figure  # noqa: PLC0415  # not pyplot, which keeps figures and needs a screen
    except ImportError as error:
        msg = f"a picture as {suffix} needs matplotlib, which is not installed"
        raise UsageError(msg, hint=f"{pip_install('report')}, or write it as .svg") from error
    inches = _PIXELS / _DOTS_AN_INCH
    size = (inches, inches * drawing.height / drawing.width)
    with rc_context({"font.family": "DejaVu Sans", "path.simplify": False}):
        figure = Figure(figsize=size, dpi=_DOTS_AN_INCH, facecolor=LIGHT["paper"])
        axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
        axes.set(xlim=(0.0, drawing.width), ylim=(drawing.height, 0.0))
        axes.set_axis_off()
        points = inches * _POINTS_AN_INCH / drawing.width  # points per unit of the drawing
        for layer, mark in enumerate(drawing.marks):
            _draw(axes, mark, points, layer)
        file = io.BytesIO()
        # No date and no version in the file: equal numbers give equal bytes.
        more: dict[str, Any] = {"metadata": {"CreationDate": None}}
        if suffix == ".png":
            more = {"metadata": {"Software": None}, "pil_kwargs": {"optimize": True}}
        figure.savefig(file, format=suffix[1:], **more)
    return file.getvalue()


def _draw(axes: Any, mark: Mark, points: float, layer: int) -> None:
    """Draw one mark with matplotlib, above those of lower layers."""
    colour = LIGHT[mark.colour]
    match mark:
        case Stroke():
            # matplotlib measures dashes in line widths.
            style: Any = (0, tuple(each / mark.width for each in mark.dash)) if mark.dash else "-"
            for line in mark.lines:
                xs, ys = zip(*line, strict=True)
                width = mark.width * points
                caps: Any = {} if mark.dash else {"solid_capstyle": "round", "solid_joinstyle": "round"}
                axes.plot(xs, ys, color=colour, linewidth=width, linestyle=style, zorder=layer, clip_on=False, **caps)
        case Fill():
            xs, ys = zip(*mark.outline, strict=True)
            axes.fill(xs, ys, color=colour, alpha=mark.opacity, linewidth=0, zorder=layer)
        case Cells():
            _draw_cells(axes, mark, colour, layer)
        case Dots():
            xs, ys = zip(*mark.points, strict=True) if mark.points else ((), ())
            face, edge = (LIGHT["paper"], 1.5 * points) if mark.are_rings else (colour, 0.0)
            axes.plot(xs, ys, linestyle="", marker="o", markersize=2.0 * mark.radius * points, color=colour,
                      markerfacecolor=face, markeredgewidth=edge, zorder=layer, clip_on=False)  # fmt: skip
        case Text():
            _draw_text(axes, mark, colour, points, layer)


def _draw_cells(axes: Any, mark: Cells, colour: str, layer: int) -> None:
    from matplotlib.collections import PolyCollection  # noqa: PLC0415

    corners = [
        [(left, top), (left + wide, top), (left + wide, top + high), (left, top + high)]
        for left, top, wide, high in mark.boxes
    ]
    if corners:
        # Edges that are antialiased separately leave seams between cells that touch.
        cells = PolyCollection(corners, facecolors=colour, alpha=mark.opacity, linewidths=0, antialiaseds=False)
        cells.set_zorder(layer)
        axes.add_collection(cells, autolim=False)


def _draw_text(axes: Any, mark: Text, colour: str, points: float, layer: int) -> None:
    across = {"start": "left", "middle": "center", "end": "right"}[mark.anchor]
    text = axes.text(mark.x, mark.y, mark.text, color=colour, fontsize=mark.size * points, zorder=layer, ha=across,
                     va="baseline", fontweight="bold" if mark.is_bold else "normal", parse_math=False)  # fmt: skip
    if mark.is_turned:
        text.set(rotation=90, rotation_mode="anchor")
    if mark.most:
        # Letters of half the size are a little more than half as wide.
        for _ in range(4):
            wide = text.get_window_extent().width * _POINTS_AN_INCH / _DOTS_AN_INCH / points
            if wide <= mark.most:
                break
            text.set_fontsize(text.get_fontsize() * mark.most / wide)
