"""What the orders of other libraries cost, beside what the libraries need for the same ids.

``python bench/peer_orders.py [torch] [webdataset]`` prints, for each order, ids a second, seconds to the first id
and to one in the middle, and memory; below that the library's own. The best of three counts.
"""

from __future__ import annotations

import random
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from shoal.orders import (
    Order,
    TorchDistributed,
    TorchRandom,
    WebDatasetDetshuffle,
    WebDatasetResampled,
    WebDatasetShuffle,
)

_ROUNDS = 3


def main() -> None:
    """Print the sections that are named, or all."""
    for name in sys.argv[1:] or SECTIONS:
        SECTIONS[name]()


def torch_orders() -> None:
    """Permutations of torch's samplers, and of torch itself as its samplers hand them out."""
    import torch  # noqa: PLC0415  # for this section alone
    from torch.utils.data import DistributedSampler, RandomSampler  # noqa: PLC0415

    for size in (10**6, 10**7):
        samples, items = np.full(size // 1000, 1000), range(size)
        told("torch-random", f"{size:,} samples", TorchRandom(), samples, size)
        told("torch-distributed", f"{size:,} samples", TorchDistributed(8), samples, size)
        alone = rate(lambda: torch.randperm(size), size)  # noqa: B023  # called at once
        through = rate(lambda: sum(1 for _ in RandomSampler(items)), size)  # noqa: B023
        of_rank = rate(lambda: list(DistributedSampler(items, 8, 0)), size // 8)  # type: ignore[arg-type]  # noqa: B023
        print(f"    torch.randperm {alone}; RandomSampler {through}; DistributedSampler {of_rank} for each of 8 ranks")


def webdataset_orders() -> None:
    """Buffers over 10^8 samples in 10^4 shards, and WebDataset's own over integers."""
    samples = np.full(10_000, 10_000)
    job: dict[str, Any] = {"world_size": 8, "num_workers": 4, "batch_size": 64}
    for arguments in ({}, {"bufsize": 10_000}, job, {**job, "world_size": 64, "num_workers": 8}):
        about = ", ".join(f"{name}={value}" for name, value in arguments.items()) or "bufsize=1000"
        for made in (WebDatasetShuffle, WebDatasetDetshuffle, WebDatasetResampled):
            told(made.name, about, made(**arguments), samples, 1 << 23)
    for size in (1000, 10_000):
        own = rate(lambda: held(1 << 20, size), 1 << 20)  # noqa: B023  # called at once
        print(f"    a buffer of {size:,} as WebDataset has it, over integers: {own}")


def held(length: int, bufsize: int) -> int:
    """WebDataset's ``_shuffle`` over integers."""
    rng, buffer, count = random.Random(0), [], 0
    source: Iterator[int] = iter(range(length))
    for item in source:
        buffer.append(item)
        if len(buffer) < bufsize:
            buffer.append(next(source))
        if len(buffer) >= min(100, bufsize):
            place = rng.randint(0, len(buffer) - 1)
            buffer[place] = buffer[-1]
            buffer.pop()
            count += 1
    return count


SECTIONS: dict[str, Callable[[], None]] = {"torch": torch_orders, "webdataset": webdataset_orders}


def told(name: str, about: str, order: Order, samples: Any, count: int) -> None:
    """Print a line of an order: positions are asked for in spans, from the first on."""

    def read() -> None:
        bound = order.bind(samples, seed=1)
        for start in range(0, min(count, bound.num_samples), bound.span):
            bound.ids(start, min(start + bound.span, bound.num_samples))

    def first() -> None:
        order.bind(samples, seed=1).ids(0, 1)

    def middle() -> None:
        bound = order.bind(samples, seed=1)
        bound.ids(bound.num_samples // 2, bound.num_samples // 2 + 1)

    tracemalloc.start()
    read()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    print(
        f"{name:<18} {about:<46} {count / best(read) / 1e6:5.1f} million ids/s, first {best(first):.3f} s,"
        f" seek {best(middle):.3f} s, peak {peak / 2**20:.0f} MiB ({peak / count:.1f} bytes an id)",
        flush=True,
    )


def rate(run: Callable[[], Any], count: int) -> str:
    """Give the rate in words."""
    return f"{count / best(run) / 1e6:.2f} million/s"


def best(run: Callable[[], Any]) -> float:
    """Give the least CPU seconds of some runs."""
    found = []
    for _ in range(_ROUNDS):
        begin = time.process_time()
        run()
        found.append(time.process_time() - begin)
    return min(found)


if __name__ == "__main__":
    main()
