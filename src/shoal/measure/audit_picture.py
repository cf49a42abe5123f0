"""The picture of an audit: where samples come from over the epoch, how batches vary, what they hold, what was found.

It knows matplotlib, as `shoal.measure.report` does.
"""

from __future__ import annotations

import math
import os
import textwrap
from collections.abc import Mapping
from typing import Any

import numpy as np

from shoal.measure.auditing import Audit
from shoal.measure.drawing import INK, fit_width, new_figure

__all__ = ["draw_audit"]

_GREY = "#5c5c5c"
_BLUE, _GREEN, _RED = "#0072b2", "#009e73", "#d55e00"  # of M. Okabe and K. Ito, "Color universal design", 2008
_WIDTH_INCHES, _DOTS_PER_INCH = 10.0, 120
_LINE_INCHES, _FIXED_INCHES = 0.215, 5.15
_LINE_LETTERS, _TEXT_LETTERS = 128, 108


def draw_audit(path: str | os.PathLike[str], result: Audit, *, title: str = "") -> None:
    """Draw an audit into a file; the suffix says the format (``.svg``, ``.png``, ``.pdf``).

    Parameters
    ----------
    path
        The file.
    result
        What `shoal.measure.audit` gave.
    title
        What was audited.

    Raises
    ------
    UsageError
        matplotlib is not installed.
    """
    texts = _texts(result)
    height = _FIXED_INCHES + _LINE_INCHES * len(texts)
    with new_figure(_WIDTH_INCHES, height, dpi=_DOTS_PER_INCH) as figure:

        def up(inches: float) -> float:
            return 1.0 - inches / height

        epochs = "1 epoch" if result.num_epochs == 1 else f"{result.num_epochs} epochs"
        about = f"{result.num_delivered:,} deliveries of {result.num_samples:,} samples in {epochs}"
        about += f", batches of {result.batch}"
        name = title or "Audit of an order"
        fit_width(figure.text(0.055, up(0.33), name, fontsize=14.5, fontweight="bold", va="center"), right=0.985)
        figure.text(0.055, up(0.63), about, color=_GREY, va="center")
        grid = figure.add_gridspec(1, 3, left=0.055, right=0.985, top=up(1.25), bottom=up(4.25), wspace=0.24)
        _draw_heat(figure.add_subplot(grid[0]), result)
        if result.vr:
            _draw_variance(figure.add_subplot(grid[1]), result)
            _draw_distinct(figure.add_subplot(grid[2]), result)
        beside = False
        for number, (name, text, colour) in enumerate(texts):
            at, beside = up(4.98 + _LINE_INCHES * number), beside or bool(name)
            figure.text(0.055, at, name, color=colour, fontweight="bold", va="center")
            figure.text(0.225 if beside else 0.055, at, text, color=INK, va="center")
        # No date and no version in the file: the same numbers give the same bytes.
        metadata = {"Date": None} if os.fspath(path).endswith(".svg") else {}
        figure.savefig(path, metadata=metadata)


def _texts(result: Audit) -> list[tuple[str, str, str]]:
    """Lines: a name, the text beside it, and their colour; the verdict first, then the findings."""
    lines = [("", line, INK) for line in textwrap.wrap(result.verdict, _LINE_LETTERS)]
    lines.append(("", "", INK))
    for finding in result.findings:
        colour = _RED if finding.is_serious else _GREY
        for place, line in enumerate(textwrap.wrap(finding.text, _TEXT_LETTERS)):
            lines.append(("" if place else finding.name, line, colour))
    return lines


def _draw_heat(axes: Any, result: Audit) -> None:
    """Source over position against what a perfect shuffle has: white is as much, colours are more or less."""
    rows = 50
    heat = result.heat.reshape(rows, -1, result.heat.shape[1]).sum(axis=1).astype(np.float64)
    usual = heat.sum(axis=1, keepdims=True) * heat.sum(axis=0, keepdims=True) / max(1.0, heat.sum())
    share = np.log2(np.maximum(heat, 1e-9) / np.maximum(usual, 1e-9)).clip(-3, 3)
    image = axes.imshow(
        share.T,
        origin="lower",
        aspect="auto",
        cmap="RdBu_r",
        vmin=-3,
        vmax=3,
        extent=(0, 1, 0, 1),
        interpolation="nearest",
    )
    _clear(axes, "Where samples come from", "of every part of the dataset, at each time")
    axes.set(xticks=(), yticks=())
    axes.set_xlabel("epoch, from start to end", labelpad=5)
    axes.set_ylabel("dataset, from first to last", labelpad=5)
    bar = axes.figure.colorbar(image, ax=axes, orientation="horizontal", fraction=0.05, pad=0.13, aspect=30)
    bar.set_ticks([-3, 0, 3], labels=["8 x less", "as a perfect shuffle", "8 x more"], fontsize=8)
    for label, side in zip(bar.ax.get_xticklabels(), ("left", "center", "right"), strict=True):
        label.set_horizontalalignment(side)  # or the last one runs into the axis beside it
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=0)


