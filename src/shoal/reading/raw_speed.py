"""Throughput of reading the bytes of a run without processing them: the baseline for the run."""

from __future__ import annotations

import time

import numpy as np

from shoal.indexing.opened_dataset import Opened
from shoal.order.partition import Partition
from shoal.reading.resolved_order import ResolvedOrder
from shoal.reading.schedule.lifetimes import first_uses

_READS_AT_ONCE = 256


def plain_bytes_per_second(
    opened: Opened, resolved: ResolvedOrder, partition: Partition, *, rank: int, num_steps: int, most_seconds: float
) -> float:
    """Measure the bytes per second at which the units for a rank's first steps of epoch 0 can be read in sequence.

    Each unit is read once, in the order of its first use, by one thread, until ``most_seconds`` are over.
    """
    share = partition.share(resolved.epoch(0), rank, 0, num_steps)
    units = resolved.units_of(share.ids, share.chunks)
    wanted = first_uses(units, np.zeros(0, dtype=np.int64))
    num_bytes, began = 0, time.perf_counter()
    for first in range(0, len(wanted), _READS_AT_ONCE):
        for read in resolved.units.reads(wanted[first : first + _READS_AT_ONCE]):
            num_bytes += len(opened.store.read_range(opened.paths[read.shard], read.first_byte, read.end_byte))
        if time.perf_counter() - began > most_seconds:
            break
    return num_bytes / max(time.perf_counter() - began, 1e-9)
