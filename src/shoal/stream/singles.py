"""Reads one sample at a time: samples as large as a chunk, and orders in which no two neighbours share one.

Nothing is kept, so there is nothing to plan or to let go: the next samples are asked for a block ahead, and each is
read when its turn comes. Where the consumer reads itself, headers and payloads come apart, without a copy in between.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from shoal.errors import ShardError
from shoal.plan.units import UnitRead, Units
from shoal.shards.protocol import Sample
from shoal.stream.counters import Counters
from shoal.stream.damage import damage_or_raise
from shoal.stream.opening import Opened
from shoal.stream.readers import Answer, Readers, readers_of
from shoal.stream.reading_options import ReadingOptions
from shoal.stream.stages import Damaged

__all__ = ["Singles"]

_MOST_IN_BLOCK = 256


class Singles:
    """Samples by id, each with a read of its own.

    Parameters
    ----------
    ahead_limit_bytes
        How many bytes may be asked for before they are used.
    """

    def __init__(
        self, opened: Opened, units: Units, counters: Counters, *, ahead_limit_bytes: int, options: ReadingOptions
    ) -> None:
        self._options = options
        self._opened, self._units, self._counters = opened, units, counters
        self._readers: Readers = readers_of(opened)
        self._block_bytes = ahead_limit_bytes // 2

    def samples(self, ids: Sequence[int], units: NDArray[np.int64]) -> Iterator[Sample | Damaged]:
        """The samples with these ids, in turn; ``units`` are the reads they are in."""
        asked = map(self._ask, self._blocks(units))
        numbers = iter(ids)
        get, counters, clock = self._readers.sample, self._counters, time.perf_counter
        current = next(asked, None)
        while current is not None:
            following = next(asked, None)  # asked for before this block is used
            reads, answer = current
            for place, read in enumerate(reads):
                began = clock()
                try:
                    sample: Sample | Damaged = get(read, answer, place, next(numbers))
                except ShardError as error:
                    if not self._options.skips:
                        raise
                    sample = damage_or_raise(self._opened, read, error)
                counters.wait_seconds += clock() - began
                yield sample
            current = following

    def close(self) -> None:
        """Stop; no thread is left when this returns."""
        self._readers.close()

    def _blocks(self, units: NDArray[np.int64]) -> Iterator[list[UnitRead]]:
        """Reads that together are a half of what may be asked for, or one that is more."""
        block: list[UnitRead] = []
        block_bytes = 0
        for first in range(0, len(units), _MOST_IN_BLOCK):
            for read in self._units.reads(units[first : first + _MOST_IN_BLOCK]):
                if block and (len(block) == _MOST_IN_BLOCK or block_bytes + read.num_bytes > self._block_bytes):
                    yield block
                    block, block_bytes = [], 0
                block.append(read)
                block_bytes += read.num_bytes
        if block:
            yield block

    def _ask(self, reads: list[UnitRead]) -> tuple[list[UnitRead], Answer | None]:
        sizes = [read.num_bytes for read in reads]
        counters = self._counters
        counters.num_reads += len(reads)
        counters.read_bytes += sum(sizes)
        held_bytes = 2 * sum(sizes) if self._readers.reads_ahead else max(sizes, default=0)
        counters.peak_held_bytes = max(counters.peak_held_bytes, held_bytes)
        return reads, self._readers.ask(reads)