def _draw_variance(axes: Any, result: Audit) -> None:
    """The variance ratio against the batch size, over what chance makes of a perfect shuffle."""
    sizes = list(result.vr)
    ratios = [max(result.vr[size], 1e-3) for size in sizes]
    _clear(axes, "How much batches vary", f"by {result.key}, against a perfect shuffle (VR)")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    errors = np.minimum([2.0 * result.vr_error[size] for size in sizes], 0.9)
    axes.fill_between(sizes, 1.0 - errors, 1.0 + errors, color=_GREEN, alpha=0.22, linewidth=0)
    axes.axhline(1.0, color=_GREEN, linewidth=1.6, linestyle=(0, (4, 2)))
    axes.plot(sizes, ratios, color=_BLUE, linewidth=2.2, marker="o", markersize=4.5, clip_on=False, zorder=3)
    _sizes_below(axes, sizes)
    lowest, highest = min(0.5, 0.7 * min(ratios)), max(4.0, 1.5 * max(ratios))
    steps = (1, 2, 5) if highest / lowest < 100 else (1,)
    ticks = [step * 10.0**power for power in range(-3, 7) for step in steps]
    ticks = [tick for tick in ticks if lowest <= tick <= highest]
    axes.set_yticks(ticks, [f"{tick:,.10g} x" for tick in ticks])
    axes.minorticks_off()
    axes.set_ylim(lowest, highest)
    axes.grid(axis="y", color="#e4e4e4", linewidth=0.8)
    axes.text(sizes[-1], 1.0, "perfect ", color=_GREEN, fontweight="bold", ha="right", va="bottom")


def _draw_distinct(axes: Any, result: Audit) -> None:
    """Different labels in a batch, and in one of a perfect shuffle."""
    what = "labels" if result.key == "labels" else "64ths of the dataset"
    sizes = list(result.distinct)
    _clear(axes, "What a batch holds", f"different {what}")
    axes.set_xscale("log", base=2)
    expected = [result.expected_distinct[size] for size in sizes]
    axes.plot(sizes, expected, color=_GREEN, linewidth=1.6, linestyle=(0, (4, 2)))
    found = list(result.distinct.values())
    axes.plot(sizes, found, color=_BLUE, linewidth=2.2, marker="o", markersize=4.5, clip_on=False, zorder=3)
    _sizes_below(axes, sizes)
    axes.minorticks_off()
    axes.set_ylim(0, 1.12 * max(expected))
    axes.grid(axis="y", color="#e4e4e4", linewidth=0.8)
    axes.text(sizes[-1], expected[-1] + 0.015 * max(expected), "perfect ", color=_GREEN, fontweight="bold", ha="right",
              va="bottom")  # fmt: skip


def _sizes_below(axes: Any, sizes: list[int]) -> None:
    step = math.ceil(len(sizes) / 5)
    shown = sizes[::step]
    axes.set_xticks(shown, [_short(size) for size in shown])
    axes.set_xlim(sizes[0] * 0.85, sizes[-1] * 1.18)
    axes.set_xlabel("samples in a batch")


def _short(size: int) -> str:
    """A batch size in five letters.

    >>> _short(512), _short(16384), _short(3 << 20)
    ('512', '16k', '3M')
    """
    units: Mapping[str, int] = {"M": 1 << 20, "k": 1 << 10}
    for unit, scale in units.items():
        if size >= 4 * scale or (size >= scale and size % scale == 0):
            return f"{size / scale:.0f}{unit}"
    return str(size)


def _clear(axes: Any, title: str, subtitle: str) -> None:
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold", pad=22)
    axes.text(0, 1.03, subtitle, transform=axes.transAxes, fontsize=9, color=_GREY)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(length=0)
