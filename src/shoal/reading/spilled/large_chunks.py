"""Chunks that are too large for the window and of which no sample can be read alone: spilled decoded, or refused.

Examples are row groups, record batches and compressed shards. A window holds at least two chunks of the mean size, so
only uneven ones are too large; if chunks can be spilled, possibly all of them.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.figures import format_bytes
from shoal.formats.shard_format import SpillingFormat
from shoal.indexing.open_source import Opened
from shoal.reading.resolved_order import ResolvedOrder
from shoal.reading.schedule.units import RecordUnits

# A chunk larger than the memory limit divided by this is read sample by sample.
PART_OF_LIMIT = 8
_TRIES = 24  # each enlarges a window by an eighth


def can_spill(opened: Opened) -> bool:
    """Return True if pieces of this dataset can be kept decoded: it has a cache, and its format supports it."""
    return opened.cache is not None and opened.index.sample_bytes is None and isinstance(opened.format, SpillingFormat)


def too_large(arrangement: ResolvedOrder, memory_limit_bytes: int | None) -> NDArray[np.bool_]:
    """Return True for chunks that take more than half of the window, or an eighth of the limit; shape (num_chunks,).

    The window excludes none if it has room for the whole dataset; chunks of a single sample, which cannot be split, are
    never too large.
    """
    chunk_bytes, num_samples = arrangement.chunks.decoded_bytes, arrangement.chunks.num_samples
    window_bytes = arrangement.window_bytes
    if window_bytes is None:
        window_bytes = (
            int(arrangement.order.parameters.get("chunks", 0) * chunk_bytes.mean()) if len(chunk_bytes) else 0
        )
    largest_bytes = int(chunk_bytes.max(initial=0))
    most_bytes = window_bytes // 2 if 0 < window_bytes < int(chunk_bytes.sum()) else largest_bytes
    if memory_limit_bytes is not None:
        most_bytes = min(most_bytes, memory_limit_bytes // PART_OF_LIMIT)
    found: NDArray[np.bool_] = (chunk_bytes > most_bytes) & (num_samples > 1)
    return found


def refuse_too_large(opened: Opened, arrangement: ResolvedOrder, memory_limit_bytes: int | None) -> None:
    """Raise if a chunk would make the window exceed the bytes that were asked for by more than half.

    While the largest chunk is in use, the others of the window are of the mean size: so it may exceed the mean by half
    of the window. Not applied if samples can be read alone or chunks are spilled; nor with a memory limit, which has
    rules of its own.

    Raises
    ------
    UsageError
        A chunk is larger; the hint names the smallest window that has room for it.
    """
    is_shared = arrangement.index.sample_bytes is None and not isinstance(arrangement.units, RecordUnits)
    if not is_shared or arrangement.spills or memory_limit_bytes is not None or (over := _over(arrangement)) is None:
        return
    chunk_bytes, window_bytes = over
    table, index = arrangement.chunks, arrangement.index
    chunk = int(np.argmax(np.where(table.num_samples > 1, table.decoded_bytes, 0)))
    msg = (
        f"{index.shard_names[table.shard[chunk]]}: bytes [{table.first_byte[chunk]}, {table.end_byte[chunk]}) can only "
        f"be decoded together, to {format_bytes(chunk_bytes)}; that is more than half of the window of "
        f"{format_bytes(window_bytes)}, and chunks have {format_bytes(float(table.decoded_bytes.mean()))} on average"
    )
    hints = [f'window="{_smallest_window(arrangement, chunk_bytes) >> 20}MiB" or more']
    if isinstance(opened.format, SpillingFormat):
        hints.append("cache= in shoal.open(), where such chunks are kept decoded")
    hints.append("`shoal repack` the dataset into smaller row groups or shards")
    raise UsageError(msg, hint="; or ".join(hints))


def _over(arrangement: ResolvedOrder) -> tuple[int, int] | None:
    """Return the bytes of the largest chunk and of the window, if the chunk is too large for it; else None."""
    asked_bytes = arrangement.window_bytes
    table = arrangement.chunks
    is_shared = table.num_samples > 1
    if asked_bytes is None or not is_shared.any():
        return None
    chunk_bytes = table.decoded_bytes
    mean_bytes, largest_bytes = float(chunk_bytes.mean()), int(chunk_bytes[is_shared].max())
    # The numbers of a state take precedence over a request in bytes.
    window_bytes = max(asked_bytes, int(arrangement.order.parameters.get("chunks", 0) * mean_bytes))
    fits = window_bytes >= int(chunk_bytes.sum()) or largest_bytes <= window_bytes / 2 + mean_bytes
    return None if fits else (largest_bytes, window_bytes)


def _smallest_window(arrangement: ResolvedOrder, chunk_bytes: int) -> int:
    """Return the bytes, whole MiB, of a window with room for the largest chunk, as chunks may grow with the window."""
    request, mean_bytes = arrangement.request, float(arrangement.chunks.decoded_bytes.mean())
    window_bytes = int(2 * (chunk_bytes - mean_bytes))
    for _ in range(_TRIES):
        window_bytes = -(-window_bytes // 2**20) * 2**20
        wider = replace(request, order=None, extents_per_chunk=None, window=window_bytes)
        if _over(ResolvedOrder(arrangement.index, wider)) is None:
            break
        window_bytes = window_bytes * 9 // 8
    return window_bytes
