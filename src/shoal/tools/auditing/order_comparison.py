"""Compare the mixing and the memory of orders, without reading data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.order.protocol import Order, check_chunk_samples, chunk_starts
from shoal.order.window.order import Window
from shoal.tools.auditing.auditing import Audit, audit

MOST_SAMPLES = 1 << 27
_CHUNKS_OF_WINDOW = 1024
_LEAST_SAMPLES, _LEAST_CHUNKS = 16, 8


@dataclass(frozen=True, slots=True)
class ComparedOrder:
    """An order over chunks, the audit of its first epoch, and its samples in memory.

    ``chunk_samples`` has the samples of each chunk, or of each shard if the order moves shards, shape (num_chunks,).
    ``held`` counts the samples that are read and not yet delivered, at up to 1000 evenly spaced positions.
    ``most_held`` is the maximum over all positions.
    """

    order: Order
    seed: int
    chunk_samples: NDArray[np.int64]
    held: NDArray[np.int64]
    most_held: int
    audit: Audit


def compare_with_window(
    orders: Sequence[Order], *, shard_samples: Any, batch: int = 64, chunk_samples: int | None = None
) -> list[ComparedOrder]:
    """Compare orders with a window that holds as many samples as the fullest order.

    ``shard_samples`` has the samples of each shard, shape (num_shards,); ``batch`` is the global batch. A chunk of the
    window has ``chunk_samples``, by default a 1024th of the window, or 16 if that leaves 8 chunks. Returns each order,
    then the window. Takes O(number of samples) memory, and some microseconds per sample. Raises `UsageError` for too
    few or too many samples.
    """
    shards = check_chunk_samples(shard_samples)
    total = int(shards.sum())
    if not batch <= total // 2 or total > MOST_SAMPLES:
        msg = f"orders of {total:,} samples are compared by counting them all, in batches of {batch:,}"
        raise UsageError(msg, hint=f"give two batches to {MOST_SAMPLES:,} samples: results hardly depend on the number")
    compared = [_compared(order, shards, batch) for order in orders]
    budget = max([2, *(order.most_held for order in compared)])
    least = min(_LEAST_SAMPLES, budget // _LEAST_CHUNKS)  # a chunk of one sample costs a read per sample
    size = max(1, least, budget // _CHUNKS_OF_WINDOW) if chunk_samples is None else chunk_samples
    chunks = np.concatenate([np.diff(np.append(np.arange(0, count, size), count)) for count in shards.tolist()])
    window = Window(chunks=max(2, budget // size))
    return [*compared, _compared(window, chunks, batch)]


def _compared(order: Order, chunk_samples: NDArray[np.int64], batch: int) -> ComparedOrder:
    seed = int(getattr(order, "default_seed", 0))
    bound = order.bind(chunk_samples, seed=seed, epoch=0)
    ids = bound.ids(0, bound.num_samples)
    held = held_samples(ids, chunk_samples, whole=order.moves == "chunks")
    shown = held[np.linspace(0, len(held) - 1, min(len(held), 1000)).astype(np.int64)]
    result = audit(ids, num_samples=int(chunk_samples.sum()), batch=batch)
    return ComparedOrder(order, seed, chunk_samples, shown, int(held.max()), result)


def held_samples(ids: NDArray[np.int64], chunk_samples: NDArray[np.int64], *, whole: bool) -> NDArray[np.int64]:
    """Return the number of samples in memory at each position, with the sample that is delivered.

    With ``whole``, the first delivery of a chunk reads all of it; otherwise a chunk is read from its start up to the
    delivered sample, the least that a loader of shards can hold. Repeats are free.

    >>> held_samples(np.array([2, 0, 1, 3]), np.array([3, 1]), whole=False).tolist()
    [3, 2, 1, 1]
    """
    firsts = np.sort(np.unique(ids, return_index=True)[1])
    starts = chunk_starts(chunk_samples)
    delivered = ids[firsts]
    chunks = np.searchsorted(starts, delivered, side="right") - 1
    reach = chunk_samples[chunks] if whole else delivered - starts[chunks] + 1
    by_chunk = np.argsort(chunks, kind="stable")
    stride = int(chunk_samples.max(initial=0)) + 1
    furthest = np.maximum.accumulate(chunks[by_chunk] * stride + reach[by_chunk]) - chunks[by_chunk] * stride
    is_first = np.diff(chunks[by_chunk], prepend=-1) != 0
    read = np.empty_like(furthest)
    read[by_chunk] = np.where(is_first, furthest, np.diff(furthest, prepend=0))
    change = np.zeros(len(ids) + 1, dtype=np.int64)
    change[firsts] += read
    change[firsts + 1] -= 1
    held: NDArray[np.int64] = np.cumsum(change)[:-1]
    return held
