"""Units of reading: whole chunks for orders that go chunk by chunk, single samples for others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from shoal.formats.shard_format import Records
from shoal.index.chunk_table import ChunkTable
from shoal.index.table import Index, locate


class UnitRead(NamedTuple):
    """One read: bytes ``[first_byte, end_byte)`` of a shard, with ``num_samples`` samples from id ``first_sample`` on.

    A plain tuple, by far the fastest object to create: every chunk has one.
    """

    unit: int
    shard: int
    first_byte: int
    end_byte: int
    first_sample: int
    num_samples: int

    @property
    def num_bytes(self) -> int:
        """Bytes that are read, and held until the last sample is delivered."""
        return self.end_byte - self.first_byte


_unit_read = partial(tuple.__new__, UnitRead)  # same as UnitRead._make, in a third of the time


class Units(Protocol):
    """A division of a dataset into numbered reads."""

    num_units: int
    """Number of units in the dataset."""

    def of(self, ids: NDArray[np.int64], chunks: NDArray[np.int64] | int = 0) -> NDArray[np.int64]:
        """Return the number of the unit that holds each sample id; ``chunks`` are the chunks of the order."""

    def reads(self, units: NDArray[np.int64]) -> list[UnitRead]:
        """Return the read of each unit; one call for many units costs far less than many calls."""

    def columns(self, units: NDArray[np.int64]) -> list[NDArray[Any]]:
        """Return the fields of these reads as arrays of shape (len(units),), without an object for each read."""

    def held_bytes(self, read: UnitRead) -> int:
        """Return the bytes that a read takes in memory once decoded."""

    def largest(self, of_chunks: int) -> int:
        """Return the bytes of the largest unit, given the bytes of the largest chunk."""
        return of_chunks

    def readers(self, readers: UnitReaders, making: Callable[..., UnitReaders]) -> UnitReaders:  # noqa: ARG002
        """Return the readers of these units; ``making`` makes readers of samples outside the shards."""
        return readers


class ChunkUnits(Units):
    """Units that are whole chunks; a unit is the number of its chunk."""

    turn_bits = 0
    """Bits of a chunk's turn that tell its units apart."""

    def __init__(self, table: ChunkTable) -> None:
        self._table, self._num_chunks = table, max(1, len(table))
        self.num_units = len(table) << self.turn_bits

    def of(self, ids: NDArray[np.int64], chunks: NDArray[np.int64] | int = 0) -> NDArray[np.int64]:
        """Return the unit of each sample id: the chunk that holds the sample, in its turn; O(log num_chunks) each."""
        held_by = np.searchsorted(self._table.first_sample, ids, side="right") - 1
        return held_by + (chunks & (1 << self.turn_bits) - 1) * self._num_chunks

    def reads(self, units: NDArray[np.int64]) -> list[UnitRead]:
        """Return the reads of the chunks."""
        columns = [units, *self._table.columns_of(units % self._num_chunks)]
        return list(map(_unit_read, zip(*(column.tolist() for column in columns), strict=True)))

    def columns(self, units: NDArray[np.int64]) -> list[NDArray[Any]]:
        """Return the reads of the chunks as columns."""
        return [units, *self._table.columns_of(units % self._num_chunks)]

    def held_bytes(self, read: UnitRead) -> int:
        """Return the decoded bytes of the chunk."""
        return int(self._table.chunks.decoded_bytes(np.array([read.unit % self._num_chunks]))[0])


class TurnUnits(ChunkUnits):
    """One unit per turn of a chunk (`shoal.order.sampling.copies`), released before the next turn of the chunk.

    With chunks as units, a chunk would stay in memory between its turns in a span, and a span may be a whole epoch.
    Turns of a chunk have consecutive numbers in an epoch, so their last bits tell them apart.
    """

    turn_bits = 4  # more would only separate turns of a chunk that are sixteen turns apart


class UnitReaders(Protocol):
    """Readers of units, which count the bytes read ahead of their first use, and the seconds of waiting."""

    group_bytes: int
    """Bytes that are requested at a time, as soon as there is room for them."""

    def request(self, reads: Sequence[UnitRead]) -> Iterable[Any]:
        """Announce the next reads, in order, and return a promise for each."""

    def records(self, read: UnitRead, promise: Any) -> Records:
        """Mark a read as in use and return its samples; raise the error of a failed read."""

    def read_into(self, read: UnitRead, promise: Any, buffer: memoryview) -> None:
        """Write the bytes of a read into a buffer, unparsed."""

    def close(self) -> None:
        """Stop all threads; only a thread whose request gets no response for half a second may outlive this call."""


