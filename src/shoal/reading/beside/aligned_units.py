"""Units of a dataset that is read beside another: the partners of a chunk, as far as they lie side by side.

The partners of a chunk of the left side are then one read, made and released with the chunk: both sides hold the same
samples at any time, and no byte is read twice. If partners lie apart, each sample is a unit (`RecordUnits`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shoal.index.chunk_table import header_limits, with_headers_behind
from shoal.index.table import Index, joined_ranges, locate
from shoal.indexing.alignment.alignment import PartnerRuns
from shoal.reading.schedule.units import UnitRead, Units

_LOOKED_AT = 1 << 12  # units, for the bytes of an average unit and of a large one


class AlignedUnits(Units):
    """Units that are the partners of consecutive left samples, and consecutive themselves, of one shard.

    ``borders`` are the first ids of the left side's chunks, and the number of its samples. A left sample names its
    unit; samples without partners have units as well, which nobody reads.
    """

    def __init__(self, index: Index, runs: PartnerRuns, borders: NDArray[np.int64]) -> None:
        self._index, self._limits = index, header_limits(index)
        first_ids = np.union1d(np.union1d(borders[:-1], runs.first_ids), _at_shards(index, runs))
        self._first_ids = first_ids[first_ids < runs.num_samples]
        self._first_partners = runs.partners(self._first_ids)
        self._num_samples = np.diff(self._first_ids, append=runs.num_samples)
        self.num_units = len(self._first_ids)
        some = np.linspace(0, self.num_units - 1, min(self.num_units, _LOOKED_AT)).astype(np.int64)
        some = np.unique(some[self._first_partners[some] >= 0])
        columns = self.columns(some) if len(some) else [np.zeros(1, np.int64)] * 4
        num_bytes = columns[3] - columns[2]
        self.mean_bytes, self.large_bytes = float(num_bytes.mean()), int(num_bytes.max())

    def of(self, ids: NDArray[np.int64], chunks: NDArray[np.int64] | int = 0) -> NDArray[np.int64]:  # noqa: ARG002
        """Return the unit of each sample of the left side; O(log num_units) each."""
        return np.searchsorted(self._first_ids, ids, side="right") - 1

    def reads(self, units: NDArray[np.int64]) -> list[UnitRead]:
        """Return the read of each unit."""
        return list(map(UnitRead._make, zip(*(column.tolist() for column in self.columns(units)), strict=True)))

    def columns(self, units: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """Return the reads as columns."""
        first, num_samples = self._first_partners[units], self._num_samples[units]
        shard, first_byte, _ = locate(self._index, first)
        _, _, end_byte = locate(self._index, first + num_samples - 1)
        end_byte = with_headers_behind(end_byte, shard, self._limits)
        return [units, shard.astype(np.int64), first_byte, end_byte, first, num_samples]

    def held_bytes(self, read: UnitRead) -> int:
        """Return the bytes of the samples."""
        return read.num_bytes

    def largest(self, of_chunks: int) -> int:  # noqa: ARG002
        """Return the bytes of the largest of some thousand units."""
        return max(1, self.large_bytes)


def _at_shards(index: Index, runs: PartnerRuns) -> NDArray[np.int64]:
    """Return the left samples whose partners begin a shard, in the middle of a run."""
    has = runs.first_partners >= 0
    first_ids, first = runs.first_ids[has], runs.first_partners[has]
    end = first + np.diff(runs.first_ids, append=runs.num_samples)[has]
    shards = np.unique(index.extent_first_sample[index.shard_first_extent])
    begin = np.searchsorted(shards, first, side="right")
    counts = np.searchsorted(shards, end, side="left") - begin
    inside = shards[joined_ranges(begin, counts)]
    return np.repeat(first_ids - first, counts) + inside
