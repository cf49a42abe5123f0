"""Draws ``packed_schedule.png``: ``python docs/images/draw_packed_schedule.py`` (needs matplotlib)."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np

mpl.use("Agg")

import matplotlib.pyplot as plt

NUM_DOCUMENTS, LENGTH, BATCH = 16_000, 1024, 16
BEFORE, AFTER = {"web": 0.9, "code": 0.1}, {"web": 0.1, "code": 0.9}
FIRST_CODE = 30_000
BLUE, ORANGE, GREY = "#0072b2", "#e69f00", "#555b61"


def documents(first: int) -> Iterator[dict[str, Any]]:
    """Documents of log-normal lengths, whose tokens are the document's number."""
    rng = np.random.default_rng(first)
    for number in range(first, first + NUM_DOCUMENTS):
        size = int(rng.lognormal(4.5, 1)) + 1
        yield {"tokens": np.full(size, number, dtype=np.int32), "num_tokens": size}


def shares(dataset: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return steps, and the share of tokens of code in the eight steps around each."""
    counts = []
    for batch in dataset.batch(BATCH, remainder="drop"):
        tokens = batch["tokens"][batch["segment_ids"] > 0]
        counts.append(((tokens >= FIRST_CODE).sum(), tokens.size))
    window = np.ones(8)
    code, both = (np.convolve(column, window, "valid") for column in np.array(counts, dtype=float).T)
    return np.arange(len(code)) + 4, code / both


def main() -> None:
    """Draw it."""
    with tempfile.TemporaryDirectory() as directory:
        os.environ["SHOAL_CACHE_DIR"] = f"{directory}/cache"
        import shoal  # noqa: PLC0415  # it reads the variable
        from shoal.order.mixture.mixed_order import MixedEpoch  # noqa: PLC0415

        for name, first in (("web", 0), ("code", FIRST_CODE)):
            shoal.pack.pack(documents(first), f"{directory}/{name}", format="mds", columns=["num_tokens"])
        sources = {name: shoal.open(f"{directory}/{name}") for name in BEFORE}
        mixed = shoal.mix(sources, weights=BEFORE, epoch_size=NUM_DOCUMENTS).shuffle(seed=0)
        packed = mixed.pack_sequences(LENGTH, strategy="best_fit")
        num_steps = packed.num_samples // BATCH
        at, ramp = num_steps // 4, num_steps // 2
        plots = [
            ("a change in the run", packed.reweight(at=2 * at * BATCH, weights=AFTER)),
            ("a ramp", packed.reweight(at=at * BATCH, ramp=ramp * BATCH, weights=AFTER)),
        ]
        half = NUM_DOCUMENTS // 2
        one_block = [mixed.reweight(at=half, weights=AFTER), mixed.reweight(at=half // 2, ramp=half, weights=AFTER)]
        figure, axes = plt.subplots(1, 2, figsize=(9, 3.2), sharey=True, layout="constrained")
        for axis, (title, dataset), whole in zip(axes, plots, one_block, strict=True):
            steps = np.arange(num_steps)
            planned = (
                np.where(steps < 2 * at, 0.1, 0.9)
                if "ramp" not in title
                else 0.1 + 0.8 * np.clip((steps - at) / ramp, 0, 1)
            )
            followed = shares(dataset)
            kept, MixedEpoch.changes = MixedEpoch.changes, []  # blocks that do not end at changes
            axis.plot(
                *shares(whole.pack_sequences(LENGTH, strategy="best_fit")),
                color=ORANGE,
                label="one block over all of it",
            )
            MixedEpoch.changes = kept
            axis.plot(*followed, color=BLUE, label="sequences")
            axis.plot(steps, planned, color=GREY, linestyle="--", label="weights")
            axis.set(title=title, xlabel="step", ylim=(0, 1))
            axis.spines[["top", "right"]].set_visible(False)
        axes[0].set_ylabel("share of code in the tokens")
        axes[0].legend(frameon=False, loc="upper left", fontsize=8)
        figure.savefig(Path(__file__).parent / "packed_schedule.png", dpi=110)


if __name__ == "__main__":
    main()
