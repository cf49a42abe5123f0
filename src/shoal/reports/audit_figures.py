"""The figures of an audit: origin of samples, variance and content of batches, and the ends of the epoch."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from shoal.quality.auditing import Audit
from shoal.reports.heat_map import heat_figure, heat_map
from shoal.reports.svg_figures import Axis, Figure, Line, Numbers, curve_figure, log_axis, plain_axis, size_axis


def audit_figures(result: Audit, predicted: Mapping[int, float]) -> list[Figure]:
    """Return all figures that there are numbers for; ``predicted`` is the predicted VR by batch size, if any."""
    drawn = [_heat(result), *([_variance(result, predicted), _distinct(result)] if result.vr else [])]
    return [*drawn, *([_ends(result)] if result.start_distance else [])]


def about_audit(result: Audit) -> str:
    """Return one line on what was audited."""
    epochs = "1 epoch" if result.num_epochs == 1 else f"{result.num_epochs} epochs"
    part = "one rank or worker: " if result.is_part else ""
    about = f"{part}{result.num_delivered:,} deliveries of {result.num_samples:,} samples in {epochs}, "
    return f"{about}batches of {result.batch:,}"


def _heat(result: Audit) -> Figure:
    borders = -(-np.arange(result.heat.shape[1] + 1) * result.num_samples // result.heat.shape[1])
    shares = None if result.is_part else np.diff(borders) / result.num_samples
    heat = heat_map(result.heat, shares)
    across, up = heat.levels.shape
    note = f"Each part of the dataset at each time, in {across} by {up} fields. "
    note += "Empty is good: no field has more or less than chance explains."
    says = (
        "Heat map of the dataset, from first to last sample, over the epoch, from start to end; the rank correlation "
    )
    says += f"of place and time is {result.rank_correlation:.2f}."
    x_label, y_label = "time in the epoch", "place in the dataset"
    return heat_figure("Where samples come from", note, heat, x_label=x_label, y_label=y_label, says=says)


def _variance(result: Audit, predicted: Mapping[int, float]) -> Figure:
    sizes = list(result.vr)
    ratios = [max(result.vr[size], 0.01) for size in sizes]
    errors = [min(0.9, 2.0 * result.vr_error[size]) for size in sizes]
    lines = [Line("measured", sizes, ratios, "data", has_dots=True)]
    known = [size for size in sizes if size in predicted]
    if known:
        lines.append(Line("predicted", known, [predicted[size] for size in known], "other", has_dots=True))
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
    numbers = Numbers("VR by samples in a batch", heads, rows, here)
    says = f"Curve of VR over batch sizes from {sizes[0]:,} to {sizes[-1]:,}: "
    says += f"{ratios[0]:.2f} for the smallest, {max(ratios):.2f} at most, {ratios[-1]:.2f} for the largest."
    note = f"Variance of batches by {result.key}, against a perfect shuffle; the band is what chance does to that."
    band = (sizes, [1.0 - error for error in errors], [1.0 + error for error in errors])
    return curve_figure("How much batches vary", note, lines, x=x, y=y, band=band, says=says, numbers=numbers)


def _distinct(result: Audit) -> Figure:
    sizes = list(result.distinct)
    found, expected = list(result.distinct.values()), [result.expected_distinct[size] for size in sizes]
    what = "labels" if result.key == "labels" else "64ths of the dataset"
    lines = [
        Line("this order", sizes, found, "data", has_dots=True),
        Line("perfect", sizes, expected, "perfect"),
    ]
    x, y = size_axis("samples in a batch", sizes), plain_axis(f"different {what}", [*found, *expected])
    rows = [[f"{size:,}", f"{result.distinct[size]:.1f}", f"{result.expected_distinct[size]:.1f}"] for size in sizes]
    numbers = Numbers(f"Different {what} in a batch", ["Batch", "Found", "Perfect"], rows)
    says = f"Different {what} in a batch: {found[0]:.1f} in batches of {sizes[0]:,}, where a perfect shuffle has "
    says += f"{expected[0]:.1f}; {found[-1]:.1f} in batches of {sizes[-1]:,}, where it has {expected[-1]:.1f}."
    note = f"Different {what}, as many as in a perfect shuffle or fewer."
    return curve_figure("What a batch holds", note, lines, x=x, y=y, says=says, numbers=numbers)


def _ends(result: Audit) -> Figure:
    """Return the figure of how far the ends of an epoch are from the whole of it."""
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
    numbers = Numbers("Distance of the first and the last samples from all", heads, rows)
    said = [
        f"the {name} {at:.1%} are {distance:.2f} apart from all"
        for name, side in (("first", start), ("last", end))
        for at, distance in (next(iter(side.items())), list(side.items())[-1])
    ]
    says = f"Distance from all samples: {', '.join(said)}."
    note = "Whether the first and last samples come from everywhere: 0 is alike, 1 is apart (Kolmogorov and Smirnov)."
    return curve_figure("Start and end of the epoch", note, lines, x=x, y=y, says=says, numbers=numbers)
