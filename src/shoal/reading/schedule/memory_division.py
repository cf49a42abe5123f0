"""Division of memory for an order: units, bytes to read ahead and bytes to keep; a warning if memory is too small."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.figures import format_bytes
from shoal.reading.cache.large_chunks import too_large
from shoal.reading.resolved_order import ResolvedOrder
from shoal.reading.schedule.lifetimes import Keeping
from shoal.reading.schedule.memory_ledger import ahead_limit_bytes, divide
from shoal.reading.schedule.units import RecordUnits, SlicedUnits, SpilledRecords, Units
from shoal.storage.chunk_cache.directory import most_memory_bytes

_log = logging.getLogger("shoal")
_warned: set[tuple[int, int, int]] = set()


@dataclass(frozen=True, slots=True)
class Budget:
    """The units to read, and the bytes to read ahead; ``keeping`` plans early evictions, None if all units fit."""

    units: Units
    ahead_bytes: int
    keeping: Keeping | None


def budget_of(
    resolved: ResolvedOrder,
    memory_limit_bytes: int | None,
    *,
    is_remote: bool,
    verifies: bool = False,
    num_sources: int = 1,
) -> Budget:
    """Return the budget for reading in an order; the ``num_sources`` of a mixture share the memory.

    A chunk that is too large (`shoal.reading.cache.large_chunks`) is read sample by sample if the index has the offsets
    of samples, or if it can be spilled. With ``verifies``, a single sample is read with its whole extent, since only
    extents have checksums. Raises `UsageError`: the limit is too small for two units read ahead and one in use.
    """
    table, index = resolved.chunks, resolved.index
    window_bytes = int(resolved.order.parameters.get("chunks", 0) * table.mean_bytes)
    units, is_sliced = resolved.units, too_large(resolved, memory_limit_bytes)
    alone = replace(index, sample_bytes=None) if verifies and index.extent_checksum is not None else index
    largest_bytes = max(1, table.largest_bytes)
    if isinstance(units, RecordUnits):
        is_sliced[:] = True
        units = units if alone is index else RecordUnits(alone)
    elif not is_sliced.any() or resolved.by_singles:
        is_sliced[:] = False
    elif index.sample_bytes is not None:
        units = SlicedUnits(RecordUnits(alone), table, is_sliced)
    elif resolved.spills:
        units = SlicedUnits(SpilledRecords(index), table, is_sliced)
        window_bytes = min(window_bytes, resolved.window_bytes or window_bytes)  # two chunks may be much larger
    else:
        is_sliced[:] = False
    if memory_limit_bytes is not None and is_sliced.all():
        largest_bytes = RecordUnits(alone).largest_bytes(table, is_sliced)
    largest_bytes = units.largest(largest_bytes)
    ahead_bytes = ahead_limit_bytes(window_bytes, largest_bytes, is_remote=is_remote, num_sources=num_sources)
    if memory_limit_bytes is None:
        return Budget(units, ahead_bytes, None)
    try:
        ahead_bytes, keep_bytes = divide(memory_limit_bytes, ahead_bytes, largest_bytes)
    except UsageError as error:
        if index.sample_bytes is None and not resolved.spills:
            error.hint += "; or cache= in shoal.open(), where chunks that are too large are kept decoded"
        raise

    def bytes_of(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.array([units.held_bytes(read) for read in units.reads(numbers)], dtype=np.int64)

    return Budget(units, ahead_bytes, Keeping(keep_bytes, bytes_of))


def local_ranks(world_size: int) -> int:
    """Return the number of ranks on this machine, as torchrun reports it; 1 without torchrun."""
    local = os.environ.get("LOCAL_WORLD_SIZE", "")
    return min(world_size, int(local)) if local.isdecimal() and int(local) else 1


def warn_of_memory(
    orders: Sequence[ResolvedOrder], *, world_size: int, num_workers: int, memory_limit_bytes: int | None
) -> None:
    """Log, once for the same numbers, if the chunks in use on this machine exceed its memory or its container's.

    Each rank reads the ``orders`` of all sources in ``num_workers`` processes, each with the same limit.
    """
    most_bytes = most_memory_bytes()
    rank_bytes = sum(order.chunks_held_bytes for order in orders) // world_size
    process_bytes = rank_bytes if memory_limit_bytes is None else min(rank_bytes, memory_limit_bytes)
    num_processes = num_workers * local_ranks(world_size)
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
