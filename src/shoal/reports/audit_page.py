"""An audit as a page and as a picture: its grade, its findings with cause and cure, and its figures."""

from __future__ import annotations

import math
from collections.abc import Mapping

from shoal.quality.auditing import Audit
from shoal.quality.findings import as_sentence
from shoal.reports.audit_figures import about_audit, audit_figures
from shoal.reports.marks import Drawing
from shoal.reports.page_document import document, facts, figures, fold, paragraph, section, weighed
from shoal.reports.sheet import in_pairs, sheet

_SHOWN = 4  # findings; the rest, which weighs less, is folded


def audit_page(
    result: Audit,
    *,
    title: str,
    order: str = "",
    made_by: str = "shoal audit",
    predicted: Mapping[int, float] | None = None,
) -> str:
    """Return the page of an audit as self-contained HTML.

    Parameters
    ----------
    result
        The result of `shoal.measure.audit`.
    title
        Title of the page, which names what was audited.
    order
        The order as a call, if it is one of shoal's.
    made_by
        The command that recreates the page.
    predicted
        Predicted VR by batch size, if any.

    Examples
    --------
    >>> from shoal.measure import audit
    >>> audit_page(audit(range(500)), title="Storage order").startswith("<!DOCTYPE html>")
    True
    """
    body = [
        section("What was found", *_findings(result)),
        section("In pictures", figures(audit_figures(result, predicted or {}))),
        section("In numbers", facts(_facts(result))),
    ]
    return document(
        title=title,
        lead=result.verdict,
        about=about_audit(result),
        call=order,
        headline=(result.grade, result.headline),
        body=body,
        made_by=made_by,
    )


def audit_picture(result: Audit, *, title: str = "", predicted: Mapping[int, float] | None = None) -> Drawing:
    """Return figures and findings as one drawing, for `shoal.reports.matplotlib_figures.rendered`."""
    return sheet(
        title or "Audit of an order",
        about=about_audit(result),
        headline=(result.grade, result.headline),
        rows=in_pairs(audit_figures(result, predicted or {})),
        lead=result.verdict,
        notes=_notes(result),
    )


def _findings(result: Audit) -> list[str]:
    if not result.findings:
        return [paragraph("Nothing that a perfect shuffle does not do.")]
    items = _explained(result)
    heavy = [item for item in items if item[1]]
    mild = [item for item in items if not item[1]]
    parts = [weighed(heavy[:_SHOWN])] if heavy else []
    if heavy[_SHOWN:]:
        parts.append(fold(f"{len(heavy) - _SHOWN} more serious findings that weigh less", weighed(heavy[_SHOWN:])))
    if mild:
        count = "1 finding that seldom matters" if len(mild) == 1 else f"{len(mild)} findings that seldom matter"
        parts.append(fold(count, weighed(mild)))
    return parts


def _notes(result: Audit) -> list[tuple[str, bool, str]]:
    """Return the heaviest findings in words, and the names of the others."""
    items = [item for item in _explained(result) if item[1]][:_SHOWN]
    notes = [
        (name, is_bad, " ".join(f"{label}: {text}" if label else text for label, text in texts))
        for name, is_bad, texts in items
    ]
    others = result.findings[len(items) :]
    names = ", ".join(each.name if each.is_serious else f"{each.name} (mild)" for each in others)
    return [*notes, *([("also found", False, as_sentence(names))] if others else [])]


def _explained(result: Audit) -> list[tuple[str, bool, list[tuple[str, str]]]]:
    """Return name, seriousness and labelled texts of each finding; a cause is given only at the heaviest."""
    told: set[str] = set()
    items = []
    for each in result.findings:
        texts = [("", as_sentence(each.text))]
        if each.cause not in told:
            texts.append(("Usual cause", as_sentence(each.cause)))
        if each.cure not in told:
            texts.append(("Cure", as_sentence(each.cure)))
        told |= {each.cause, each.cure}
        weight = "serious" if each.is_serious else "mild"
        items.append((f"{each.name} ({weight}, {each.where})", each.is_serious, texts))
    return items


def _moved(share: float) -> str:
    """Return a share of the dataset as text, with its sign unless it rounds to zero."""
    return f"{round(100 * share):+d}%" if round(100 * share) else "0%"


def _facts(result: Audit) -> dict[str, str]:
    said = {
        "Not in this part" if result.is_part else "Samples missing": f"{result.missing:,}",
        "Repeated": f"{result.repeated:,}",
        "Unknown": f"{result.unknown:,}",
    }
    if result.vr:
        said["VR of the batch"] = f"{result.vr[result.batch]:.2f}"
        said["Effective batch"] = f"{result.effective_batch:,.0f} of {result.batch:,}"
    if not math.isnan(result.start_vr):
        said["VR at start and end"] = f"{result.start_vr:.2f}, {result.end_vr:.2f}"
    said["Rank correlation"] = f"{result.rank_correlation:.3f}"
    said["Moved by (1 %, half, 99 %)"] = ", ".join(map(_moved, result.displacement))
    if not math.isnan(result.remet):
        said["Neighbours met again"] = f"{result.remet:.2%} (perfect {result.expected_remet:.2%})"
    said["Looks taken"] = f"{result.num_looks:,}"
    return said
