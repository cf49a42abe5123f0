"""The picture of a plan for papers and slides: VR over batch sizes, memory and traffic over the epoch.

It knows matplotlib, as `shoal.measure.report` does.
"""

from __future__ import annotations

import os

import numpy as np

from shoal.measure.drawing import FAINT, fit_width, new_figure
from shoal.measure.page.plan_page import PlanFigures

__all__ = ["draw_plan"]

_BLUE, _GREEN = "#0072b2", "#009e73"  # of M. Okabe and K. Ito, "Color universal design", 2008


def draw_plan(path: str | os.PathLike[str], drawn: PlanFigures, *, title: str = "") -> None:
    """Draw a plan into a file; the suffix says the format (``.svg``, ``.png``, ``.pdf``).

    Raises
    ------
    UsageError
        matplotlib is not installed.
    """
    with new_figure(10.0, 3.4, dpi=120, layout="constrained") as figure:
        fit_width(figure.suptitle(title, x=0.012, ha="left", fontsize=12.5, fontweight="bold"), right=0.99)
        left, middle, right = figure.subplots(1, 3)
        for axes in (left, middle, right):
            axes.spines[["top", "right"]].set_visible(False)
        sizes = list(drawn.vr)
        left.set_xscale("log", base=2)
        left.set_yscale("log")
        left.axhline(1.0, color=_GREEN, linewidth=1.4, linestyle=(0, (4, 2)))
        left.axvline(drawn.batch, color=FAINT, linewidth=0.8, linestyle=(0, (1, 2)))
        left.plot(sizes, list(drawn.vr.values()), color=_BLUE, linewidth=2.0, marker="o", markersize=4)
        ticks = [tick for tick in (1, 2, 5, 10, 20, 50, 100, 1000) if tick <= 1.5 * max(drawn.vr.values())]
        left.set_yticks(ticks, [f"{tick} x" for tick in ticks])
        left.minorticks_off()
        left.set_ylim(0.7, max(2.0, 1.3 * max(drawn.vr.values())))
        left.set(xlabel="samples in a batch (dotted: the global batch)")
        left.set_title("Variance of batches, of a perfect shuffle's", loc="left", fontsize=10)
        when = "epoch" if drawn.is_whole else "simulated stretch"
        for axes, values, name in (
            (middle, drawn.rank_bytes / 2**20, "Memory of the fullest rank, MiB"),
            (right, drawn.node_bytes_per_second / 1e6, "Traffic of a node, MB/s"),
        ):
            times = (np.arange(len(values)) + 0.5) / len(values)
            axes.fill_between(times, values, color=_BLUE, alpha=0.16, linewidth=0)
            axes.plot(times, values, color=_BLUE, linewidth=1.6)
            axes.set_ylim(0, 1.08 * float(values.max()))
            axes.set_xlim(0, 1)
            axes.set(xlabel=f"share of the {when}")
            axes.set_title(name, loc="left", fontsize=10)
        # No date and no version in the file: the same numbers give the same bytes.
        figure.savefig(path, metadata={"Date": None} if os.fspath(path).endswith(".svg") else {})
