"""Render drawings as SVG within pages, and as SVG, PNG and PDF files.

SVG is written without a plotting library: its drawings are ten times as large, cannot turn dark with the page, and have
texts that cannot be read aloud. PNG and PDF need matplotlib (the extra ``report``).
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from shoal.errors import UsageError
from shoal.hints import pip_install
from shoal.tools.reports.marks import LIGHT, Cells, Dots, Drawing, Fill, Mark, Stroke, Text, text_width

PICTURES = (".svg", ".png", ".pdf")
_PIXELS = 1200  # across
_POINTS_AN_INCH, _DOTS_AN_INCH = 72.0, 120

_FONT = 'system-ui,-apple-system,"Segoe UI",Roboto,"Liberation Sans",sans-serif'
STYLE = f"""
svg text{{font:11px {_FONT}}}
svg .bold{{font-weight:600}}
svg .line{{fill:none;stroke-linejoin:round;stroke-linecap:round}}
""" + "".join(f"svg .f-{name}{{fill:var(--{name})}}svg .s-{name}{{stroke:var(--{name})}}\n" for name in LIGHT)
"""CSS rules of drawings."""


def as_css(colours: Mapping[str, str]) -> str:
    """Return colours as variables of a style."""
    return ";".join(f"--{name}:{colour}" for name, colour in colours.items())


def svg_of(drawing: Drawing, *, attributes: str = "", below: str = "") -> str:
    """Return the element ``svg`` for a page with `STYLE`; the marks are drawn over the elements in ``below``."""
    box = f"0 0 {drawing.width:.0f} {drawing.height:.0f}"
    opened = f'<svg{attributes} viewBox="{box}" role="img" aria-label="{escape(drawing.says)}">{below}'
    return "\n".join([opened, *(line for mark in drawing.marks for line in _elements(mark)), "</svg>"])


def _svg_file(drawing: Drawing) -> str:
    size = f'width="{drawing.width:.0f}" height="{drawing.height:.0f}"'
    below = f'\n<style>:root{{{as_css(LIGHT)}}}{STYLE}</style>\n<rect class="f-paper" {size}/>'
    return svg_of(drawing, attributes=f' xmlns="http://www.w3.org/2000/svg" {size}', below=below) + "\n"


def _elements(mark: Mark) -> Iterator[str]:
    match mark:
        case Stroke():
            path = "".join(f"M{' '.join(f'{x:.1f},{y:.1f}' for x, y in line)}" for line in mark.lines)
            dash = f' stroke-dasharray="{" ".join(f"{length:g}" for length in mark.dash)}"' if mark.dash else ""
            yield f'<path class="line s-{mark.colour}" stroke-width="{mark.width:g}"{dash} d="{path}"/>'
        case Fill():
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in mark.points)
            yield f'<path class="f-{mark.colour}"{_opacity(mark.opacity)} d="M{path}Z"/>'
        case Cells():
            path = "".join(
                f"M{left:.1f} {top:.1f}h{wide:.1f}v{high:.1f}h{-wide:.1f}z" for left, top, wide, high in mark.boxes
            )
            if path:
                # Antialiased edges leave seams between cells.
                crisp = ' shape-rendering="crispEdges"'
                yield f'<path class="f-{mark.colour}"{_opacity(mark.opacity)}{crisp} d="{path}"/>'
        case Dots():
            colours = f"f-paper s-{mark.colour}" if mark.are_rings else f"f-{mark.colour}"
            wide = ' stroke-width="1.5"' if mark.are_rings else ""
            for x, y in mark.points:
                yield f'<circle class="{colours}"{wide} cx="{x:.1f}" cy="{y:.1f}" r="{mark.radius:g}"/>'
        case Text():
            yield _text(mark)


def _text(mark: Text) -> str:
    weight = " bold" if mark.is_bold else ""
    size = "" if mark.size == 11.0 else f' style="font-size:{mark.size:g}px"'
    anchor = "" if mark.anchor == "start" else f' text-anchor="{mark.anchor}"'
    turned = f' transform="rotate(-90 {mark.x:.0f} {mark.y:.0f})"' if mark.is_turned else ""
    # The font is unknown: a text that may be too wide gets its estimated width, within bounds.
    width = text_width(mark.text, mark.size, is_bold=mark.is_bold)
    is_tight = mark.most and 1.2 * width > mark.most
    fitted = f' textLength="{min(mark.most, width):.0f}" lengthAdjust="spacingAndGlyphs"' if is_tight else ""
    return (
        f'<text class="f-{mark.colour}{weight}" x="{mark.x:.1f}" y="{mark.y:.1f}"{size}{anchor}{turned}{fitted}>'
        f"{escape(mark.text)}</text>"
    )


def _opacity(opacity: float) -> str:
    return "" if opacity == 1.0 else f' opacity="{opacity:.2f}"'


def has_matplotlib() -> bool:
    """Return True if matplotlib is installed, for pictures other than SVG."""
    try:
        import matplotlib.figure  # noqa: F401, PLC0415
    except ImportError:
        return False
    return True


def rendered(drawing: Drawing, suffix: str) -> bytes:
    """Render a drawing as a file, in light colours; PNG is 1200 pixels wide. Equal drawings give equal bytes.

    Raises `UsageError` if the suffix is not in `PICTURES`, or if matplotlib is needed and not installed.
    """
    if suffix == ".svg":
        return _svg_file(drawing).encode("utf-8", errors="backslashreplace")
    if suffix not in PICTURES:
        raise UsageError(f"pictures are {', '.join(PICTURES)}; got {suffix!r}")
    try:
        from matplotlib import rc_context  # noqa: PLC0415
        from matplotlib.figure import Figure  # noqa: PLC0415  # pyplot keeps figures and needs a screen
    except ImportError as error:
        msg = f"a picture as {suffix} needs matplotlib, which is not installed"
        raise UsageError(msg, hint=f"{pip_install('matplotlib')}, or write it as .svg") from error
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
        # Without date and version, equal drawings give equal bytes.
        more: dict[str, Any] = {"metadata": {"CreationDate": None}}
        if suffix == ".png":
            more = {"metadata": {"Software": None}, "pil_kwargs": {"optimize": True}}
        figure.savefig(file, format=suffix[1:], **more)
    return file.getvalue()


def _draw(axes: Any, mark: Mark, points: float, layer: int) -> None:
    """Draw one mark with matplotlib, above lower layers."""
    colour = LIGHT[mark.colour]
    match mark:
        case Stroke():
            # matplotlib measures dashes in line widths.
            style: Any = (0, tuple(length / mark.width for length in mark.dash)) if mark.dash else "-"
            for line in mark.lines:
                xs, ys = zip(*line, strict=True)
                width = mark.width * points
                caps: Any = {} if mark.dash else {"solid_capstyle": "round", "solid_joinstyle": "round"}
                axes.plot(xs, ys, color=colour, linewidth=width, linestyle=style, zorder=layer, clip_on=False, **caps)
        case Fill():
            xs, ys = zip(*mark.points, strict=True)
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
        # Antialiased edges leave seams between cells.
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
