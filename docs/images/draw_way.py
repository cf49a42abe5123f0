"""Draws ``way.png`` of design/way.md: ``python docs/images/draw_way.py`` (needs matplotlib)."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

# What is called, where it is, what a wing does there.
STEPS = (
    ("resolved.pieces(epoch)", "samples that can be read now", "growing: waits for the next segments"),
    ("resolved.epoch(epoch)", "positions to sample ids", "mixture: chooses a source;  sampling: repeats"),
    ("shares_of(order, pipeline, position)", "this rank's share, span by span", ""),
    ("batcher.batches(shares, reading, context)", "what is read for a share", "sequences: pieces of documents"),
    ("reading.spans(shares)", "reads, one span ahead", "mixture: several parts;  spilled: decoded pieces"),
    ("stage(sample, sample_id)", "decode, map, filter", "mixture: stages of each source"),
    ("batcher", "batches", "cut;  filled after filters;  packed as they come"),
)


def main() -> None:
    """Draw it."""
    figure, axes = plt.subplots(figsize=(9.6, 6.4), dpi=110)
    axes.set_xlim(0, 100)
    axes.set_ylim(0, 10 * len(STEPS) + 3)
    axes.axis("off")
    axes.text(26, 10 * len(STEPS) + 1, "the core", ha="center", fontsize=11, weight="bold")
    axes.text(78, 10 * len(STEPS) + 1, "wings answer the same calls", ha="center", fontsize=11, weight="bold")
    for number, (call, hands_on, wing) in enumerate(STEPS):
        low = 10 * (len(STEPS) - 1 - number) + 1.5
        axes.add_patch(FancyBboxPatch((2, low), 48, 6, boxstyle="round,pad=0.4", fc="#e8f0fa", ec="#30609a", lw=1.2))
        axes.text(26, low + 4.1, call, ha="center", va="center", family="monospace", fontsize=9.5)
        axes.text(26, low + 1.5, hands_on, ha="center", va="center", fontsize=9, color="#303030")
        if number + 1 < len(STEPS):
            axes.add_patch(FancyArrowPatch((26, low - 0.6), (26, low - 3.2), arrowstyle="-|>", mutation_scale=12))
        if wing:
            axes.add_patch(
                FancyBboxPatch((58, low + 0.8), 40, 4.4, boxstyle="round,pad=0.4", fc="#fdf3e3", ec="#b07a20")
            )
            axes.text(78, low + 3, wing, ha="center", va="center", fontsize=8.6)
            axes.plot([51, 57.4], [low + 3, low + 3], color="#b07a20", lw=1, ls=":")
    figure.savefig(Path(__file__).parent / "way.png", bbox_inches="tight")


if __name__ == "__main__":
    main()