class SlicedUnits(Units):
    """Units that are whole chunks, except that samples of sliced (too large) chunks are read one by one.

    Units are first the chunks by number, then the samples of sliced chunks, numbered consecutively. ``is_sliced`` has
    shape (num_chunks,).
    """

    def __init__(self, records: RecordUnits | SpilledRecords, table: ChunkTable, is_sliced: NDArray[np.bool_]) -> None:
        self._chunks, self._records, self.num_chunks = ChunkUnits(table), records, len(table)
        self._table = table
        self._sliced = np.flatnonzero(is_sliced)
        self._is_sliced = is_sliced
        # The unit of each sliced chunk's first sample, then the number of units; and its offset from the sample id.
        first_sample, num_samples = table.samples_of(self._sliced)
        self._first_unit = len(table) + np.concatenate([[0], np.cumsum(num_samples)])
        self._from_id = np.zeros(len(table), dtype=np.int64)
        self._from_id[self._sliced] = self._first_unit[:-1] - first_sample
        self.num_units = int(self._first_unit[-1])

    def largest(self, of_chunks: int) -> int:  # noqa: ARG002
        """Return the bytes of the largest unit; samples count as whole extents if the index lacks their sizes."""
        table, is_sliced = self._table, self._is_sliced
        whole = int(table.decoded_bytes.max(where=~is_sliced, initial=1))
        return max(whole, self._records.largest_bytes(table, is_sliced))

    def of(self, ids: NDArray[np.int64], chunks: NDArray[np.int64] | int = 0) -> NDArray[np.int64]:  # noqa: ARG002
        """Return the chunk that holds each sample id, or the sample's own unit; O(log num_chunks) each."""
        held_by = self._chunks.of(ids)
        return np.where(self._is_sliced[held_by], ids + self._from_id[held_by], held_by)

    def reads(self, units: NDArray[np.int64]) -> list[UnitRead]:
        """Return the reads of whole chunks, and of samples."""
        is_chunk = units < self._chunks.num_units
        sliced = np.searchsorted(self._first_unit, units[~is_chunk], side="right") - 1
        ids = units[~is_chunk] - self._from_id[self._sliced[sliced]]
        records = iter(self._records.reads(ids))
        numbers = iter(units[~is_chunk].tolist())
        chunks = iter(self._chunks.reads(units[is_chunk]))
        return [next(chunks) if whole else next(records)._replace(unit=next(numbers)) for whole in is_chunk.tolist()]

    def readers(self, readers: UnitReaders, making: Callable[..., UnitReaders]) -> UnitReaders:
        """Return readers of chunks and of single samples."""
        return self._records.with_samples(readers, partial(making, num_chunks=self.num_chunks))

    def columns(self, units: NDArray[np.int64]) -> list[NDArray[Any]]:
        """Return the reads of whole chunks and of samples as columns."""
        return list(np.array(self.reads(units), dtype=np.int64).reshape(-1, len(UnitRead._fields)).T)

    def held_bytes(self, read: UnitRead) -> int:
        """Return the decoded bytes of a whole chunk, or of a sample that is read alone."""
        return self._chunks.held_bytes(read) if read.unit < self.num_chunks else self._records.held_bytes(read)


