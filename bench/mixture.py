"""What mixing costs the order: ``python bench/mixture.py [--quick]``; index arithmetic alone, nothing is read.

64 sources of 10^8 samples each: seek, ids, counts, memory; and how evenly ranks get each source. The limit is one
source of that size, asked for the same number of ids.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable

import numpy as np

from shoal.order.mixture.endless_source import RepeatedDataset
from shoal.order.mixture.integer_weights import integer_weights
from shoal.order.mixture.mixed_order import MixedEpoch, MixedSources
from shoal.order.mixture.source_choice import Even
from shoal.order.mixture.source_schedule import Change, SourceSchedule
from shoal.order.partition import Partition
from shoal.order.protocol import BoundOrder
from shoal.order.seeds import key
from shoal.orders import Window

SOURCES = 64
WEIGHTS = {
    "64 by Zipf": [1 / (number + 1) for number in range(SOURCES)],
    ".9 and 63 small": [0.9] + [0.1 / (SOURCES - 1)] * (SOURCES - 1),
    "64 equal": [1.0] * SOURCES,
}
SPAN = 1 << 17


def source(number: int, num_chunks: int, chunk_samples: int, window: int, span: int) -> RepeatedDataset:
    """A source with a window of its own."""
    samples, bound = np.full(num_chunks, chunk_samples), dict[int, BoundOrder]()

    def order_of(epoch: int) -> BoundOrder:
        if epoch not in bound:
            bound[epoch] = Window(window).bind(samples, seed=key(0, 0, "source", number), epoch=epoch)
        return bound[epoch]

    num_samples = num_chunks * chunk_samples
    return RepeatedDataset(num_samples, order_of, num_ids=num_samples, num_chunks=num_chunks, reach=window, span=span)


def mixture(weights: list[float], num_chunks: int, chunk_samples: int, window: int) -> MixedEpoch:
    """Mix sources of equal size, with a window that they share by weight."""
    names, total = [f"source {number:02}" for number in range(SOURCES)], sum(weights)
    schedule = SourceSchedule(names, [Change(0, integer_weights(dict(zip(names, weights, strict=True))))], Even())
    sources = [
        source(
            number,
            num_chunks,
            chunk_samples,
            max(2, int(window * weight / total)),
            min(max(int(4 * SPAN * weight / total), 1 << 13), SPAN),
        )
        for number, weight in enumerate(weights)
    ]
    return MixedEpoch(MixedSources(schedule, sources, num_samples=1 << 60), 0)


def seconds(function: Callable[[], object]) -> float:
    """CPU seconds of a call."""
    began = time.process_time()
    function()
    return time.process_time() - began


def peak() -> float:
    """Peak memory of the process so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def costs(num_spans: int) -> None:
    """Print what seeking, ids and counts cost."""
    num_chunks, chunk_samples, window = 20_000, 5_000, 4096
    alone = Window(window).bind(np.full(num_chunks, chunk_samples), seed=1)
    alone.ids(0, SPAN)
    firsts = [range(10**7 // SPAN * SPAN + 8 * SPAN * part, 10**8, SPAN)[:8] for part in range(3)]
    one = min(seconds(lambda part=part: [alone.ids(at, at + SPAN) for at in part]) for part in firsts) / (8 * SPAN)
    print(f"one source of 10^8: {1e9 * one:.0f} ns an id; peak {peak():.0f} MiB")
    for name, weights in WEIGHTS.items():
        before = peak()
        order = mixture(weights, num_chunks, chunk_samples, window)
        bind = seconds(lambda order=order: order.ids(0, 4096))
        seek = max(seconds(lambda order=order, at=at: order.ids(at, at + 256)) for at in (10**9, 2 * 10**9, 3 * 10**9))
        begin = 10**9
        each = seconds(
            lambda order=order, begin=begin: [
                order.ids(begin + i * SPAN, begin + (i + 1) * SPAN) for i in range(num_spans)
            ]
        ) / (num_spans * SPAN)
        schedule = order.mixed.schedule
        counts = seconds(lambda schedule=schedule: schedule.sources(10**12, 10**12 + 8 * SPAN)) / (8 * SPAN)
        once = seconds(lambda schedule=schedule: [schedule.counts(10**15 + 977 * i) for i in range(100)]) / 100
        print(
            f"{name:16} bind {bind:.2f} s, seek {seek:.3f} s, ids {1e9 * each:.0f} ns ({each / one:.2f} x one source), "
            f"sources {1e-6 / counts:.0f} million/s, counts at a position {1e3 * once:.2f} ms, "
            f"memory +{peak() - before:.0f} MiB"
        )


def shares(steps: int, ranks: int, batch: int) -> None:
    """Print how evenly ranks get each source, and how many of them read a chunk."""
    for chunk_samples in (16, 256):
        for name, weights in WEIGHTS.items():
            order = mixture(weights, 32_000 // chunk_samples, chunk_samples, 65_536 // chunk_samples)
            partition = Partition(ranks * batch, ranks)
            given = np.zeros((SOURCES, ranks))
            reads = set[int]()
            first_chunk = order.mixed.first_chunk
            for step in range(0, steps, 50):
                chunks, to = partition.dealt(order, step, min(steps, step + 50))
                np.add.at(given, (np.searchsorted(first_chunk, chunks, side="right") - 1, to), 1)
                reads.update(np.unique(chunks * ranks + to).tolist())
            by_chunk = np.unique(np.array(list(reads)) // ranks, return_counts=True)[1]
            even = given.sum(axis=1, keepdims=True) / ranks
            off = np.abs(given - even)
            worst = np.unravel_index(np.argmax(off / even), off.shape)[0]
            print(
                f"chunks of {chunk_samples:3}, {name:16} worst share of a source on a rank off by "
                f"{(off / even).max():.0%} (of {even[worst, 0]:.0f} samples), of sources with 500 and more by "
                f"{(off / even)[even[:, 0] >= 500].max(initial=0):.1%}; a chunk is read by {by_chunk.mean():.1f} ranks"
            )


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the work, to see that it runs")
    quick = parser.parse_args().quick
    costs(4 if quick else 48)
    shares(100 if quick else 1000, 64, 32)


if __name__ == "__main__":
    main()
