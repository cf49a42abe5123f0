"""The picture of how well orders mix; the only place that knows matplotlib."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.measure.drawing import INK, new_figure

__all__ = ["MeasuredOrder", "draw_mixing", "has_matplotlib"]

# Blue, vermillion and green of M. Okabe and K. Ito, "Color universal design", 2008, which colour-blind readers tell
# apart; grey for what does nothing. By name, so that an order has one colour in all pictures.
_COLOURS = {"none": "#8c8c8c", "buffer": "#d55e00", "window": "#0072b2", "perfect": "#009e73"}
_LINE_HEIGHT = 0.09  # of a line of text, as a share of the height of the axes
_WIDTH_INCHES, _HEIGHT_INCHES, _DOTS_PER_INCH = 10.0, 6.6, 120  # 1200 pixels wide


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredOrder:
    """One order in the picture.

    Parameters
    ----------
    name
        "none", "buffer", "window" or "perfect"; it gives the colour.
    detail
        A few words below the name, such as the memory held.
    ids
        The sample ids of one epoch in the order of delivery, shape (N,).
    variance_ratios
        Variance ratio by batch size.
    distinct
        Different labels in a batch.
    correlation
        Of where a sample is stored and when it comes out.
    """

    name: str
    detail: str
    ids: NDArray[np.int64]
    variance_ratios: Mapping[int, float]
    distinct: float
    correlation: float


def has_matplotlib() -> bool:
    """Whether pictures can be drawn here."""
    try:
        import matplotlib.figure  # noqa: F401, PLC0415
    except ImportError:
        return False
    return True


def draw_mixing(
    path: str | os.PathLike[str],
    orders: Sequence[MeasuredOrder],
    *,
    title: str,
    subtitle: str,
    label: str,
    batch: int,
    expected_distinct: float,
) -> None:
    """Draw where the samples of each order come from, how much batches vary, and how many labels they hold.

    Parameters
    ----------
    path
        The file; its suffix says the format (``.png``, ``.svg``, ``.pdf``).
    title, subtitle
        What the picture shows, and of what.
    label
        The plural of what samples are labelled with: "packages".
    batch
        Samples of the batches in which labels were counted.
    expected_distinct
        Different labels in a batch of a perfect shuffle.

    Raises
    ------
    UsageError
        matplotlib is not installed.
    """
    with new_figure(_WIDTH_INCHES, _HEIGHT_INCHES, dpi=_DOTS_PER_INCH) as figure:
        figure.text(0.055, 0.962, title, fontsize=14.5, fontweight="bold", va="center")
        figure.text(0.055, 0.921, subtitle, fontsize=9.5, color="#555555", va="center")
        above = figure.add_gridspec(1, len(orders), left=0.055, right=0.985, top=0.83, bottom=0.475, wspace=0.09)
        for place, order in enumerate(orders):
            _draw_order(figure.add_subplot(above[place]), order, first=place == 0)
        below = figure.add_gridspec(
            1, 2, left=0.055, right=0.985, top=0.35, bottom=0.08, wspace=0.19, width_ratios=(1.25, 1)
        )
        _draw_variance(figure.add_subplot(below[0]), orders)
        _draw_distinct(figure.add_subplot(below[1]), orders, label, batch, expected_distinct)
        # No date and no version in the file: the same numbers give the same bytes.
        metadata = {"Date": None} if os.fspath(path).endswith(".svg") else {}
        smaller: dict[str, Any] = {"pil_kwargs": {"optimize": True}} if os.fspath(path).endswith(".png") else {}
        figure.savefig(path, metadata=metadata, **smaller)


def _draw_order(axes: Any, order: MeasuredOrder, *, first: bool) -> None:
    """Source position against output position: storage order is a diagonal, a perfect shuffle an even mist."""
    num_samples = len(order.ids)
    # A million points take no more ink than a few thousand.
    shown = np.arange(0, num_samples, max(1, num_samples // 6000))
    # Squares, which are snapped to pixels: the mist of discs took twice the bytes.
    axes.plot(
        shown / num_samples,
        order.ids[shown] / num_samples,
        linestyle="",
        marker="s",
        markersize=min(1.8, 60 / len(shown) ** 0.5),
        markeredgewidth=0,
        color=_colour(order),
        rasterized=True,
    )
    axes.set(xlim=(0, 1), ylim=(0, 1), xticks=(), yticks=())
    axes.set_title(order.name, loc="left", fontsize=12, fontweight="bold", color=_colour(order), pad=19)
    axes.text(0, 1.035, order.detail, transform=axes.transAxes, fontsize=9, color="#555555")
    correlation = f"correlation {order.correlation:.2f}"
    axes.text(1, 1.115, correlation, transform=axes.transAxes, fontsize=9, color="#555555", ha="right")
    axes.set_xlabel("when it comes out", labelpad=5)
    if first:
        axes.set_ylabel("where it is stored", labelpad=5)


def _draw_variance(axes: Any, orders: Sequence[MeasuredOrder]) -> None:
    """The variance ratio against the batch size; 1 is perfect."""
    _clear(axes, "How much more do batches vary than in a perfect shuffle?")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    ends = []
    for order in orders:
        sizes = sorted(order.variance_ratios)
        ratios = [order.variance_ratios[size] for size in sizes]
        dashed = order.name == "perfect"
        axes.plot(
            sizes,
            ratios,
            color=_colour(order),
            linewidth=1.6 if dashed else 2.4,
            linestyle=(0, (4, 2)) if dashed else "-",
            marker="" if dashed else "o",
            markersize=4.5,
            clip_on=False,
            zorder=2 if dashed else 3,
        )
        ends.append((sizes[-1], ratios[-1], order))
    sizes = sorted(orders[0].variance_ratios)
    axes.set_xlim(sizes[0] * 0.85, sizes[-1] * 2.4)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.minorticks_off()
    largest = max(ratio for order in orders for ratio in order.variance_ratios.values())
    lowest, highest = 0.75, 1.3 * largest
    ticks = [tick for tick in (1, 10, 100, 1000) if tick < 2 * largest]
    axes.set_yticks(ticks, [f"{tick} x" for tick in ticks])
    axes.set_ylim(lowest, highest)
    axes.grid(axis="y", color="#e4e4e4", linewidth=0.8)
    axes.set_xlabel("samples in a batch")
    heights = _apart([ratio for _, ratio, _ in ends], factor=(highest / lowest) ** _LINE_HEIGHT)
    for (size, ratio, order), at in zip(ends, heights, strict=True):
        text = order.name if order.name == "perfect" else f"{order.name}  {_short(ratio)} x"
        axes.text(size * 1.13, at, text, color=_colour(order), va="center", fontweight="bold")


def _draw_distinct(
    axes: Any, orders: Sequence[MeasuredOrder], label: str, batch: int, expected_distinct: float
) -> None:
    """Bars of the labels in a batch, and what a perfect shuffle has."""
    _clear(axes, f"Different {label} in a batch of {batch}")
    shown = [order for order in orders if order.name != "perfect"]
    places = np.arange(len(shown))[::-1]
    axes.barh(places, [order.distinct for order in shown], height=0.62, color=[_colour(order) for order in shown])
    for place, order in zip(places, shown, strict=True):
        axes.text(-0.012 * expected_distinct, place, order.name, ha="right", va="center", fontweight="bold",
                  color=_colour(order))  # fmt: skip
        inside = order.distinct > 0.2 * expected_distinct
        shift = -0.015 if inside else 0.015
        axes.text(order.distinct + shift * expected_distinct, place, f"{order.distinct:.1f}", va="center",
                  ha="right" if inside else "left", color="white" if inside else INK, fontweight="bold")  # fmt: skip
    green = _COLOURS["perfect"]
    axes.axvline(expected_distinct, color=green, linewidth=1.6, linestyle=(0, (4, 2)))
    axes.text(expected_distinct * 0.985, -0.72, f"perfect  {expected_distinct:.1f}", color=green,
              fontweight="bold", va="center", ha="right")  # fmt: skip
    axes.set(xlim=(-0.13 * expected_distinct, expected_distinct * 1.03), ylim=(-1.0, len(shown) - 0.5))
    axes.set(xticks=(), yticks=())
    axes.spines["left"].set_visible(False)
    axes.spines["bottom"].set_visible(False)


def _clear(axes: Any, title: str) -> None:
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold", pad=9)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(length=0)


def _colour(order: MeasuredOrder) -> str:
    return _COLOURS.get(order.name, INK)


def _apart(values: Sequence[float], *, factor: float) -> list[float]:
    """The values, each moved up until its text no longer touches the one below; on a logarithmic axis."""
    moved = list(values)
    below = 0.0
    for place in np.argsort(values).tolist():
        moved[place] = max(values[place], below * factor)
        below = moved[place]
    return moved


def _short(ratio: float) -> str:
    return f"{ratio:.0f}" if ratio >= 10 else f"{ratio:.1f}"
