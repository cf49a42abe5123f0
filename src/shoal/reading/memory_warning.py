"""A warning before the system kills: the chunks in use are more than the memory of this machine or container."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence

from shoal.figures import format_bytes
from shoal.reading.resolved_order import ResolvedOrder
from shoal.storage.chunk_cache.directory import most_memory_bytes

_log = logging.getLogger("shoal")
_warned: set[tuple[int, int, int]] = set()


def warn_of_memory(
    orders: Sequence[ResolvedOrder], *, world_size: int, num_workers: int, memory_limit_bytes: int | None
) -> None:
    """Log, once for the same numbers, if the chunks in use by the processes of this machine exceed its memory.

    ``orders`` are those of all sources, read by ``num_workers`` processes of each rank; ``memory_limit_bytes`` is the
    limit of each process.
    """
    most_bytes = most_memory_bytes()
    rank_bytes = sum(order.chunks_held_bytes for order in orders) // world_size
    process_bytes = rank_bytes if memory_limit_bytes is None else min(rank_bytes, memory_limit_bytes)
    local = os.environ.get("LOCAL_WORLD_SIZE", "")
    num_processes = num_workers * (min(world_size, int(local)) if local.isdecimal() and int(local) else 1)
    numbers = process_bytes, num_processes, most_bytes
    if not most_bytes or process_bytes * num_processes <= most_bytes or numbers in _warned:
        return
    _warned.add(numbers)
    _log.warning(
        "the window takes about %s in each of %d processes here, and this machine or container has %s of memory: the "
        "system will end processes; take a smaller window= in shuffle(), fewer workers, or reading(memory_limit=...)",
        format_bytes(process_bytes),
        num_processes,
        format_bytes(most_bytes),
    )