class RecordUnits(Units):
    """Units that are single samples, by id; without sample sizes in the index, a read is a whole extent."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self.num_units = index.num_samples

    def of(self, ids: NDArray[np.int64], chunks: NDArray[np.int64] | int = 0) -> NDArray[np.int64]:  # noqa: ARG002
        """Return the ids themselves."""
        return ids

    def reads(self, units: NDArray[np.int64]) -> list[UnitRead]:
        """Return the reads of the samples; O(log num_extents + samples of an extent) each."""
        return list(map(_unit_read, zip(*(column.tolist() for column in self.columns(units)), strict=True)))

    def columns(self, units: NDArray[np.int64]) -> list[NDArray[Any]]:
        """Return the reads of the samples as columns."""
        shard, first_byte, end_byte = locate(self._index, units)
        first_sample, num_samples = units, np.ones_like(units)
        if self._index.sample_bytes is None:
            extents = np.searchsorted(self._index.extent_first_sample, units, side="right") - 1
            first_sample = self._index.extent_first_sample[extents]
            num_samples = self._index.extent_num_samples[extents]
        return [units, shard, first_byte, end_byte, first_sample, num_samples]

    def held_bytes(self, read: UnitRead) -> int:
        """Return the bytes of the sample, or the decoded bytes of its extent."""
        if self._index.sample_bytes is not None:
            return read.num_bytes
        return int(self._index.extent_decoded_bytes[extent_of(self._index, read.first_sample)])

    def with_samples(self, readers: UnitReaders, making: Callable[[UnitReaders], UnitReaders]) -> UnitReaders:  # noqa: ARG002
        """Return the readers, which read single samples too."""
        return readers

    def largest_bytes(self, table: ChunkTable, is_sliced: NDArray[np.bool_]) -> int:
        """Return the bytes of the largest sample of the sliced chunks, or of its extent."""
        index = self._index
        if index.sample_bytes is None:
            return int(index.extent_decoded_bytes.max(initial=1))
        if is_sliced.all():
            return int(index.sample_bytes.max(initial=1))
        starts, sizes = table.first_sample, index.sample_bytes
        chunks = np.flatnonzero(is_sliced).tolist()
        return int(max(sizes[starts[chunk] : starts[chunk + 1]].max(initial=1) for chunk in chunks))


class SpilledRecords:
    """Samples of chunks that are kept decoded outside the shard: all reads are empty, and a unit is a sample id."""

    def __init__(self, index: Index) -> None:
        self._index = index

    def reads(self, units: NDArray[np.int64]) -> list[UnitRead]:
        """Return an empty read for each sample, at the first byte of its extent."""
        index = self._index
        extents = np.searchsorted(index.extent_first_sample, units, side="right") - 1
        shards, first_bytes = index.extent_shard[extents].tolist(), index.extent_first_byte[extents].tolist()
        rows = zip(units.tolist(), shards, first_bytes, strict=True)
        return [UnitRead(unit, shard, byte, byte, unit, 1) for unit, shard, byte in rows]

    def held_bytes(self, read: UnitRead) -> int:
        """Return the approximate bytes of a sample: the mean of its extent."""
        extent = extent_of(self._index, read.first_sample)
        return int(self._index.extent_decoded_bytes[extent] // max(1, self._index.extent_num_samples[extent]))

    def with_samples(self, readers: UnitReaders, making: Callable[[UnitReaders], UnitReaders]) -> UnitReaders:
        """Return readers that find samples in their decoded chunks."""
        return making(readers)

    def largest_bytes(self, table: ChunkTable, is_sliced: NDArray[np.bool_]) -> int:
        """Return the bytes of the largest sample of the sliced chunks; each sample counts as the mean of its chunk."""
        samples = table.decoded_bytes[is_sliced] // np.maximum(1, table.num_samples[is_sliced])
        return int(samples.max(initial=1))


def extent_of(index: Index, sample_id: int) -> int:
    """Return the number of the extent that holds a sample; O(log num_extents)."""
    return int(np.searchsorted(index.extent_first_sample, sample_id, side="right")) - 1


def extent_read(index: Index, extent: int) -> UnitRead:
    """Return the read of one whole extent; its unit is the number of the extent."""
    return UnitRead(
        extent,
        int(index.extent_shard[extent]),
        int(index.extent_first_byte[extent]),
        int(index.extent_end_byte[extent]),
        int(index.extent_first_sample[extent]),
        int(index.extent_num_samples[extent]),
    )


def starts_in(index: Index, read: UnitRead) -> list[int] | None:
    """Return the offsets of the samples in the bytes of a read, and the end of the last; None if the index lacks them.

    A list of num_samples + 1 integers, since the caller iterates over it in Python.
    """
    if index.sample_bytes is None:
        return None
    if read.num_samples == 1:
        return [0, int(index.sample_bytes[read.first_sample])]  # the read of a chunk may have more bytes
    sizes = index.sample_bytes[read.first_sample : read.first_sample + read.num_samples]
    return list(accumulate(sizes.tolist(), initial=0))
