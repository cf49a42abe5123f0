"""Write HTML pages with text, figures and tables, in light and dark.

Texts from data and arguments are escaped. A page has no other address, and its policy forbids the browser to load any.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from html import escape

from shoal.tools.reports.curve_figures import Figure
from shoal.tools.reports.marks import DARK, LIGHT
from shoal.tools.reports.rendering import STYLE, as_css, svg_of

_POLICY = "default-src 'none'; img-src data:; media-src data:; style-src 'unsafe-inline'"

CARD_RULES = (
    ".cards{list-style:none;padding:0;max-width:none;display:grid;gap:.9rem}",
    ".cards{grid-template-columns:repeat(auto-fill,minmax(min(100%,19rem),1fr))}",
    ".cards>li{margin:0;padding:.8rem .9rem;overflow-wrap:anywhere;display:flow-root}",
    ".cards>li{background:var(--panel);border:1px solid var(--rule);border-radius:.4rem}",
    ".cards p{margin:.3rem 0;line-height:1.45}",
    ".cards .soft{font-size:.87rem}",
    ".cards .text{display:-webkit-box;-webkit-box-orient:vertical;-webkit-line-clamp:6;overflow:hidden}",
    ".cards img{float:right;margin:.1rem 0 .5rem .8rem}",
    ".cards audio{display:block;width:100%;height:2.2rem;margin:.3rem 0}",
    ".cards .outline{display:block;width:100%;height:2.5rem;margin:.3rem 0}",
    ".cards.tiles{grid-template-columns:repeat(auto-fill,minmax(min(46%,11.5rem),1fr))}",
    ".cards.tiles img{float:none;display:block;margin:.4rem auto;max-width:100%;height:auto;image-rendering:auto}",
    ".cards.tiles .fine{image-rendering:pixelated}",
)
"""CSS rules of `cards`, for pages and for notebooks."""
_STYLE = (
    f""":root{{color-scheme:light dark;{as_css(LIGHT)}}}
@media (prefers-color-scheme:dark){{:root{{{as_css(DARK)}}}}}
"""
    """*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:1rem/1.55 system-ui,-apple-system,"Segoe UI",Roboto,
