"""Measures the orders of Hugging Face datasets: ids a second, seeks, memory, beside a shuffle buffer that holds ids.

``python bench/huggingface_order.py [--rounds 5]`` takes about two minutes. Times are CPU time, the median of rounds in
which all orders take turns.
"""

from __future__ import annotations

import argparse
import statistics
import time
import tracemalloc
from collections.abc import Iterator
from typing import Any

import numpy as np

from shoal.orders import HuggingFace

SHARDS = [50_000] * 2000  # a hundred million samples
SCANNED = 2_000_000
SEEK_TO = 90_000_000


def orders() -> Iterator[HuggingFace]:
    """Kinds, releases and sizes of buffers, alone and with ranks and workers."""
    for size in (1000, 10_000, 100_000):
        yield HuggingFace("reservoir", buffer_size=size)
        yield HuggingFace("reservoir", release="5.0", buffer_size=size)
        yield HuggingFace("block", buffer_size=size)
        yield HuggingFace("block", buffer_size=size, tables=False)
    yield HuggingFace("block", buffer_size=100)
    for name in ("reservoir", "block"):
        for ranks, workers in ((8, 4), (50, 8)):
            kind: Any = name
            yield HuggingFace(kind, buffer_size=1000, world_size=ranks, num_workers=workers, batch_size=32)


def cost(order: HuggingFace) -> tuple[float, float, float]:
    """Nanoseconds an id; seconds of the first seek, and of a second one."""
    bound = order.bind(SHARDS, seed=1)
    bound.ids(0, bound.span)  # the buffers are filled
    began = time.process_time()
    for start in range(bound.span, bound.span + SCANNED, bound.span):
        bound.ids(start, start + bound.span)
    scanned = (time.process_time() - began) / (-(-SCANNED // bound.span) * bound.span) * 1e9
    seeks = []
    for position in (SEEK_TO, SEEK_TO // 2):
        began = time.process_time()
        bound.ids(position, position + 1)
        seeks.append(time.process_time() - began)
    return scanned, seeks[0], seeks[1]


def most_memory(order: HuggingFace) -> float:
    """MiB at most while ids are computed, and sought."""
    tracemalloc.start()
    bound = order.bind(SHARDS, seed=1)
    bound.ids(0, bound.span)
    bound.ids(SEEK_TO, SEEK_TO + bound.span)
    most = tracemalloc.get_traced_memory()[1] / 2**20
    tracemalloc.stop()
    return most


def held(size: int = 10_000, samples: int = 300_000) -> float:
    """Nanoseconds an id of the library's reservoir, over ids."""
    generator, buffer, found = np.random.default_rng(1), list[int](), 0
    slots: Iterator[int] = iter(())
    began = time.process_time()
    for sample in range(samples):
        if len(buffer) < size:
            buffer.append(sample)
            continue
        slot = next(slots, -1)
        if slot < 0:
            slots = iter(generator.integers(0, size, size=1000).tolist())
            slot = next(slots)
        found += buffer[slot]
        buffer[slot] = sample
    return (time.process_time() - began) / samples * 1e9


def main() -> None:
    """Print a line for each order."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    measured = list(orders())
    times = [[cost(order) for order in measured] for _ in range(rounds)]
    print(f"a reservoir that holds ids, in Python: {statistics.median(held() for _ in range(rounds)):.0f} ns an id")
    print(
        "order         release  buffer  ranks x workers      ns an id (all rounds)   seek to 90 M   then to 45 M   MiB"
    )
    for number, order in enumerate(measured):
        scans, first, second = zip(*(each[number] for each in times), strict=True)
        spread = f"{min(scans):.0f} to {max(scans):.0f}"
        run = f"{order.world_size:>3} x {order.num_workers}{'' if order.tables else ' one by one':<12}"
        print(
            f"{order.name:<13} {order.release:<5} {order.buffer_size:>9,}  {run}"
            f" {statistics.median(scans):>8.0f} ({spread:>10})   {statistics.median(first):>8.2f} s"
            f"   {statistics.median(second) * 1e3:>8.0f} ms   {most_memory(order):>7.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
