"""Audits in notebooks: the grade first, then figures, and the findings that matter."""

from __future__ import annotations

from html import escape

from shoal.tools.auditing.auditing import Audit
from shoal.tools.auditing.findings import as_sentence
from shoal.tools.notebook.fragment import figure, fragment, heading, key
from shoal.tools.reports.audit_page import audit_figures, with_advice

_COLOURS = {"good": "perfect", "fair": "fair", "poor": "bad", "unknown": "rule"}
_MOST_FIGURES, _MOST_FINDINGS = 2, 4


def audit_html(result: Audit) -> str:
    """Return an audit as HTML: the first figures of its page, and its serious findings with their cures."""
    drawn = [
        f'<div><p>{escape(each.title)}. <span class="soft">{escape(each.note)}</span></p>{figure(each.drawing)}</div>'
        for each in audit_figures(result, {})[:_MOST_FIGURES]
    ]
    serious = [(finding, advice) for finding, advice in with_advice(result) if finding.is_serious]
    items = []
    for finding, advice in serious[:_MOST_FINDINGS]:
        texts = [as_sentence(finding.text), *(f"{label.capitalize()}: {as_sentence(text)}" for label, text in advice)]
        items.append(f"<li><b>{escape(finding.name)}</b> {escape(' '.join(texts))}</li>")
    others = len(result.findings) - len(items)
    more = f'<p class="soft">{others:,} more findings; print(audit) lists all.</p>' if others else ""
    beside = f"{result.num_delivered:,} samples delivered, of {result.num_samples:,} in {result.num_epochs} epochs"
    return fragment(
        heading("Audit", beside.replace("in 1 epochs", "in an epoch")),
        f'<p class="headline">{key(_COLOURS[result.grade], result.headline)}</p>',
        f"<p>{escape(result.verdict)}</p>",
        f'<div class="figures">{"".join(drawn)}</div>' if drawn else "",
        f"<ul>{''.join(items)}</ul>" if items else "",
        more,
    )
