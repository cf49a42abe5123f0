"""An audit as a page: the verdict, where samples come from, how batches vary, what they hold, and what was found."""

from __future__ import annotations

import math
from collections.abc import Mapping

from shoal.measure.auditing import Audit
from shoal.measure.page.document import bullets, document, facts, figures, fold, paragraph, section, table
from shoal.measure.page.figures import Axis, Line, curve_figure, heat_figure, log_axis, plain_axis, size_axis

__all__ = ["audit_page"]

_TIMES = 50  # columns of the heat map


def audit_page(
    result: Audit,
    *,
    title: str,
    order: str = "",
    made_by: str = "shoal audit",
    predicted: Mapping[int, float] | None = None,
) -> str:
    """The page of an audit, as HTML that needs nothing else.

    Parameters
    ----------
    result
        What `shoal.measure.audit` gave.
    title
        What was audited.
    order
        The order as a call, where it is one of shoal's.
    made_by
        The command that makes the page again.
    predicted
        VR by batch size as it was predicted, where it was.

    Examples
    --------
    >>> from shoal.measure import audit
    >>> audit_page(audit(range(500)), title="Storage order").startswith("<!DOCTYPE html>")
    True
    """
    epochs = "1 epoch" if result.num_epochs == 1 else f"{result.num_epochs} epochs"
    about = f"{result.num_delivered:,} deliveries of {result.num_samples:,} samples in {epochs}, "
    about += f"batches of {result.batch:,}"
    drawn = [_heat(result), *([_variance(result, predicted or {}), _distinct(result)] if result.vr else [])]
    if result.start_distance:
        drawn.append(_ends(result))
    body = [
        section("In pictures", figures(*drawn)),
        section("What was found", *_findings(result)),
        section("In numbers", facts(_facts(result))),
    ]
    return document(title=title, lead=result.verdict, about=about, call=order, body=body, made_by=made_by)


def _findings(result: Audit) -> list[str]:
    if not result.findings:
        return [paragraph("Nothing that a perfect shuffle does not do.")]
    rows = [
        (
            f"{each.name} ({'serious' if each.is_serious else 'mild'}, {each.where}):",
            f"{each.text}.",
            each.is_serious,
        )
        for each in result.findings
    ]
    return [bullets(rows)]


def _heat(result: Audit) -> str:
    heat = result.heat.reshape(_TIMES, -1, result.heat.shape[1]).sum(axis=1)
    usual = heat.sum(axis=1, keepdims=True) * heat.sum(axis=0, keepdims=True) / max(1, int(heat.sum()))
    apart = abs(heat - usual).sum() / 2.0 / max(1, int(heat.sum()))
    says = "Heat map of the dataset, from first to last sample, over the epoch, from start to end. "
    says += f"{apart:.0%} of the samples would have to come at another time for an even map; "
    says += f"the rank correlation of place and time is {result.rank_correlation:.2f}."
    note = "Each part of the dataset at each time. An empty map is good."
    return heat_figure(
        "Where samples come from", note, heat, x_label="time in the epoch", y_label="place in the dataset", says=says
    )


def _variance(result: Audit, predicted: Mapping[int, float]) -> str:
    sizes = list(result.vr)
    ratios = [max(result.vr[size], 0.01) for size in sizes]
    errors = [min(0.9, 2.0 * result.vr_error[size]) for size in sizes]
    lines = [Line("measured", sizes, ratios, "data", has_dots=True)]
    known = [size for size in sizes if size in predicted]
    if known:
        lines.append(Line("predicted", known, [predicted[size] for size in known], "other"))
    lines.append(Line("perfect", [sizes[0], sizes[-1]], [1.0, 1.0], "perfect"))
    x = size_axis("samples in a batch", sizes)
    y = log_axis("VR", [*ratios, *(predicted[size] for size in known)], least=0.5, most=4.0)
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
    here = sizes.index(result.batch) if result.batch in sizes else None
    after = fold("The numbers", table("VR by samples in a batch", heads, rows, here=here))
    says = f"Curve of VR over batch sizes from {sizes[0]:,} to {sizes[-1]:,}: "
    says += f"{ratios[0]:.2f} for the smallest, {max(ratios):.2f} at most, {ratios[-1]:.2f} for the largest."
    note = f"Variance of batches by {result.key}, against a perfect shuffle; the band is what chance does to that."
    band = (sizes, [1.0 - error for error in errors], [1.0 + error for error in errors])
    return curve_figure("How much batches vary", note, lines, x=x, y=y, band=band, says=says, after=after)


def _distinct(result: Audit) -> str:
    sizes = list(result.distinct)
    found, expected = list(result.distinct.values()), [result.expected_distinct[size] for size in sizes]
    what = "labels" if result.key == "labels" else "64ths of the dataset"
    lines = [
        Line("this order", sizes, found, "data", has_dots=True),
        Line("perfect", sizes, expected, "perfect"),
    ]
    x, y = size_axis("samples in a batch", sizes), plain_axis(f"different {what}", [*found, *expected])
    rows = [[f"{size:,}", f"{result.distinct[size]:.1f}", f"{result.expected_distinct[size]:.1f}"] for size in sizes]
    after = fold("The numbers", table(f"Different {what} in a batch", ["Batch", "Found", "Perfect"], rows))
    says = f"Different {what} in a batch: {found[0]:.1f} in batches of {sizes[0]:,}, where a perfect shuffle has "
    says += f"{expected[0]:.1f}; {found[-1]:.1f} in batches of {sizes[-1]:,}, where it has {expected[-1]:.1f}."
    note = f"Different {what}, as many as in a perfect shuffle or fewer."
    return curve_figure("What a batch holds", note, lines, x=x, y=y, says=says, after=after)


def _ends(result: Audit) -> str:
    """How far the ends of an epoch are from the whole of it."""
    start, end = result.start_distance, result.end_distance
    shares = sorted({*start, *end})
    lines = [
        Line("the first samples", list(start), list(start.values()), "data", has_dots=True),
        Line("the last samples", list(end), list(end.values()), "other", has_dots=True),
    ]
    x = Axis(
        "share of the epoch",
        shares[0] * 0.8,
        shares[-1] * 1.15,
        [(at, f"{100 * at:.3g} %") for at in shares],
        is_log=True,
    )
    y = plain_axis("distance", [*start.values(), *end.values(), 0.1])
    rows = [[f"{at:.1%}", *(f"{side[at]:.3f}" if at in side else "" for side in (start, end))] for at in shares]
    heads = ["Share of the epoch", "The first", "The last"]
    after = fold("The numbers", table("Distance of the first and the last samples from all", heads, rows))
    said = [
        f"the {name} {at:.1%} are {distance:.2f} apart from all"
        for name, side in (("first", start), ("last", end))
        for at, distance in (next(iter(side.items())), list(side.items())[-1])
    ]
    says = f"Distance from all samples: {', '.join(said)}."
    note = "Whether the first and last samples come from everywhere: 0 is alike, 1 is apart (Kolmogorov and Smirnov)."
    return curve_figure("Start and end of the epoch", note, lines, x=x, y=y, says=says, after=after)


def _moved(share: float) -> str:
    """A share of the dataset with its sign, where it has one when it is rounded."""
    return f"{round(100 * share):+d}%" if round(100 * share) else "0%"


def _facts(result: Audit) -> dict[str, str]:
    said = {
        "Samples missing": f"{result.missing:,}",
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
