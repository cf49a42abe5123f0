"""What is read at once: whole chunks where an order keeps to them, single records where it does not."""

from __future__ import annotations

from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from shoal.index.chunks import ChunkTable
from shoal.index.table import Index, locate

__all__ = [
    "ChunkUnits",
    "RecordUnits",
    "SlicedUnits",
    "SpilledRecords",
    "UnitRead",
    "Units",
    "extent_of",
    "extent_read",
    "starts_in",
]


class UnitRead(NamedTuple):
    """One read: bytes ``[first_byte, end_byte)`` of a shard, which hold ``num_samples`` samples from an id on.

    A plain tuple: of the ways to make one, the fastest by far, and there is one for every chunk.
    """

    unit: int
    shard: int
    first_byte: int
    end_byte: int
    first_sample: int
    num_samples: int

    @property
    def num_bytes(self) -> int:
        """Bytes that are read, and held until the last of the samples is delivered."""
        return self.end_byte - self.first_byte


_unit_read = partial(tuple.__new__, UnitRead)  # as its _make does it, in a third of the time


class Units(Protocol):
    """A way of cutting a dataset into reads, by number."""

    @property
    def num_units(self) -> int:
        """Units of the dataset."""
        ...

    def of(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """The number of the unit that holds each sample id."""
        ...

    def reads(self, units: NDArray[np.int64]) -> list[UnitRead]:
        """What to read for each unit; many at once cost far less than one by one."""
        ...

    def columns(self, units: NDArray[np.int64]) -> list[NDArray[Any]]:
        """The fields of these reads, each in an array of shape (len(units),): for who needs no objects."""
        ...

    def held_bytes(self, read: UnitRead) -> int:
        """How many bytes one of these takes in memory once it is decoded."""
        ...


class ChunkUnits:
    """Every chunk is one read; a unit is the number of its chunk."""

    def __init__(self, table: ChunkTable) -> None:
        self._table = table
        self.num_units = len(table)

    def of(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """The chunk that holds each sample id; O(log num_chunks) each."""
        return np.searchsorted(self._table.first_sample, ids, side="right") - 1

    def reads(self, units: NDArray[np.int64]) -> list[UnitRead]:
        """The chunks' bytes."""
        return _reads(self.columns(units))

    def columns(self, units: NDArray[np.int64]) -> list[NDArray[Any]]:
        """The same in columns."""
        table = self._table
        columns = (table.shard, table.first_byte, table.end_byte, table.first_sample, table.num_samples)
        return [units, *(column[units] for column in columns)]

    def held_bytes(self, read: UnitRead) -> int:
        """The chunk's decoded bytes."""
        return int(self._table.decoded_bytes[read.unit])


class SampleReads(Protocol):
    """A way of reading each sample alone; a unit is a sample id."""

    def reads(self, units: NDArray[np.int64]) -> list[UnitRead]:
        """What to read for each of these samples."""
        ...

    def held_bytes(self, read: UnitRead) -> int:
        """How many bytes one of these takes in memory."""
        ...


class SlicedUnits:
    """Every chunk is one read, but for some whose samples are read one by one, as they come: those that are too large.

    Units are first the chunks by number, and then the samples of those that are sliced, counted through.

    Parameters
    ----------
    records
        How a sample is read; a unit is a sample id.
    is_sliced
        For each chunk, whether it is; shape (num_chunks,).
    """

    def __init__(self, records: SampleReads, table: ChunkTable, is_sliced: NDArray[np.bool_]) -> None:
        self._chunks, self._records, self.num_chunks = ChunkUnits(table), records, len(table)
        self.spills = isinstance(records, SpilledRecords)
        self._sliced = np.flatnonzero(is_sliced)
        self._is_sliced = is_sliced
        # The unit of the first sample of each sliced chunk, and the number of units; and how far that is from its id.
        self._first_unit = len(table) + np.concatenate([[0], np.cumsum(table.num_samples[self._sliced])])
        self._from_id = np.zeros(len(table), dtype=np.int64)
        self._from_id[self._sliced] = self._first_unit[:-1] - table.first_sample[self._sliced]
        self.num_units = int(self._first_unit[-1])

    def of(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """The chunk that holds each sample id, or the unit of the sample itself; O(log num_chunks) each."""
        chunks = self._chunks.of(ids)
        return np.where(self._is_sliced[chunks], ids + self._from_id[chunks], chunks)

    def reads(self, units: NDArray[np.int64]) -> list[UnitRead]:
        """The bytes of whole chunks, and of samples."""
        is_chunk = units < self._chunks.num_units
        sliced = np.searchsorted(self._first_unit, units[~is_chunk], side="right") - 1
        ids = units[~is_chunk] - self._from_id[self._sliced[sliced]]
        records = iter(self._records.reads(ids))
        numbers = iter(units[~is_chunk].tolist())
        chunks = iter(self._chunks.reads(units[is_chunk]))
        return [next(chunks) if whole else next(records)._replace(unit=next(numbers)) for whole in is_chunk.tolist()]

    def columns(self, units: NDArray[np.int64]) -> list[NDArray[Any]]:
        """The same in columns."""
        return list(np.array(self.reads(units), dtype=np.int64).reshape(-1, len(UnitRead._fields)).T)

    def held_bytes(self, read: UnitRead) -> int:
        """The decoded bytes of a whole chunk; samples that are read alone are what they are."""
        return self._chunks.held_bytes(read) if read.unit < self.num_chunks else self._records.held_bytes(read)


class RecordUnits:
    """Every sample is one read; a unit is a sample id. Where the index keeps no sample sizes, its extent is read."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self.num_units = index.num_samples

    def of(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """The ids themselves."""
        return ids

    def reads(self, units: NDArray[np.int64]) -> list[UnitRead]:
        """The samples' bytes; O(log num_extents + samples of an extent) each."""
        return _reads(self.columns(units))

    def columns(self, units: NDArray[np.int64]) -> list[NDArray[Any]]:
        """The same in columns."""
        shard, first_byte, end_byte = locate(self._index, units)
        first_sample, num_samples = units, np.ones_like(units)
        if self._index.sample_bytes is None:
            extents = np.searchsorted(self._index.extent_first_sample, units, side="right") - 1
            first_sample = self._index.extent_first_sample[extents]
            num_samples = self._index.extent_num_samples[extents]
        return [units, shard, first_byte, end_byte, first_sample, num_samples]

    def held_bytes(self, read: UnitRead) -> int:
        """The sample's bytes, or the decoded ones of its extent."""
        if self._index.sample_bytes is not None:
            return read.num_bytes
        return int(self._index.extent_decoded_bytes[extent_of(self._index, read.first_sample)])


class SpilledRecords:
    """Every sample is one read of no bytes of a shard: what it is in lies decoded elsewhere. A unit is a sample id."""

    def __init__(self, index: Index) -> None:
        self._index = index

    def reads(self, units: NDArray[np.int64]) -> list[UnitRead]:
        """Of each sample alone, at the first byte of its extent."""
        index = self._index
        extents = np.searchsorted(index.extent_first_sample, units, side="right") - 1
        shards, first_bytes = index.extent_shard[extents].tolist(), index.extent_first_byte[extents].tolist()
        places = zip(units.tolist(), shards, first_bytes, strict=True)
        return [UnitRead(unit, shard, byte, byte, unit, 1) for unit, shard, byte in places]

    def held_bytes(self, read: UnitRead) -> int:
        """The bytes of a sample, about: as much as the others of its extent."""
        extent = extent_of(self._index, read.first_sample)
        return int(self._index.extent_decoded_bytes[extent] // max(1, self._index.extent_num_samples[extent]))


def _reads(columns: list[NDArray[Any]]) -> list[UnitRead]:
    return list(map(_unit_read, zip(*(column.tolist() for column in columns), strict=True)))


def extent_of(index: Index, sample_id: int) -> int:
    """The number of the extent that holds a sample; O(log num_extents)."""
    return int(np.searchsorted(index.extent_first_sample, sample_id, side="right")) - 1


def extent_read(index: Index, extent: int) -> UnitRead:
    """The read of one whole extent; its unit is the number of the extent."""
    return UnitRead(
        extent,
        int(index.extent_shard[extent]),
        int(index.extent_first_byte[extent]),
        int(index.extent_end_byte[extent]),
        int(index.extent_first_sample[extent]),
        int(index.extent_num_samples[extent]),
    )


def starts_in(index: Index, read: UnitRead) -> list[int] | None:
    """Where the samples of a read begin in its bytes, and where the last one ends; None if the index does not say.

    A list, since what opens a unit walks over it in Python; shape (num_samples + 1,).
    """
    if index.sample_bytes is None:
        return None
    if read.num_samples == 1:
        return [0, int(index.sample_bytes[read.first_sample])]  # of which a chunk may have more bytes
    sizes = index.sample_bytes[read.first_sample : read.first_sample + read.num_samples]
    return list(accumulate(sizes.tolist(), initial=0))
