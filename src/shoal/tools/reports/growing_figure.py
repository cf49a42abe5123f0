"""The figure of the growing order: how much batches vary from the beginning of the first epoch to its end."""

from __future__ import annotations

import itertools

from shoal.figures import counted
from shoal.quality.expected_quality import GrowingQuality
from shoal.tools.reports.curve_figures import Axis, Figure, Line, Numbers, curve_figure, log_axis

_MOST_ROWS = 10
_TICKS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0)


def growing_figure(quality: GrowingQuality) -> Figure:
    """Draw the variance ratio of each segment over the part of the epoch that is delivered, on logarithmic axes."""
    segments = quality.segments
    ends = [min(1.0, end) for end in itertools.accumulate(each.share for each in segments)]
    ends[-1] = 1.0
    begins, ratios = [ends[0] / 2.0, *ends[:-1]], [each.vr for each in segments]  # the first begins at 0
    xs = [at for ends_of in zip(begins, ends, strict=True) for at in ends_of]
    ys = [ratio for ratio in ratios for _ in range(2)]
    lines = [
        Line("first epoch", xs, ys, "data"),
        Line("later", [xs[0], 1.0], [quality.later_vr] * 2, "other"),
        Line("perfect", [xs[0], 1.0], [1.0, 1.0], "perfect"),
    ]
    ticks = [(at, f"{at:.0%}" if at >= 0.01 else f"{100 * at:g} %".replace(" ", "")) for at in _TICKS if at >= xs[0]]
    rows = [
        [f"{100 * end:.3g} %", f"{each.num_shards:,}", f"{each.window_chunks:,}", f"{each.vr:.2f}"]
        for end, each in itertools.islice(zip(ends, segments, strict=True), _MOST_ROWS)
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
