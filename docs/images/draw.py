"""Draws the pictures of the documentation: ``python docs/images/draw.py`` (30 seconds; needs matplotlib)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np

from shoal.measure import audit
from shoal.orders import Block, Buffer, Window
from shoal.quality.metrics import distinct_per_batch, expected_distinct, position_correlation, variance_ratio
from shoal.quality.prediction import predicted_variance_ratio
from shoal.tools.reports.audit_page import audit_picture
from shoal.tools.reports.rendering import rendered

mpl.use("Agg")

import matplotlib.pyplot as plt

HERE = Path(__file__).parent
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7")  # of Okabe and Ito, told apart by everybody
SORTED_SAMPLES, CLASS_SAMPLES, CHUNK_SAMPLES = 2**20, 8192, 64
BATCHES = 2 ** np.arange(4, 13)
MEMORY, MEMORY_BATCH, MEMORY_CLASS, SHARD_SAMPLES = 2 ** np.arange(8, 17), 64, 2048, 8192
STREAM_SAMPLES, STREAM_CLASS, STREAM_CHUNK, STREAM_BATCH = 100_000, 1000, 10, 64
BUFFERS = (1, 3, 10, 30, 100, 300, 1000, 3000, 10_000, 30_000, 100_000)
IDS = HERE.parent.parent / "tests" / "quality" / "data"


def main() -> None:
    """Draw all."""
    plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "svg.hashsalt": "shoal"})
    draw_words(HERE / "words.png")
    draw_window(HERE / "window.png")
    draw_variance(HERE / "variance.png")
    draw_memory(HERE / "memory.png")
    draw_buffer_size(HERE / "buffer_size.png")
    with np.load(IDS / "streaming.npz") as file:
        result = audit(file["py1br"].astype(np.int64))
    audited = audit_picture(result, title="py1br of MosaicML Streaming 0.13.0, blocks of 8000, seed 2")
    (HERE / "audit.png").write_bytes(rendered(audited, ".png"))


def draw_words(path: Path) -> None:
    """The words of the glossary in one picture: a shard in extents and chunks, and chunks in lanes over time."""
    figure, (shard, lanes) = plt.subplots(
        2, 1, figsize=(6.4, 4.2), layout="constrained", gridspec_kw={"height_ratios": [1, 2.2]}
    )
    num_samples, extent, chunk = 48, 4, 12
    for left in range(num_samples):
        shard.broken_barh([(left + 0.1, 0.8)], (0, 0.8), color="0.8")
    for left in range(0, num_samples, extent):
        shard.broken_barh([(left + 0.1, extent - 0.2)], (1, 0.8), color="0.6")
    for number, left in enumerate(range(0, num_samples, chunk)):
        shard.broken_barh([(left + 0.1, chunk - 0.2)], (2, 0.8), color=COLOURS[number % 4])
    shard.set(yticks=(0.4, 1.4, 2.4), yticklabels=("samples", "extents", "chunks"), xticks=(), xlim=(0, num_samples))
    shard.set_title("A shard: the index knows extents, reads take chunks", loc="left")
    width, slots = 4, 14
    for slot in range(slots):
        start = 0 if slot < width else slot - width / 2
        stop = slots if slot >= slots - width else slot + width / 2
        lanes.broken_barh([(start + 0.05, stop - start - 0.1)], (slot % width + 0.1, 0.8), color=COLOURS[slot % 3])
    for border in range(1, 2 * slots):
        lanes.axvline(border / 2, color="0.5", linewidth=0.6, linestyle=":")
    lanes.set(
        yticks=np.arange(width) + 0.5, yticklabels=[f"lane {lane}" for lane in range(width)], xticks=range(slots + 1)
    )
    lanes.set(xlim=(0, slots), xlabel="time line of a canonical node: a slot for each of its chunks")
    lanes.set_title(f"A window of {width} chunks, one in each lane; slabs between dotted lines", loc="left")
    save(figure, path)


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


def draw_memory(path: Path) -> None:
    """What the same memory gives to three orders: VR measured and predicted, and labels in a batch."""
    size = 2**18
    labels = np.arange(size) // MEMORY_CLASS
    chunks, shards = np.full(size // CHUNK_SAMPLES, CHUNK_SAMPLES), np.full(size // SHARD_SAMPLES, SHARD_SAMPLES)
    # A buffer leaves a class of a shard together, so its chunks are the runs of a class.
    runs = np.full(size // MEMORY_CLASS, MEMORY_CLASS)
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.0, 3.7), layout="constrained")
    kinds = [
        ("buffer over whole shards", shards, runs),
        ("blocks of chunks", chunks, chunks),
        ("window of chunks", chunks, chunks),
    ]
    for colour, (name, layout, natural) in zip(COLOURS, kinds, strict=False):
        measured, predicted, distinct = [], [], []
        for memory in MEMORY.tolist():
            order = order_of(name, memory)
            bound = [order.bind(layout, seed=seed) for seed in range(3)]
            epochs = np.stack([labels[each.ids(0, size)] for each in bound])
            measured.append(variance_ratio(epochs, MEMORY_BATCH))
            distinct.append(distinct_per_batch(epochs, MEMORY_BATCH))
            predicted.append(predicted_variance_ratio(order, natural, MEMORY_BATCH))
        left.plot(MEMORY, predicted, color=colour, linewidth=1)
        left.plot(MEMORY, measured, "o", color=colour, markersize=4, label=name)
        right.plot(MEMORY, distinct, "o-", color=colour, markersize=4, linewidth=1, label=name)
    right.axhline(expected_distinct(labels, MEMORY_BATCH), color="#5c5c5c", linewidth=1, linestyle=(0, (4, 2)))
    right.text(MEMORY[0], expected_distinct(labels, MEMORY_BATCH), "perfect", va="bottom", color="#5c5c5c")
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.set(xlabel="samples in memory")
    left.set_yscale("log", base=2)
    left.set(ylabel=f"variance ratio, VR({MEMORY_BATCH})")
    left.set_title("How much batches vary: dots measured, lines predicted", loc="left")
    right.set(ylabel=f"different classes in a batch of {MEMORY_BATCH}", ylim=(0, None))
    right.set_title("What a batch holds", loc="left")
    left.legend(frameon=False)
    save(figure, path)


def draw_buffer_size(path: Path) -> None:
    """The textbook's demonstration: what a buffer leaves of the order of a sorted stream, beside a window."""
    size = STREAM_SAMPLES
    labels = np.arange(size) // STREAM_CLASS
    shards, chunks = np.full(size // STREAM_CLASS, STREAM_CLASS), np.full(size // STREAM_CHUNK, STREAM_CHUNK)
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.0, 3.7), layout="constrained")
    kinds = [
        ("buffer over the stream", np.array([size]), COLOURS[0], "o-"),
        ("buffer over shards in random order", shards, COLOURS[1], "s--"),
        ("window of chunks of 10", chunks, COLOURS[2], "o-"),
    ]
    for name, layout, colour, line in kinds:
        window = name.startswith("window")
        memory = [samples for samples in BUFFERS if not window or samples >= 2 * STREAM_CHUNK]
        orders = [
            Window(samples // STREAM_CHUNK, num_canonical_nodes=1) if window else Buffer(samples) for samples in memory
        ]
        epochs = [order.bind(layout, seed=0).ids(0, size) for order in orders]
        style = {"color": colour, "markersize": 4, "linewidth": 1, "label": name}
        left.plot(memory, [position_correlation(ids) for ids in epochs], line, **style)
        right.plot(memory, [distinct_per_batch(labels[ids], STREAM_BATCH) for ids in epochs], line, **style)
    perfect = expected_distinct(labels, STREAM_BATCH)
    right.axhline(perfect, color="#5c5c5c", linewidth=1, linestyle=(0, (4, 2)))
    right.text(BUFFERS[0], perfect, "perfect", va="bottom", color="#5c5c5c")
    right.text(500, 2, "both buffers", color="#5c5c5c")
    for axes in (left, right):
        axes.set_xscale("log")
        axes.set(xlabel=f"samples in memory, of {size:,}")
    left.set(ylabel="correlation of position before and after")
    left.set_title("What is left of the order", loc="left")
    right.set(ylabel=f"classes in a batch of {STREAM_BATCH}", ylim=(0, None))
    right.set_title("What a batch holds", loc="left")
    left.legend(frameon=False, loc="center left")
    save(figure, path)


def order_of(name: str, memory: int) -> Buffer | Block | Window:
    """The order that holds so many samples at a time."""
    if name.startswith("buffer"):
        return Buffer(samples=memory)
    chunks = memory // CHUNK_SAMPLES
    return Block(chunks=chunks) if name.startswith("blocks") else Window(chunks=chunks, num_canonical_nodes=1)


def save(figure: Any, path: Path) -> None:
    """Write without a date, so that the same picture is the same file."""
    figure.savefig(path, dpi=140, metadata={"Software": None})
    plt.close(figure)


if __name__ == "__main__":
    main()
