"""Threads and counts of memory that the sources of a mixture have in common."""

from __future__ import annotations

from typing import NamedTuple

from shoal.reading.remote.request_pool import RequestPool
from shoal.reading.schedule.memory_ledger import MemoryBudget


class SharedReading(NamedTuple):
    """Shared by all sources: threads for requests, None if all are local; and a ledger of the bytes of all."""

    requests: RequestPool | None
    memory: MemoryBudget
    num_sources: int
