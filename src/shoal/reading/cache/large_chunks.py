"""Chunks that are too large for the window, if no sample can be read alone: spilled decoded, or refused.

Examples are row groups, record batches and compressed shards. A window holds at least two chunks of the mean size, so
only uneven chunks are too large; with spilling, all chunks may be too large.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.figures import format_bytes
from shoal.indexing.opened_dataset import Opened
from shoal.reading.resolved_order import ResolvedOrder
from shoal.reading.schedule.units import RecordUnits

_PART_OF_LIMIT = 8  # a chunk larger than the memory limit divided by this is too large


def too_large(resolved: ResolvedOrder, memory_limit_bytes: int | None, *, slack_bytes: int = 0) -> NDArray[np.bool_]:
    """Return True for chunks that take more than half of the window, or an eighth of the limit; shape (num_chunks,).

    ``slack_bytes`` more than half are allowed. No chunk is too large for a window that holds the whole dataset, nor a
    chunk of a single sample, which cannot be split.
    """
    table, window_bytes = resolved.chunks, _window_bytes(resolved)
    most_bytes = largest_bytes = table.largest_bytes
    if 0 < window_bytes < table.total_bytes:
        most_bytes = window_bytes // 2 + slack_bytes
    if memory_limit_bytes is not None:
        most_bytes = min(most_bytes, memory_limit_bytes // _PART_OF_LIMIT)
    if largest_bytes <= most_bytes:
        return np.zeros(len(table), dtype=bool)
    return (table.num_samples > 1) & (table.decoded_bytes > most_bytes)


def _window_bytes(resolved: ResolvedOrder) -> int:
    """Return the requested bytes of the window or, if more, the bytes of its chunks; 0 without a window.

    A state fixes the number of chunks but not the requested bytes. Two spilled chunks may be much larger than the
    window, so the request decides if chunks are spilled.
    """
    requested_bytes = resolved.window_bytes
    if resolved.spills and requested_bytes is not None:
        return requested_bytes
    of_chunks = int(resolved.order.parameters.get("chunks", 0) * resolved.chunks.mean_bytes)
    return max(requested_bytes or 0, of_chunks)


def refuse_too_large(opened: Opened, resolved: ResolvedOrder, memory_limit_bytes: int | None) -> None:
    """Raise `UsageError` if a chunk would make the window exceed its requested bytes by more than half.

    While the largest chunk is in use, the other chunks of the window have the mean size. So a chunk may exceed the mean
    by half of the window. The rule does not apply if samples can be read alone or chunks are spilled, nor with a memory
    limit, which has its own rules. The hint of the error names the smallest window with room for the chunk.
    """
    index = resolved.index
    is_shared = index.sample_bytes is None and not isinstance(resolved.units, RecordUnits)
    if not is_shared or resolved.spills or memory_limit_bytes is not None or not _exceeds(resolved):
        return
    table, window_bytes = resolved.chunks, _window_bytes(resolved)
    chunk = int(np.argmax(np.where(table.num_samples > 1, table.decoded_bytes, 0)))
    chunk_bytes = int(table.decoded_bytes[chunk])
    shard, first_byte, end_byte = (int(column[0]) for column in table.chunks.places(np.array([chunk])))
    msg = (
        f"{index.shard_names[shard]}: bytes [{first_byte}, {end_byte}) can only "
        f"be decoded together, to {format_bytes(chunk_bytes)}; that is more than half of the window of "
        f"{format_bytes(window_bytes)}, and chunks have {format_bytes(table.mean_bytes)} on average"
    )
    hints = [f'window="{_smallest_window(resolved, chunk_bytes) >> 20}MiB" or more']
    if opened.format.spilled_as:
        hints.append("cache= in shoal.open(), where such chunks are kept decoded")
    hints.append("`shoal repack` the dataset into smaller row groups or shards")
    raise UsageError(msg, hint="; or ".join(hints))


def _exceeds(resolved: ResolvedOrder) -> bool:
    """Return True if some chunk is too large for the requested window, beside chunks of the mean size."""
    mean_bytes = resolved.chunks.mean_bytes
    return resolved.window_bytes is not None and bool(too_large(resolved, None, slack_bytes=int(mean_bytes)).any())


def _smallest_window(resolved: ResolvedOrder, chunk_bytes: int) -> int:
    """Return the bytes, in whole MiB, of the smallest window with room for the largest chunk.

    Chunks may grow with the window, so windows are tried. A window with room for the whole dataset always fits.
    """
    window_bytes = int(2 * (chunk_bytes - resolved.chunks.mean_bytes))
    while True:
        window_bytes = -(-window_bytes // 2**20) * 2**20
        wider = replace(resolved.request, order=None, extents_per_chunk=None, window=window_bytes)
        if not _exceeds(ResolvedOrder(resolved.index, wider)):
            return window_bytes
        window_bytes = window_bytes * 9 // 8
