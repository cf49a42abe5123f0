"""Draws the pictures of docs/concepts.md: ``python docs/images/draw.py`` (20 seconds; needs matplotlib)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np

from shoal.measure.quality import variance_ratio
from shoal.orders import Window

mpl.use("Agg")

import matplotlib.pyplot as plt

HERE = Path(__file__).parent
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7")  # of Okabe and Ito, told apart by everybody
SORTED_SAMPLES, CLASS_SAMPLES, CHUNK_SAMPLES = 2**20, 8192, 64
BATCHES = 2 ** np.arange(4, 13)


def main() -> None:
    """Draw both."""
    plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "svg.hashsalt": "shoal"})
    draw_window(HERE / "window.png")
    draw_variance(HERE / "variance.png")


def draw_window(path: Path) -> None:
    """Where the samples of each chunk come in the epoch."""
    num_chunks, each, alive = 48, 40, 8
    bound = Window(chunks=alive, num_canonical_nodes=1).bind(np.full(num_chunks, each), seed=3)
    ids = bound.ids(0, num_chunks * each)
    positions = np.arange(len(ids))
    chunks = ids // each
    first_met = np.full(num_chunks, len(ids))
    np.minimum.at(first_met, chunks, positions)
    places = np.empty(num_chunks, dtype=int)
    places[np.argsort(first_met)] = np.arange(num_chunks)
    figure, axes = plt.subplots(figsize=(6.4, 3.2), layout="constrained")
    axes.scatter(positions, places[chunks], s=1.5, c=[COLOURS[place % 4] for place in places[chunks]], linewidths=0)
    axes.set(xlabel="position in the epoch", ylabel="chunks, as they are met")
    axes.set_title(f"A window of {alive} chunks: each dot is a sample, each row a chunk of {each}", loc="left")
    save(figure, path)


def draw_variance(path: Path) -> None:
    """VR of batches of many sizes, measured, and the rule max(1, b / K)."""
    labels = np.arange(SORTED_SAMPLES) // CLASS_SAMPLES
    samples = np.full(SORTED_SAMPLES // CHUNK_SAMPLES, CHUNK_SAMPLES)
    figure, axes = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
    for colour, chunks in zip(COLOURS, (64, 256, 1024), strict=False):
        bound = [Window(chunks=chunks, num_canonical_nodes=1).bind(samples, seed=seed) for seed in range(3)]
        epochs = np.stack([labels[order.ids(0, SORTED_SAMPLES)] for order in bound])
        measured = [variance_ratio(epochs, int(batch)) for batch in BATCHES]
        axes.plot(BATCHES, np.maximum(1, BATCHES / chunks), color=colour, linewidth=1)
        axes.plot(BATCHES, measured, "o", color=colour, markersize=4, label=f"K = {chunks}")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set(xlabel="samples in a global batch, b", ylabel="variance ratio, VR(b)")
    axes.set_title("On sorted data: dots measured, lines max(1, b / K)", loc="left")
    axes.legend(frameon=False)
    save(figure, path)


def save(figure: Any, path: Path) -> None:
    """Write without a date, so that the same picture is the same file."""
    figure.savefig(path, dpi=140, metadata={"Software": None})
    plt.close(figure)


if __name__ == "__main__":
    main()
