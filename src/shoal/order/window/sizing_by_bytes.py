"""Conversion of a window given in bytes to the integers of a window order.

The integers depend only on the index and the arguments, never on the world size, the storage or the memory of a
machine: the same call gives the same order on a laptop and on 512 GPUs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.figures import parse_bytes
from shoal.order.window.order import Window, default_canonical_nodes

DEFAULT_WINDOW_BYTES = 512 * 2**20
_CHUNKS_IN_WINDOW = 1024  # a batch of 256 samples mixes over four batches: bench/LOG.md, 2026-11-26
_LARGEST_DEFAULT_CHUNK_BYTES = 8 * 2**20


@dataclass(frozen=True, slots=True)
class ResolvedWindow:
    """A window order over chunks of up to ``extents_per_chunk`` extents."""

    order: Window
    extents_per_chunk: int


def resolve_window(
    shard_extents: NDArray[np.int64],
    total_bytes: int,
    *,
    window: Any = None,
    chunk: Any = None,
    num_canonical_nodes: int | None = None,
    at_least_two: bool = False,
    fits_nodes: bool = False,
    largest_extent_bytes: int = 0,
) -> ResolvedWindow:
    """Resolve a window of ``window`` bytes in chunks of ``chunk`` bytes to integers.

    Parameters
    ----------
    shard_extents
        Extents of each shard, shape (num_shards,).
    total_bytes
        Bytes of all extents.
    window
        Bytes of the window over the whole job; default 512 MiB.
    chunk
        Bytes of a chunk; default a 1024th of the window, at least one extent and at most 8 MiB.
    num_canonical_nodes
        Default: one for every 16 chunks, at most 64.
    at_least_two
        True to use two chunks even if the window is too small for two chunks; these chunks are not held in memory.
    fits_nodes
        True to reduce the number of canonical nodes to at most half the chunks of the window.
    largest_extent_bytes
        Bytes of the largest extent held as a whole; an error suggests a window with room for this extent.
    """
    window_bytes = parse_bytes(DEFAULT_WINDOW_BYTES if window is None else window, "window")
    extent_bytes = max(1, total_bytes) / max(1, int(shard_extents.sum()))
    if chunk is None:
        target_bytes = max(min(window_bytes / _CHUNKS_IN_WINDOW, _LARGEST_DEFAULT_CHUNK_BYTES), extent_bytes)
    else:
        target_bytes = parse_bytes(chunk, "chunk")
        if target_bytes < extent_bytes / 2:
            msg = f"chunk={chunk!r} is smaller than the extents of the index, {extent_bytes:,.0f} bytes on average"
            raise UsageError(
                msg, hint=f"index again with `shoal index --extent-bytes {target_bytes}`, or use a larger chunk"
            )
    extents_per_chunk = max(1, round(target_bytes / extent_bytes))
    num_chunks = int((-(-shard_extents // extents_per_chunk)).sum())
    chunk_bytes = max(1, total_bytes) / max(1, num_chunks)
    # A window over the whole dataset needs no more chunks than the dataset has.
    chunks = min(int(window_bytes / chunk_bytes), max(2, num_chunks))
    if at_least_two or window_bytes >= total_bytes:
        chunks = max(2, chunks)
    if chunks < 2:
        smallest = 2 * math.ceil(max(extent_bytes if chunk is None else chunk_bytes, largest_extent_bytes))
        smallest = min(smallest, max(1, total_bytes))
        held = "1 chunk" if chunks == 1 else f"{chunks} chunks"
        msg = f"window={window_bytes:,} bytes holds {held} of {chunk_bytes:,.0f} bytes; a window needs at least 2"
        if largest_extent_bytes > chunk_bytes:
            msg += f", and the largest has {largest_extent_bytes:,}"
        raise UsageError(msg, hint=f"window={smallest} or more" + ("" if chunk is None else ", or a smaller chunk"))
    nodes = default_canonical_nodes(chunks) if num_canonical_nodes is None else num_canonical_nodes
    nodes = min(nodes, chunks // 2) if fits_nodes else nodes
    return ResolvedWindow(Window(chunks=chunks, num_canonical_nodes=nodes), extents_per_chunk)
