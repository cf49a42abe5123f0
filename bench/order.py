"""What orders cost and how well they mix: time, memory, variance of batches, readers of chunks.

``python bench/order.py`` takes about a minute. Times are CPU time of one process, the best of several.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from shoal.order.partition import Partition
from shoal.orders import Block, Buffer, Full, Order, Window

HUGE_CHUNKS, HUGE_EACH = 10**7, 1000
SORTED_SAMPLES, MEMORY = 2**20, 16_384


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--window", help="internal: measure one window in a process of its own", default=None)
    asked = parser.parse_args().window
    if asked:
        print(json.dumps(window_costs(*json.loads(asked))))
        return
    print_window_costs()
    print_other_costs()
    print_seeks()
    print_quality()
    print_ends()
    print_reads()


# ---- time and memory


def window_costs(chunks: int, nodes: int) -> dict[str, float]:
    """Seconds, nanoseconds and MiB over ten billion samples in ten million chunks."""
    samples = np.full(HUGE_CHUNKS, HUGE_EACH)
    order = Window(chunks=chunks, num_canonical_nodes=nodes)
    order.bind(np.full(2000, 100)).ids(0, 10)  # numpy warms up
    times = [time.process_time()]
    bound = order.bind(samples, seed=1)
    times.append(time.process_time())
    bound.ids(0, 1)
    times.append(time.process_time())
    bound.ids(bound.num_samples // 2, bound.num_samples // 2 + 1)
    times.append(time.process_time())
    bind, first, seek = np.diff(times)
    return {"bind": bind, "first": first, "seek": seek, "ids": id_cost(bound_spans(order, samples)), "peak": peak()}


def bound_spans(order: Order, samples: NDArray[np.int64]) -> Iterator[int]:
    """Makes one span after the other and says how many samples each has."""
    bound = order.bind(samples, seed=2)
    bound.ids(0, 1)  # a buffer fills once
    for number in range(1, bound.num_samples // bound.span):
        bound.ids(number * bound.span, (number + 1) * bound.span)
        yield bound.span


def id_cost(spans: Iterator[int], *, rounds: int = 12, at_least: int = 1 << 18) -> float:
    """Nanoseconds of CPU for an id, the best of some rounds: the machine may be busy with other things."""
    next(spans)
    best = np.inf
    for _ in range(rounds):
        begin, made = time.process_time(), 0
        while made < at_least:
            made += next(spans)
        best = min(best, (time.process_time() - begin) / made * 1e9)
    return best


def peak() -> float:
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / 2**20 if sys.platform == "darwin" else most / 2**10


def print_window_costs() -> None:
    print(f"window over {HUGE_CHUNKS:,} chunks of {HUGE_EACH} samples (CPU time; peak of the process)")
    print("  chunks  nodes  bind s  first ids s  seek s  ns an id  peak MiB")
    for chunks, nodes in ((256, 16), (1024, 64)):
        command = [sys.executable, __file__, "--window", json.dumps([chunks, nodes])]
        runs = [json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout) for _ in "123"]
        best = {name: min(run[name] for run in runs) for name in runs[0]}
        print(f"  {chunks:6} {nodes:6}  {best['bind']:6.2f}  {best['first']:11.3f}", end="")
        print(f"  {best['seek']:6.3f}  {best['ids']:8.0f}  {best['peak']:8.0f}")
    print("  beside it, MosaicML Streaming's py1e as measured: 48 bytes and 300 ns a sample and epoch on every node,")
    print("  which for these ten billion would be 480 GB and 50 minutes before the first sample\n")


def print_other_costs() -> None:
    print("ns an id (CPU time), 100,000 chunks of 1000 samples")
    orders: list[Order] = [Window(chunks=256), Window(chunks=16_384), Full(), Block(chunks=256), Buffer(samples=16_384)]
    for order in orders:
        cost = id_cost(bound_spans(order, np.full(100_000, 1000)))
        print(f"  {order.name:7} {cost:6.0f}   {dict(order.parameters)}")
    print()


def print_seeks() -> None:
    print("16 million samples at ten seek points (CPU time, best and median of 5)")
    giant = np.full(200_000, 3)
    giant[70_000] = 10**8
    cases = [
        ("100,000 chunks of 1000", 256, np.full(100_000, 1000)),
        ("100,000 chunks of 1000", 16_384, np.full(100_000, 1000)),
        ("100,000 chunks of 500 to 1500", 1024, np.random.default_rng(0).integers(500, 1501, 100_000)),
        ("200,000 chunks of 3, one of 10^8", 256, giant),
    ]
    for name, chunks, samples in cases:
        bound, times = Window(chunks=chunks).bind(samples, seed=2), []
        for _ in range(5):
            begin = time.process_time()
            for start in np.linspace(0, bound.num_samples - 1_600_000, 10).astype(int).tolist():
                for at in range(start, start + 1_600_000, 200_000):
                    bound.ids(at, at + 200_000)
            times.append(time.process_time() - begin)
        print(f"  {name:33} window of {chunks:6}  {min(times):.2f} s  {np.median(times):.2f} s")
    print()


# ---- how well they mix


def print_quality() -> None:
    print(f"VR of batches, {SORTED_SAMPLES:,} samples in classes of 8192, memory for {MEMORY:,} (mean of 3 seeds)")
    cases: list[tuple[str, Order, int]] = [
        ("buffer over whole shards of 8192", Buffer(samples=MEMORY), 8192),
        ("buffer over chunks of 256", Buffer(samples=MEMORY), 256),
        ("block of 64 chunks of 256", Block(chunks=64), 256),
        ("window of 64 chunks of 256", Window(chunks=64, num_canonical_nodes=1), 256),
        ("window of 256 chunks of 64", Window(chunks=256, num_canonical_nodes=1), 64),
        ("window of 256 chunks of 64, 16 nodes", Window(chunks=256, num_canonical_nodes=16), 64),
        ("window of 1024 chunks of 16", Window(chunks=1024, num_canonical_nodes=1), 16),
        ("window of 1024 chunks of 16, 64 nodes", Window(chunks=1024, num_canonical_nodes=64), 16),
        ("full", Full(), 8192),
    ]
    print(f"  {'batch':38} {64:8} {256:8} {1024:8}")
    for name, order, each in cases:
        bounds = [order.bind(np.full(SORTED_SAMPLES // each, each), seed=seed) for seed in range(3)]
        ids = [bound.ids(0, SORTED_SAMPLES) for bound in bounds]
        num_classes = SORTED_SAMPLES // 8192
        ratios = [
            np.mean([variance_ratio(i // 8192, num_classes, SORTED_SAMPLES, batch) for i in ids])
            for batch in (64, 256, 1024)
        ]
        print(f"  {name:38} {ratios[0]:8.2f} {ratios[1]:8.2f} {ratios[2]:8.2f}")
    print()


def print_ends() -> None:
    print("VR over max(1, b / K) on chunks of one class, the worst b from K / 4 to 4 K (mean of 12 seeds):")
    print("an eighth, a quarter, a half and all of the first window, first and last twentieth, middle of an epoch")
    cases = [(16, 1, 200, 600), (64, 1, 16, 4000), (64, 4, 64, 2000), (256, 16, 64, 4096), (256, 1, 64, 4096)]
    for chunks, nodes, each, num_chunks in cases:
        order, samples = Window(chunks=chunks, num_canonical_nodes=nodes), np.full(num_chunks, each)
        bounds = [order.bind(samples, seed=seed) for seed in range(12)]
        epochs = [bound.locate(0, bound.num_samples)[1] for bound in bounds]
        size, window = num_chunks * each, chunks * each
        spans = [(0, window // part) for part in (8, 4, 2, 1)]
        spans += [(0, size // 20), (size - size // 20, size), (size // 4, size - size // 4)]
        worst = []
        for begin, end in spans:
            batches = [int(chunks * times) for times in (0.25, 0.5, 0.75, 1, 1.25, 1.5, 2, 4)]
            ratios = [
                np.mean([variance_ratio(epoch[begin:end], num_chunks, size, batch) for epoch in epochs])
                / max(1, batch / chunks)
                for batch in batches
                if 2 * batch <= end - begin
            ]
            worst.append(f"{max(ratios):.2f}")
        print(f"  {chunks:5} chunks, {nodes:2} nodes, {num_chunks:5} of {each:3}:  {'  '.join(worst)}")
    print()


def variance_ratio(classes: NDArray[np.int64], num_classes: int, num_samples: int, batch: int) -> float:
    """VR of a random label for each class of equal size over a span of an epoch: without their noise."""
    num_batches = len(classes) // batch
    words = np.repeat(np.arange(num_batches), batch) * num_classes + classes[: num_batches * batch]
    counts = np.unique(words, return_counts=True)[1].astype(float)
    variance = ((counts**2).sum() / num_batches * num_classes - batch**2) / (num_classes - 1)
    return float(variance / (batch * (num_samples - batch) / (num_samples - 1)))


def print_reads() -> None:
    samples, nodes = np.full(4096, 64), 16
    bound = Window(chunks=16 * nodes, num_canonical_nodes=nodes).bind(samples, seed=5)
    print("reads of each chunk over all ranks, 16 canonical nodes of 16 chunks, batches of 64 a rank")
    found = []
    for world_size in (1, 2, 4, 8, 12, 15, 16, 17, 32, 64):
        part = Partition(64 * world_size, world_size)
        stop = part.num_batches(bound.num_samples)
        readers = [np.unique(part.share(bound, rank, 0, stop).chunks).size for rank in range(world_size)]
        found.append(f"{world_size}: {sum(readers) / len(samples):.2f}")
    print(f"  world size  {'  '.join(found)}")


if __name__ == "__main__":
    main()
