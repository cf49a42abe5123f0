"""Parts of HTML for notebooks: each carries its style, and takes the colours of the notebook, light or dark.

Text has the colour of the notebook. Marks have colours of medium lightness, which stand out on white and on black. No
rule of the style reaches beyond the part. Some viewers remove the style: headings, lists and numbers remain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from shoal.tools.reports.marks import LIGHT, Drawing
from shoal.tools.reports.page_document import CARD_RULES
from shoal.tools.reports.rendering import STYLE, as_css, svg_of

_COLOURS = {
    **dict.fromkeys(LIGHT, "currentColor"),
    "paper": "transparent",
    "panel": "rgba(128,128,128,.1)",
    "rule": "rgba(128,128,128,.4)",
    "data": "#2f8fcb",
    "perfect": "#1f9e76",
    "bad": "#d4543f",
    "fair": "#b0821a",
    "more": "#d9772b",
    "less": "#8a78d0",
}
_RULES = (
    ".head{margin:0 0 .5rem;font-size:1.05em;overflow-wrap:anywhere}",
    ".head b{font-weight:650}",
    ".soft{opacity:.75}",
    "h3{font-size:1em;font-weight:600;margin:0 0 .15rem;line-height:1.35}",
    "dl>div{display:contents}",
    "dl.many>div{display:block}",
    "dl{display:grid;grid-template-columns:minmax(5.5em,max-content) 1fr;gap:.2rem 1rem;margin:.4rem 0;padding:0}",
    "dt{opacity:.75;font-weight:400;margin:0;padding:0;grid-column:1;float:none;width:auto;overflow-wrap:anywhere}",
    "dd{margin:0;padding:0;font-weight:400;overflow-wrap:anywhere;font-variant-numeric:tabular-nums}",
    "code{font-size:.92em;background:none;padding:0;overflow-wrap:anywhere;white-space:pre-wrap;color:inherit}",
    ".bar{display:flex;height:.7em;margin:.3em 0;background:var(--panel);border-radius:.2em;overflow:hidden}",
    ".bar{max-width:26rem}",
    ".bar i{display:block;height:100%}",
    "p{margin:.3rem 0;max-width:46em;overflow-wrap:anywhere}",
    "dl.many{display:block;columns:16rem;column-gap:2rem}",
    "dl.many dt,dl.many dd{display:inline}",
    ".headline{font-size:1.2em;font-weight:650;line-height:1.3;margin:.2rem 0 .4rem}",
    ".chip{display:inline-block;background:var(--panel);border-radius:.3em;padding:0 .45em;margin:0 .3em .15em 0}",
    ".key{display:inline-block;width:.7em;height:.7em;border-radius:.2em;margin-right:.35em}",
    "details{margin:.3rem 0}",
    "summary{cursor:pointer;opacity:.75}",
    "svg.figure{display:block;width:100%;max-width:26rem;height:auto;margin:.3rem 0}",
    ".figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,20rem),26rem));gap:.5rem 2rem}",
    "ul{margin:.3rem 0;padding-left:1.2em;max-width:50em}",
    "li{margin:.3rem 0}",
    "img{border-radius:.2rem}",
)


def _scoped(rules: Sequence[str]) -> str:
    """Limit rules to the parts; the doubled class outweighs the rules of notebooks."""
    lines = []
    for rule in rules:
        selectors, _, rest = rule.partition("{")
        lines.append(",".join(f".shoal.shoal {selector}" for selector in selectors.split(",")) + "{" + rest)
    return "\n".join(lines)


_SVG_RULES = [line for line in STYLE.splitlines() if line]
_STYLE = "\n".join(
    [
        f".shoal{{{as_css(_COLOURS)};color:inherit;line-height:1.45;max-width:64rem;text-align:left}}",
        _scoped([*CARD_RULES, *_RULES, *(f"{part}}}" for line in _SVG_RULES for part in line.split("}") if part)]),
        ".shoal.shoal svg .f-soft{opacity:.75}",
    ]
)


def fragment(*parts: str) -> str:
    """Return parts of HTML as one part with its style."""
    return f'<div class="shoal"><style>{_STYLE}</style>\n' + "\n".join([*filter(None, parts), "</div>"])


def heading(name: str, beside: str = "") -> str:
    """Return a line with a name, and soft text beside it."""
    soft = f' <span class="soft">{escape(beside)}</span>' if beside else ""
    return f'<p class="head"><b>{escape(name)}</b>{soft}</p>'


def facts_list(pairs: Mapping[str, str], *, kind: str = "") -> str:
    """Return names and values, without empty values; values are HTML. ``kind`` "many" lists them in columns."""
    lines = [f"<div><dt>{escape(name)}</dt> <dd>{value}</dd></div>" for name, value in pairs.items() if value]
    return f'<dl class="{kind}">\n' + "\n".join([*lines, "</dl>"])


def bar(shares: Mapping[str, float]) -> str:
    """Return a bar with parts, each a share from 0 to 1, by colour."""
    parts = "".join(
        f'<i style="width:{100 * min(1.0, max(0.0, share)):.1f}%;background:var(--{colour})"></i>'
        for colour, share in shares.items()
    )
    return f'<span class="bar" aria-hidden="true">{parts}</span>'


def named_bars(rows: Sequence[tuple[str, float, str]]) -> str:
    """Return rows with a name, a share from 0 to 1 as a bar, and words."""
    return facts_list({name: f"{escape(words)}{bar({'data': share})}" for name, share, words in rows})


def key(colour: str, text: str) -> str:
    """Return a text behind a square of a colour."""
    return f'<span class="key" style="background:var(--{colour})"></span>{escape(text)}'


def figure(drawing: Drawing) -> str:
    """Return a drawing as SVG."""
    return svg_of(drawing, attributes=' class="figure"')


def chips(texts: Sequence[str]) -> str:
    """Return short texts of code in a row."""
    return " ".join(f'<code class="chip">{escape(text)}</code>' for text in texts)