"Liberation Sans",sans-serif}
main,header,footer{max-width:64rem;margin:0 auto;padding:0 1.25rem}
header{padding-top:2.25rem}
h1{font-size:1.7rem;line-height:1.2;margin:0 0 .35rem;letter-spacing:-.01em;overflow-wrap:anywhere}
h2{font-size:1.2rem;margin:2.4rem 0 .7rem;line-height:1.3}
h3{font-size:1rem;margin:0 0 .15rem;line-height:1.35}
p{margin:.4rem 0;max-width:46rem;overflow-wrap:anywhere}
.lead{font-size:1.12rem;line-height:1.5;max-width:44rem;margin-top:.9rem}
.soft,figcaption p{color:var(--soft)}
figcaption p{font-size:.9rem;line-height:1.4;margin:0 0 .6rem}
code{font:.9em/1.5 ui-monospace,"SF Mono",Menlo,Consolas,"Liberation Mono",monospace;overflow-wrap:anywhere}
.call{display:block;background:var(--panel);border:1px solid var(--rule);border-radius:.4rem;padding:.65rem .8rem;
margin:.8rem 0}
.figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,25rem),1fr));gap:2rem 2.5rem}
figure{margin:0;min-width:0;display:flex;flex-direction:column}
figure svg{width:100%;height:auto;max-width:38rem;display:block}
details{margin:.4rem 0}
summary{cursor:pointer;color:var(--soft);font-size:.9rem;padding:.45rem 0}
summary:hover{color:var(--ink)}
:focus-visible{outline:3px solid var(--data);outline-offset:2px;border-radius:2px}
.scroll{overflow-x:auto;margin:.4rem 0}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:.9rem}
caption{text-align:left;color:var(--soft);font-size:.9rem;padding:0 0 .5rem;line-height:1.4}
th,td{padding:.38rem .75rem .38rem 0;text-align:right;vertical-align:baseline;border-bottom:1px solid var(--rule);
white-space:nowrap}
th{font-weight:600}
thead th{color:var(--soft);font-weight:500;white-space:normal;line-height:1.25;vertical-align:bottom}
th:last-child,td:last-child{padding-right:.2rem}
th.words{text-align:left}
tr.here{font-weight:600}
dl{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(46%,11.5rem),1fr));gap:.9rem 1.5rem;margin:.8rem 0}
dt{color:var(--soft);font-size:.87rem;line-height:1.3}
dd{margin:.1rem 0 0;font-weight:600;font-variant-numeric:tabular-nums;overflow-wrap:anywhere}
ul{padding-left:1.1rem;max-width:46rem}
li{margin:.5rem 0}
.good{color:var(--perfect)}.unknown{color:var(--soft)}.fair{color:var(--fair)}.bad,.poor{color:var(--bad)}
.headline{font-size:1.45rem;line-height:1.25;font-weight:650;margin:1rem 0 .4rem}
.findings{list-style:none;padding:0}
.findings>li{border-left:.3rem solid var(--rule);padding:.1rem 0 .1rem .9rem;margin:1rem 0}
.findings>li.bad-side{border-color:var(--bad)}
.findings p{margin:.15rem 0}
footer{margin-top:3rem;padding-top:1rem;padding-bottom:2.5rem;color:var(--soft);font-size:.87rem}
img{max-width:100%;height:auto;border-radius:.2rem;display:block}
@media print{:root{color-scheme:light}details>*{display:block}}
""" + "\n".join(CARD_RULES) + STYLE
)


def document(
    *,
    title: str,
    lead: str,
    about: str,
    call: str = "",
    headline: tuple[str, str] = ("", ""),
    body: Sequence[str],
    made_by: str,
    heading: str = "",
    window_title: str = "",
    style: str = "",
    script: str = "",
    before: str = "",
) -> str:
    """Return a whole page with the given sections.

    ``lead`` is its message, ``about`` a line on its data, ``call`` its code, ``headline`` a grade ("good", "fair",
    "poor" or "unknown") and a line in its colour, ``made_by`` the command that writes the page. ``heading`` is HTML in
    place of the title, ``window_title`` a text for the window, ``before`` HTML above all. A ``script`` may connect to
    the server of the page.
    """
    policy = policy_with(script)
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            f"<title>{escape(window_title or title)}</title>",
            f"<style>{_STYLE}{style}</style>",
            "</head>",
            "<body>",
            *([before] if before else []),
            f'<header><h1>{heading or escape(title)}</h1><p class="soft">{escape(about)}</p>'
            + (f'<code class="call">{escape(call)}</code>' if call else "")
            + (f'<p class="headline {headline[0]}">{escape(headline[1])}</p>' if headline[1] else "")
            + (f'<p class="lead">{escape(lead)}</p>' if lead else "")
            + "</header>",
            "<main>",
            *body,
            "</main>",
            f"<footer>Made by <code>{escape(made_by)}</code></footer>",
            *([f"<script>{script}</script>"] if script else []),
            "</body>",
            "</html>",
            "",
        ]
    )


def policy_with(script: str) -> str:
    """Return the policy of a page: no address but its own, and no script but this one.

    >>> policy_with("")
    "default-src 'none'; img-src data:; media-src data:; style-src 'unsafe-inline'"
    """
    if not script:
        return _POLICY
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"{_POLICY}; script-src 'sha256-{digest}'; connect-src 'self'; base-uri 'none'; form-action 'none'"


def section(title: str, *parts: str) -> str:
    """Return a heading and its parts, as a region that the heading labels."""
    name = _identifier(title)
    opened = f'<section aria-labelledby="{name}">\n<h2 id="{name}">{escape(title)}</h2>'
    return "\n".join([opened, *parts, "</section>"])


def _identifier(title: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in title.lower())


def paragraph(text: str, *, kind: str = "") -> str:
    """Return a paragraph; ``kind`` is a class of the style."""
    return f'<p class="{kind}">{escape(text)}</p>' if kind else f"<p>{escape(text)}</p>"


def weighed(items: Sequence[tuple[str, bool, Sequence[tuple[str, str]]]]) -> str:
    """Return a list of findings: name, True if bad, and labelled texts."""
    lines = []
    for name, is_bad, texts in items:
        side, sign = ("bad-side", "bad") if is_bad else ("", "soft")
        body = "".join(
            f'<p>{f"""<span class="soft">{escape(label)}:</span> """ if label else ""}{escape(text)}</p>'
            for label, text in texts
        )
        lines.append(f'<li class="{side}"><h3 class="{sign}">{escape(name)}</h3>{body}</li>')
    return '<ul class="findings">\n' + "\n".join([*lines, "</ul>"])


def cards(items: Sequence[tuple[str, str, Sequence[str]]], *, kind: str = "cards") -> str:
    """Return cards: heading, soft text, and paragraphs as HTML; ``kind`` "cards tiles" for narrow cards of pictures."""
    lines = [
        f'<li><h3>{escape(name)} <span class="soft">{escape(beside)}</span></h3>' + "".join(parts) + "</li>"
        for name, beside, parts in items
    ]
    return f'<ul class="{kind}">\n' + "\n".join([*lines, "</ul>"])


def figures(drawn: Sequence[Figure]) -> str:
    """Return figures, side by side on a wide screen."""
    return '<div class="figures">\n' + "\n".join([*map(_figure, drawn), "</div>"])


def _figure(figure: Figure) -> str:
    name = f"figure-{_identifier(figure.title)}"
    after = ""
    if (numbers := figure.numbers) is not None:
        after = fold(
            "The numbers", table(numbers.caption, numbers.heads, numbers.rows, highlighted=numbers.highlighted)
        )
    head = f'<h3 id="{name}">{escape(figure.title)}</h3><p>{escape(figure.note)}</p>'
    opened = f'<figure aria-labelledby="{name}">\n<figcaption>{head}</figcaption>'
    return "\n".join([opened, svg_of(figure.drawing), after, "</figure>"])


def facts(pairs: Mapping[str, str]) -> str:
    """Return a list of names and values."""
    lines = [f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in pairs.items()]
    return "<dl>\n" + "\n".join([*lines, "</dl>"])


def fold(title: str, content: str) -> str:
    """Return content that opens on request, also by keyboard."""
    return f"<details><summary>{escape(title)}</summary>\n{content}\n</details>"


def table(caption: str, heads: Sequence[str], rows: Sequence[Sequence[str]], *, highlighted: int | None = None) -> str:
    """Return a table whose first column names its rows, in a scrollable region named by ``caption``.

    The keyboard can reach and scroll the region. The row ``highlighted`` stands out.
    """
    head = "".join(
        f'<th scope="col" class="{"number" if at else "words"}">{escape(text)}</th>' for at, text in enumerate(heads)
    )
    lines = [
        ('<tr class="here">' if number == highlighted else "<tr>")
        + f'<th scope="row" class="words">{escape(name)}</th>'
        + "".join(f"<td>{escape(text)}</td>" for text in texts)
        + "</tr>"
        for number, (name, *texts) in enumerate(rows)
    ]
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(caption)}">\n<table>\n'
        f"<caption>{escape(caption)}</caption>\n<thead><tr>{head}</tr></thead>\n<tbody>\n"
        + "\n".join([*lines, "</tbody>\n</table>\n</div>"])
    )
