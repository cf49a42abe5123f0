"""An audit as a page and as a picture, and compared orders as a picture."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from shoal.tools.auditing.auditing import Audit
from shoal.tools.auditing.findings import Finding, as_sentence
from shoal.tools.auditing.order_comparison import ComparedOrder
from shoal.tools.reports.curve_figures import (
    Axis,
    Figure,
    Line,
    Numbers,
    curve_figure,
    plain_axis,
    size_axis,
    variance_figure,
)
from shoal.tools.reports.heat_map import heat_figure, heat_map
from shoal.tools.reports.marks import Drawing
from shoal.tools.reports.page_document import document, facts, figures, fold, paragraph, section, weighed
from shoal.tools.reports.sheet import in_pairs, sheet

_SHOWN = 4  # findings; lighter findings are folded
_KINDS = ("bad", "fair", "ink", "soft")  # colours of compared orders


def audit_page(
    result: Audit,
    *,
    title: str,
    order: str = "",
    made_by: str = "shoal audit",
    predicted: Mapping[int, float] | None = None,
) -> str:
    """Return the page of an audit as self-contained HTML.

    ``order`` is the call of an order of shoal, ``made_by`` the command that writes the page, ``predicted`` the
    predicted VR by batch size.

    >>> from shoal.measure import audit
    >>> audit_page(audit(range(500)), title="Storage order").startswith("<!DOCTYPE html>")
    True
    """
    body = [
        section("Findings", *_findings(result)),
        section("In pictures", figures(audit_figures(result, predicted or {}))),
        section("In numbers", facts(_facts(result))),
    ]
    return document(
        title=title,
        lead=result.verdict,
        about=_about(result),
        call=order,
        headline=(result.grade, result.headline),
        body=body,
        made_by=made_by,
    )


def audit_picture(result: Audit, *, title: str = "", predicted: Mapping[int, float] | None = None) -> Drawing:
    """Draw the figures and findings of an audit."""
    return sheet(
        title or "Audit of an order",
        about=_about(result),
        headline=(result.grade, result.headline),
        rows=in_pairs(audit_figures(result, predicted or {})),
        lead=result.verdict,
        notes=_notes(result),
    )


def _findings(result: Audit) -> list[str]:
    if not result.findings:
        return [paragraph("Nothing: the order is like a perfect shuffle.")]
    items = _explained(result)
    heavy = [item for item in items if item[1]]
    mild = [item for item in items if not item[1]]
    parts = [weighed(heavy[:_SHOWN])] if heavy else []
    if heavy[_SHOWN:]:
        parts.append(fold(f"{len(heavy) - _SHOWN} lighter serious findings", weighed(heavy[_SHOWN:])))
    if mild:
        count = "1 finding that seldom matters" if len(mild) == 1 else f"{len(mild)} findings that seldom matter"
        parts.append(fold(count, weighed(mild)))
    return parts


def _notes(result: Audit) -> list[tuple[str, bool, str]]:
    """Return the heaviest findings as text, and the names of the others."""
    items = [item for item in _explained(result) if item[1]][:_SHOWN]
    notes = [
        (name, is_bad, " ".join(f"{label}: {text}" if label else text for label, text in texts))
        for name, is_bad, texts in items
    ]
    others = result.findings[len(items) :]
    names = ", ".join(finding.name if finding.is_serious else f"{finding.name} (mild)" for finding in others)
    return [*notes, *([("also found", False, as_sentence(names))] if others else [])]


def with_advice(result: Audit) -> Iterator[tuple[Finding, list[tuple[str, str]]]]:
    """Yield each finding with its usual cause and cure by label; an advice is not repeated for lighter findings."""
    shown: set[str] = set()
    for finding in result.findings:
        advice = [("usual cause", finding.cause), ("cure", finding.cure)]
        yield finding, [(label, text) for label, text in advice if text not in shown]
        shown |= {finding.cause, finding.cure}


def _explained(result: Audit) -> list[tuple[str, bool, list[tuple[str, str]]]]:
    """Return name, seriousness and labelled texts of each finding."""
    return [
        (
            f"{finding.name} ({'serious' if finding.is_serious else 'mild'}, {finding.where})",
            finding.is_serious,
            [("", as_sentence(finding.text)), *((label.capitalize(), as_sentence(text)) for label, text in advice)],
        )
        for finding, advice in with_advice(result)
    ]


def _facts(result: Audit) -> dict[str, str]:
    texts = {
        "Not in this part" if result.is_part else "Samples missing": f"{result.missing:,}",
        "Repeated": f"{result.repeated:,}",
        "Unknown": f"{result.unknown:,}",
    }
    if result.vr:
        texts["VR of the batch"] = f"{result.vr[result.batch]:.2f}"
        texts["VR of four batches"] = f"{result.near_vr:.2f}"
        texts["Effective batch"] = f"{result.effective_batch:,.0f} of {result.batch:,}"
    if not math.isnan(result.start_vr):
        texts["VR at start and end"] = f"{result.start_vr:.2f}, {result.end_vr:.2f}"
    texts["Rank correlation"] = f"{result.rank_correlation:.3f}"
    texts["Moved by (1 %, half, 99 %)"] = ", ".join(
        f"{percent:+d}%" if (percent := round(100 * share)) else "0%" for share in result.displacement
    )
    if not math.isnan(result.remet):
        texts["Neighbours met again"] = f"{result.remet:.2%} (perfect {result.expected_remet:.2%})"
    texts["Tests"] = f"{result.num_looks:,}"
    return texts


def audit_figures(result: Audit, predicted: Mapping[int, float]) -> list[Figure]:
    """Return the figures that have numbers; ``predicted`` is the predicted VR by batch size."""
    drawn = [_heat(result), *([_variance(result, predicted), _distinct(result)] if result.vr else [])]
    return [*drawn, *([_ends(result)] if result.start_distance else [])]


def _about(result: Audit) -> str:
    """Return a line about the audited ids."""
    epochs = "1 epoch" if result.num_epochs == 1 else f"{result.num_epochs} epochs"
    part = "one rank or worker: " if result.is_part else ""
    about = f"{part}{result.num_delivered:,} deliveries of {result.num_samples:,} samples in {epochs}, "
    return f"{about}batches of {result.batch:,}"


def _heat(result: Audit) -> Figure:
    borders = -(-np.arange(result.heat.shape[1] + 1) * result.num_samples // result.heat.shape[1])
    shares = None if result.is_part else np.diff(borders) / result.num_samples
    says = "Heat map of the dataset, from first to last sample, over the epoch, from start to end; the rank "
    says += f"correlation of position and time is {result.rank_correlation:.2f}."
    note = "An empty map is good: chance explains every field."
    return heat_figure(heat_map(result.heat, shares), note=note, time="time in the epoch", says=says)


def _variance(result: Audit, predicted: Mapping[int, float]) -> Figure:
    sizes = list(result.vr)
    ratios = [max(result.vr[size], 0.01) for size in sizes]
    errors = [min(0.9, 2.0 * result.vr_error[size]) for size in sizes]
    lines = [Line("measured", sizes, ratios, "data", has_dots=True)]
    known = [size for size in sizes if size in predicted]
    if known:
        lines.append(Line("predicted", known, [predicted[size] for size in known], "other", has_dots=True))
    heads = ["Batch", "VR", *(["Predicted"] if known else []), "By chance"]
    rows = [
        [
            f"{size:,}",
            f"{result.vr[size]:.2f}",
            *([f"{predicted[size]:.2f}" if size in predicted else ""] if known else []),
            f"1 ± {result.vr_error[size]:.2f}",
        ]
        for size in sizes
    ]
    highlighted = sizes.index(result.batch) if result.batch in sizes else None
    numbers = Numbers("VR by samples in a batch", heads, rows, highlighted)
    says = f"Curve of VR over batch sizes from {sizes[0]:,} to {sizes[-1]:,}: "
    says += f"{ratios[0]:.2f} for the smallest, {max(ratios):.2f} at most, {ratios[-1]:.2f} for the largest."
    note = f"Variance of batches by {result.key}, against a perfect shuffle; the band is the range of chance."
    band = (sizes, [1.0 - error for error in errors], [1.0 + error for error in errors])
    return variance_figure(note, lines, sizes, band=band, says=says, numbers=numbers)


def _distinct(result: Audit) -> Figure:
    sizes = list(result.distinct)
    counts, expected = list(result.distinct.values()), [result.expected_distinct[size] for size in sizes]
    what = "labels" if result.key == "labels" else "64ths of the dataset"
    lines = [Line("this order", sizes, counts, "data", has_dots=True), Line("perfect", sizes, expected, "perfect")]
    x, y = size_axis("samples in a batch", sizes), plain_axis(f"different {what}", [*counts, *expected])
    rows = [[f"{size:,}", f"{result.distinct[size]:.1f}", f"{result.expected_distinct[size]:.1f}"] for size in sizes]
    numbers = Numbers(f"Different {what} in a batch", ["Batch", "Found", "Perfect"], rows)
    says = f"Different {what} in a batch: {counts[0]:.1f} in batches of {sizes[0]:,}, where a perfect shuffle has "
    says += f"{expected[0]:.1f}; {counts[-1]:.1f} in batches of {sizes[-1]:,}, where it has {expected[-1]:.1f}."
    note = f"Different {what}, as many as in a perfect shuffle or fewer."
    return curve_figure("Labels of a batch", note, lines, x=x, y=y, says=says, numbers=numbers)


def _ends(result: Audit) -> Figure:
    """Draw the distance of the first and the last samples from the whole epoch."""
    start, end = result.start_distance, result.end_distance
    shares = sorted({*start, *end})
    lines = [
        Line("the first samples", list(start), list(start.values()), "data", has_dots=True),
        Line("the last samples", list(end), list(end.values()), "other", has_dots=True),
    ]
    ticks = [(at, f"{100 * at:.3g} %") for at in shares]
    x = Axis("share of the epoch", shares[0] * 0.8, shares[-1] * 1.15, ticks, is_log=True)
    y = plain_axis("distance", [*start.values(), *end.values(), 0.1])
    rows = [[f"{at:.1%}", *(f"{side[at]:.3f}" if at in side else "" for side in (start, end))] for at in shares]
    heads = ["Share of the epoch", "The first", "The last"]
    numbers = Numbers("Distance of the first and the last samples from all", heads, rows)
    texts = [
        f"the {name} {at:.1%} are {distance:.2f} apart from all"
        for name, side in (("first", start), ("last", end))
        for at, distance in (next(iter(side.items())), list(side.items())[-1])
    ]
    says = f"Distance from all samples: {', '.join(texts)}."
    note = "Distance of the first and last samples from all: 0 is alike, 1 is apart (Kolmogorov and Smirnov)."
    return curve_figure("Start and end of the epoch", note, lines, x=x, y=y, says=says, numbers=numbers)


def comparison_picture(compared: Sequence[ComparedOrder], names: Sequence[str], *, about: str, lead: str) -> Drawing:
    """Return the picture of orders by name; the last order is the window."""
    short = [name.partition("(")[0] for name in names]
    names = short if len(set(short)) == len(short) else names
    kinds = [*(_KINDS[number % len(_KINDS)] for number in range(len(compared) - 1)), "data"]
    rows = [[_compared_variance(compared, names, kinds), _compared_held(compared, names, kinds)]]
    return sheet("Orders at equal memory", about=about, rows=rows, lead=lead)


def _compared_variance(compared: Sequence[ComparedOrder], names: Sequence[str], kinds: Sequence[str]) -> Figure:
    sizes = list(compared[0].audit.vr)
    lines = [
        Line(name, list(order.audit.vr), [max(ratio, 0.01) for ratio in order.audit.vr.values()], kind, has_dots=True)
        for order, name, kind in zip(compared, names, kinds, strict=True)
    ]
    says = "; ".join(f"{line.name} has a VR of {line.ys[-1]:.2f} in batches of {sizes[-1]:,}" for line in lines) + "."
    note = "Variance of batches by storage position, against a perfect shuffle."
    return variance_figure(note, lines, sizes, says=says)


def _compared_held(compared: Sequence[ComparedOrder], names: Sequence[str], kinds: Sequence[str]) -> Figure:
    lines = [
        Line(name, np.linspace(0, 100, len(order.held)).tolist(), order.held.tolist(), kind)
        for order, name, kind in zip(compared, names, kinds, strict=True)
    ]
    x = plain_axis("% of the epoch", [100.0])
    y = plain_axis("thousand samples", [value for line in lines for value in line.ys], unit=1e3)
    says = "; ".join(f"{line.name} holds up to {max(line.ys):,.0f} samples" for line in lines) + "."
    note = "Samples that were read and not yet delivered."
    return curve_figure("Samples in memory", note, lines, x=x, y=y, says=says, has_legend=False)
