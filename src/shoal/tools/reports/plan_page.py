"""Draw a plan as a page and as a picture: mixing, memory and traffic over time, and other settings."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from shoal.figures import counted
from shoal.quality.expected_quality import GrowingQuality
from shoal.tools.reports.chunk_size_figure import ChunkSize, chunk_size_figure
from shoal.tools.reports.curve_figures import (
    Axis,
    Figure,
    Line,
    Numbers,
    curve_figure,
    log_axis,
    plain_axis,
    variance_figure,
)
from shoal.tools.reports.heat_map import heat_figure, heat_map
from shoal.tools.reports.marks import Drawing
from shoal.tools.reports.page_document import document, facts, figures, paragraph, section, table
from shoal.tools.reports.sheet import in_pairs, sheet

_UNITS = (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1))


@dataclass(frozen=True, slots=True, eq=False)
class PlanFigures:
    """The numbers of the figures of a plan.

    ``vr`` is predicted by batch size, ``batch`` is the global batch. In equal intervals of time, the fullest rank
    holds ``rank_bytes``, and a node receives ``node_bytes_per_second``, at most ``node_limit``. ``heat`` counts samples
    of each part of the dataset at each time, shape (times, parts). The time is the whole epoch if ``is_whole``,
    otherwise a part of it. ``growing`` is the mixing of a first epoch that is read while shards are indexed.
    ``chunk_sizes`` are the same window in other chunks; empty if no other size is possible.
    """

    batch: int
    vr: Mapping[int, float]
    rank_bytes: NDArray[np.float64]
    node_bytes_per_second: NDArray[np.float64]
    node_limit: float
    heat: NDArray[np.int64] = field(repr=False)
    is_whole: bool = True
    growing: GrowingQuality | None = None
    chunk_sizes: Sequence[ChunkSize] = ()


def plan_page(
    drawn: PlanFigures,
    groups: Mapping[str, Mapping[str, str]],
    what_if: Sequence[Sequence[str]],
    *,
    title: str,
    about: str,
    call: str,
    lead: str,
    notes: Sequence[str],
    made_by: str,
) -> str:
    """Return the page of a plan as self-contained HTML.

    ``groups`` are facts by heading, ``what_if`` a table of other settings (heads, the plan, other plans), ``call`` the
    order as code, ``notes`` sentences at the end.
    """
    body = [
        section("In pictures", figures(_figures(drawn))),
        section("What if", table("Each row changes one thing of the plan", what_if[0], what_if[1:], highlighted=0)),
        *(section(name, facts(pairs)) for name, pairs in groups.items()),
        section("How far to trust it", *(paragraph(note) for note in notes)),
    ]
    return document(title=title, lead=lead, about=about, call=call, body=body, made_by=made_by)


def plan_picture(drawn: PlanFigures, *, title: str, about: str, lead: str) -> Drawing:
    """Return the figures as one drawing."""
    return sheet(title, about=about, rows=in_pairs(_figures(drawn)), lead=lead)


def _figures(drawn: PlanFigures) -> list[Figure]:
    sizes = [chunk_size_figure(drawn.chunk_sizes)] if drawn.chunk_sizes else []
    drawings = [_variance(drawn), *sizes, _memory(drawn), _traffic(drawn), _heat(drawn)]
    return drawings if drawn.growing is None else [growing_figure(drawn.growing), *drawings]


def _variance(drawn: PlanFigures) -> Figure:
    sizes, ratios = list(drawn.vr), list(drawn.vr.values())
    lines = [Line("predicted", sizes, ratios, "data", has_dots=True)]
    rows = [[f"{size:,}", f"{ratio:.2f}"] for size, ratio in drawn.vr.items()]
    highlighted = sizes.index(drawn.batch)
    return variance_figure(
        "Variance of batches against a perfect shuffle.",
        lines,
        sizes,
        mark=(drawn.batch, "global batch"),
        says=f"Curve of the predicted VR: {ratios[highlighted]:.2f} at the global batch of {drawn.batch:,}, from "
        f"{ratios[0]:.2f} at {sizes[0]:,} to {ratios[-1]:.2f} at {sizes[-1]:,} samples.",
        numbers=Numbers("Predicted VR by samples in a batch", ["Batch", "VR"], rows, highlighted),
    )


def _memory(drawn: PlanFigures) -> Figure:
    values = drawn.rank_bytes.tolist()
    unit, scale = _unit(max(values))
    return curve_figure(
        "Memory of a rank",
        f"Memory of the process with the highest peak, in {unit}.",
        [_over_time("held", values)],
        x=_time(drawn),
        y=plain_axis(unit, values, unit=scale),
        says=f"Memory over time: at most {max(values) / scale:.3g} {unit}, {values[0] / scale:.3g} at the start, "
        f"{np.median(values) / scale:.3g} in the middle.",
        numbers=_numbers_over_time("Memory of the fullest rank over time", unit, values, scale),
    )


def _traffic(drawn: PlanFigures) -> Figure:
    values = drawn.node_bytes_per_second.tolist()
    (unit, scale), (limit, limit_scale) = _unit(max(values)), _unit(drawn.node_limit)
    lines, shown = [_over_time("read", values)], list(values)
    if drawn.node_limit < 3 * max(values):
        lines.append(Line("limit of a node", [0.0, 1.0], [drawn.node_limit] * 2, "bad"))
        shown.append(drawn.node_limit)
    limit_text = f"{drawn.node_limit / limit_scale:.3g} {limit}"
    return curve_figure(
        "Traffic of a node",
        f"Bytes a second, in {unit}; a node can take {limit_text}.",
        lines,
        x=_time(drawn),
        y=plain_axis(f"{unit}/s", shown, unit=scale),
        says=f"Traffic over time: {max(values) / scale:.3g} {unit} a second at most, {np.mean(values) / scale:.3g} on "
        f"average; the limit of a node is {limit_text}.",
        numbers=_numbers_over_time("Traffic of a node over time", f"{unit}/s", values, scale),
    )


def _heat(drawn: PlanFigures) -> Figure:
    says = "Heat map of the dataset over time."
    return heat_figure(heat_map(drawn.heat), note="Empty is a perfect shuffle.", time=_time(drawn).label, says=says)


def _time(drawn: PlanFigures) -> Axis:
    label = "time in the epoch" if drawn.is_whole else "time in the simulated span"
    return Axis(label, 0.0, 1.0, [(0.0, "start"), (1.0, "end")])


def _over_time(name: str, values: Sequence[float]) -> Line:
    """Return a curve with values in the middle of their parts of the time."""
    middles = [(part + 0.5) / len(values) for part in range(len(values))]
    return Line(name, middles, values, "data", has_area=True)


def _numbers_over_time(caption: str, unit: str, values: Sequence[float], scale: float) -> Numbers:
    step = max(1, len(values) // 10)
    rows = [
        [f"{100 * part / len(values):.0f} %", f"{values[part] / scale:.3g}"] for part in range(0, len(values), step)
    ]
    return Numbers(caption, ["Time", unit], rows)


def _unit(most: float) -> tuple[str, float]:
    """Return the unit that leaves the largest value one to four digits."""
    return next(((name, float(scale)) for name, scale in _UNITS if most >= scale), ("B", 1.0))


_MOST_ROWS = 10
_TICKS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0)


def growing_figure(quality: GrowingQuality) -> Figure:
    """Draw VR from the beginning of a growing first epoch to its end, on logarithmic axes."""
    segments = quality.segments
    ends = [min(1.0, end) for end in itertools.accumulate(segment.share for segment in segments)]
    ends[-1] = 1.0
    begins, ratios = [ends[0] / 2.0, *ends[:-1]], [segment.vr for segment in segments]  # a logarithmic axis has no 0
    xs = [at for span in zip(begins, ends, strict=True) for at in span]
    ys = [ratio for ratio in ratios for _ in range(2)]
    lines = [
        Line("first epoch", xs, ys, "data"),
        Line("later", [xs[0], 1.0], [quality.later_vr] * 2, "other"),
        Line("perfect", [xs[0], 1.0], [1.0, 1.0], "perfect"),
    ]
    ticks = [(at, f"{at:.0%}" if at >= 0.01 else f"{100 * at:g} %".replace(" ", "")) for at in _TICKS if at >= xs[0]]
    rows = [
        [f"{100 * end:.3g} %", f"{segment.num_shards:,}", f"{segment.window_chunks:,}", f"{segment.vr:.2f}"]
        for end, segment in itertools.islice(zip(ends, segments, strict=True), _MOST_ROWS)
    ]
    first, last = segments[0], segments[-1]
    return curve_figure(
        "The first epoch, while it is indexed",
        f"Variance of batches of {quality.batch:,} against a perfect shuffle.",
        lines,
        x=Axis("part of the epoch that is delivered", xs[0], 1.0, ticks, is_log=True),
        y=log_axis("VR", [*ratios, quality.later_vr], least=0.5, most=4.0),
        says=f"Curve of the predicted VR over the first epoch: {first.vr:.2f} in its first segment, of "
        f"{counted(first.num_shards, 'shard')}, {last.vr:.2f} in its last, of {last.num_shards:,}; "
        f"{quality.later_vr:.2f} in later epochs.",
        numbers=Numbers("The first segments", ["Up to", "Shards", "Chunks that mix", "VR"], rows),
    )
