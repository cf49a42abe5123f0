"""Orders side by side, as a picture: how much batches vary, and what each order holds over the epoch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shoal.tools.auditing.order_comparison import ComparedOrder
from shoal.tools.reports.curve_figures import Figure, Line, curve_figure, log_axis, perfect_line, plain_axis, size_axis
from shoal.tools.reports.marks import Drawing
from shoal.tools.reports.sheet import sheet

_KINDS = ("bad", "fair", "ink", "soft")


def comparison_picture(compared: Sequence[ComparedOrder], names: Sequence[str], *, about: str, lead: str) -> Drawing:
    """Return the picture of orders by name; the last order is the window."""
    short = [name.partition("(")[0] for name in names]
    names = short if len(set(short)) == len(short) else names
    kinds = [*(_KINDS[number % len(_KINDS)] for number in range(len(compared) - 1)), "data"]
    rows = [[_variance(compared, names, kinds), _held(compared, names, kinds)]]
    return sheet("Orders at equal memory", about=about, rows=rows, lead=lead)


def _variance(compared: Sequence[ComparedOrder], names: Sequence[str], kinds: Sequence[str]) -> Figure:
    sizes = list(compared[0].audit.vr)
    lines = [
        Line(name, list(each.audit.vr), [max(ratio, 0.01) for ratio in each.audit.vr.values()], kind, has_dots=True)
        for each, name, kind in zip(compared, names, kinds, strict=True)
    ]
    x = size_axis("samples in a batch", sizes)
    y = log_axis("VR", [value for line in lines for value in line.ys], least=0.5, most=4.0)
    says = "; ".join(f"{line.name} has a VR of {line.ys[-1]:.2f} in batches of {sizes[-1]:,}" for line in lines) + "."
    note = "Variance of batches by storage position, against a perfect shuffle."
    return curve_figure("How much batches vary", note, [*lines, perfect_line(sizes)], x=x, y=y, says=says)


def _held(compared: Sequence[ComparedOrder], names: Sequence[str], kinds: Sequence[str]) -> Figure:
    lines = [
        Line(name, np.linspace(0, 100, len(each.held)).tolist(), each.held.tolist(), kind)
        for each, name, kind in zip(compared, names, kinds, strict=True)
    ]
    x = plain_axis("% of the epoch", [100.0])
    y = plain_axis("thousand samples", [value for line in lines for value in line.ys], unit=1e3)
    says = "; ".join(f"{line.name} holds up to {max(line.ys):,.0f} samples" for line in lines) + "."
    note = "Samples that have been read and are still to be delivered."
    return curve_figure("What is in memory", note, lines, x=x, y=y, says=says, has_legend=False)
