"""Drawings as SVG: within pages, whose style sets the colours, and as separate files in light colours.

Written here without a plotting library, whose drawings have fixed colours and texts as outlines: they neither turn
dark with the page nor can be read aloud, and are ten times as large.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from shoal.reports.marks import Cells, Dots, Drawing, Fill, Mark, Stroke, Text, text_width
from shoal.reports.palette import LIGHT, as_css

_FONT = 'system-ui,-apple-system,"Segoe UI",Roboto,"Liberation Sans",sans-serif'
STYLE = f"""
svg text{{font:11px {_FONT}}}
svg .bold{{font-weight:600}}
svg .line{{fill:none;stroke-linejoin:round;stroke-linecap:round}}
""" + "".join(f"svg .f-{name}{{fill:var(--{name})}}svg .s-{name}{{stroke:var(--{name})}}\n" for name in LIGHT)
"""CSS rules for drawings, for the style of a page."""


def svg_of(drawing: Drawing) -> str:
    """Return the element ``svg`` for use within a page."""
    return "\n".join([_opened(drawing, ""), *_elements(drawing), "</svg>"])


def svg_file(drawing: Drawing) -> str:
    """Return a separate SVG file; equal drawings give equal bytes."""
    size = f' xmlns="http://www.w3.org/2000/svg" width="{drawing.width:.0f}" height="{drawing.height:.0f}"'
    style = f"<style>:root{{{as_css(LIGHT)}}}{STYLE}</style>"
    paper = f'<rect class="f-paper" width="{drawing.width:.0f}" height="{drawing.height:.0f}"/>'
    return "\n".join([_opened(drawing, size), style, paper, *_elements(drawing), "</svg>", ""])


def _opened(drawing: Drawing, more: str) -> str:
    box = f"0 0 {drawing.width:.0f} {drawing.height:.0f}"
    return f'<svg{more} viewBox="{box}" role="img" aria-label="{escape(drawing.says)}">'


def _elements(drawing: Drawing) -> Iterator[str]:
    for mark in drawing.marks:
        yield from _element(mark)


def _element(mark: Mark) -> Iterator[str]:
    match mark:
        case Stroke():
            path = "".join(f"M{' '.join(f'{x:.1f},{y:.1f}' for x, y in line)}" for line in mark.lines)
            dash = f' stroke-dasharray="{" ".join(f"{each:g}" for each in mark.dash)}"' if mark.dash else ""
            yield f'<path class="line s-{mark.colour}" stroke-width="{mark.width:g}"{dash} d="{path}"/>'
        case Fill():
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in mark.outline)
            yield f'<path class="f-{mark.colour}"{_opacity(mark.opacity)} d="M{path}Z"/>'
        case Cells():
            path = "".join(
                f"M{left:.1f} {top:.1f}h{wide:.1f}v{high:.1f}h{-wide:.1f}z" for left, top, wide, high in mark.boxes
            )
            if path:
                # Edges that are antialiased separately leave seams between cells that touch.
                crisp = ' shape-rendering="crispEdges"'
                yield f'<path class="f-{mark.colour}"{_opacity(mark.opacity)}{crisp} d="{path}"/>'
        case Dots():
            look = f"f-paper s-{mark.colour}" if mark.are_rings else f"f-{mark.colour}"
            wide = ' stroke-width="1.5"' if mark.are_rings else ""
            for x, y in mark.points:
                yield f'<circle class="{look}"{wide} cx="{x:.1f}" cy="{y:.1f}" r="{mark.radius:g}"/>'
        case Text():
            yield _text(mark)


def _text(mark: Text) -> str:
    weight = " bold" if mark.is_bold else ""
    size = "" if mark.size == 11.0 else f' style="font-size:{mark.size:g}px"'
    anchor = "" if mark.anchor == "start" else f' text-anchor="{mark.anchor}"'
    turned = f' transform="rotate(-90 {mark.x:.0f} {mark.y:.0f})"' if mark.is_turned else ""
    # The width of a font is unknown here: a text that may be too wide gets an explicit width.
    tight = mark.most and text_width(mark.text, mark.size * 1.2, is_bold=mark.is_bold) > mark.most
    fitted = f' textLength="{mark.most:.0f}" lengthAdjust="spacingAndGlyphs"' if tight else ""
    return (
        f'<text class="f-{mark.colour}{weight}" x="{mark.x:.1f}" y="{mark.y:.1f}"{size}{anchor}{turned}{fitted}>'
        f"{escape(mark.text)}</text>"
    )


def _opacity(opacity: float) -> str:
    return "" if opacity == 1.0 else f' opacity="{opacity:.2f}"'
