"""Damaged samples: a damaged unit loses as few samples as its format allows, and the sound samples are salvaged.

A read or a parser raises `ShardError`. The unit is then read again by extents and parsed by samples. Each lost sample
becomes `Damaged`, with its error; so does a sample that a stage cannot decode (`shoal.pipeline.stages`). The quarantine
(`shoal.pipeline.quarantine`) counts, lists and leaves out damaged samples. Without ``on_error="skip"`` the first error
is raised.

A sample is lost if its own bytes cannot be parsed, or have another checksum than the index. All samples of an extent
are lost if only the extent has a checksum, or if sample offsets are unknown. A changed shard does not count as damage:
every function raises `ShardError`. Unreadable bytes do not count either: every function raises `StorageError`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from shoal.errors import ShardError
from shoal.formats.rows.records import Piece
from shoal.formats.shard_format import Records, Sample
from shoal.index.shard_scan import Buffer
from shoal.index.table import locate
from shoal.indexing.opened_dataset import Opened
from shoal.reading.checks.checked_reads import CHANGED_HINT, parse_unit, read_records, read_unit
from shoal.reading.checks.record_checksums import knows_records, wrong_records
from shoal.reading.remote.request_stats import RequestStats
from shoal.reading.schedule.units import RecordUnits, UnitRead, extent_of, extent_read, starts_in
from shoal.stats.counters import Counters


@dataclass(frozen=True, slots=True)
class Damaged:
    """Placeholder for a sample that cannot be read, with its error."""

    error: Exception


def _damage_or_raise(opened: Opened, shard: int, error: ShardError) -> Damaged:
    """Return the error as damage; raise if the whole shard differs from its index."""
    opened.check.check(shard)
    return Damaged(error)


def salvage(opened: Opened, read: UnitRead, records_of: Callable[[], Records], stats: RequestStats) -> SalvagedRecords:
    """Return the samples of a unit, or `Damaged` for a damaged sample.

    ``records_of`` reads and parses the unit. If that fails, its extents are read again one by one, counted by
    ``stats``.
    """
    records = SalvagedRecords(opened, read, stats)
    try:
        records.append(read, records_of())
    except ShardError as error:
        damage = _damage_or_raise(opened, read.shard, error)
        if read.num_samples == 1:
            records.append(read, damage)
            return records
        for part in _extents_of(opened, read):
            try:
                records.add(part, read_unit(opened, part, stats=stats, verify=True))
            except ShardError as error_of_part:
                _lose_wrong(records, opened, part, _damage_or_raise(opened, part.shard, error_of_part))
    return records


def salvage_one(
    opened: Opened, read: UnitRead, sample_id: int, error: ShardError, stats: RequestStats
) -> Sample | Damaged:
    """Return a sample of a failed read if its checksum is right; else the damage."""
    damage = _damage_or_raise(opened, read.shard, error)
    if read.num_samples == 1:
        return damage
    records = SalvagedRecords(opened, read, stats)
    _lose_wrong(records, opened, read, damage)
    return records.sample(sample_id - read.first_sample)


def _lose_wrong(records: SalvagedRecords, opened: Opened, read: UnitRead, damage: Damaged) -> None:
    """Append a failed unit: lose samples with wrong checksums; lose all if none has a checksum, or all are right.

    A sample with the right checksum is sound, even beside damaged bytes.
    """
    if read.num_samples == 1 or not knows_records(opened.index, read):
        records.append(read, damage)
        return
    pieces = _smaller(opened, read)
    try:
        # In two halves: a whole extent from a remote store would be verified and rejected on arrival.
        halves = (pieces[: len(pieces) // 2], pieces[len(pieces) // 2 :])
        parts = (half[0]._replace(end_byte=half[-1].end_byte) for half in halves)
        data = b"".join(read_unit(opened, part, stats=records.stats) for part in parts)
    except ShardError as error:
        records.append(read, _damage_or_raise(opened, read.shard, error))
        return
    wrong = set(wrong_records(opened.index, read, data))
    if not wrong:
        records.append(read, damage)
        return
    for number, piece in enumerate(pieces):
        begin, end = piece.first_byte - read.first_byte, piece.end_byte - read.first_byte
        if number not in wrong:
            records.add(piece, data[begin:end])
            continue
        msg = f"bytes [{piece.first_byte}, {piece.end_byte}) do not have the checksum in the index"
        shard = opened.index.shard_names[read.shard]
        records.append(piece, Damaged(ShardError(msg, shard=shard, byte=piece.first_byte, hint=CHANGED_HINT)))


def salvaged_sample(opened: Opened, sample_id: int, stats: RequestStats | None = None) -> Sample | Damaged:
    """Read one sample on its own, or return its damage; read its whole extent if only the extent has a checksum.

    ``stats`` counts the requests; None for a sample outside of streams.
    """
    counting = stats or RequestStats(Counters())
    read = extent_read(opened.index, extent_of(opened.index, sample_id))
    if opened.index.extent_checksum is None and opened.index.sample_bytes is not None:
        read = _single(opened, read, sample_id)

    def records_of() -> Records:
        return parse_unit(opened, read, read_unit(opened, read, stats=counting, verify=True))

    records = salvage(opened, read, records_of, counting)
    return records.sample(sample_id - read.first_sample)


def read_sample(opened: Opened, sample_id: int, stats: RequestStats | None = None, *, verifies: bool = False) -> Sample:
    """Read one sample by id; with ``verifies`` its whole extent, if the extent has a checksum.

    ``stats`` counts the requests; None for a sample outside of streams. Raises `ShardError`: the checksum differs, the
    bytes cannot be parsed, or the shard has changed; `StorageError`: bytes could not be read.
    """
    stats = stats or RequestStats(Counters())
    if verifies and opened.index.extent_checksum is not None:
        read = extent_read(opened.index, extent_of(opened.index, sample_id))
        data = read_unit(opened, read, stats=stats, verify=True)
        return parse_unit(opened, read, data).sample(sample_id - read.first_sample)
    read = RecordUnits(opened.index).reads(np.array([sample_id]))[0]
    return read_records(opened, read, stats).sample(sample_id - read.first_sample)


class SalvagedRecords:
    """Consecutive samples, with `Damaged` in place of damaged samples; ``stats`` as in `read_sample`."""

    def __init__(self, opened: Opened, read: UnitRead, stats: RequestStats | None = None) -> None:
        self.stats = stats or RequestStats(Counters())
        self._opened, self._first_sample, self._num_samples = opened, read.first_sample, read.num_samples
        self._parts: list[_Part] = []
        self._ends: list[int] = []  # the sample id behind each part

    def __len__(self) -> int:
        return self._num_samples

    def add(self, read: UnitRead, data: Buffer) -> None:
        """Append the next samples, parsed from ``data``; if that fails, parse smaller pieces."""
        try:
            self.append(read, parse_unit(self._opened, read, data))
        except ShardError as error:
            pieces = _smaller(self._opened, read)
            if len(pieces) < 2:
                self.append(read, Damaged(error))
                return
            for piece in pieces:
                begin = piece.first_byte - read.first_byte
                self.add(piece, data[begin : begin + piece.num_bytes])

    def sample(self, number: int) -> Sample | Damaged:
        """Return sample ``number``, or its damage."""
        sample_id = self._first_sample + number
        part = self._parts[bisect_right(self._ends, sample_id)]
        records = part.records
        if isinstance(records, Damaged):
            return records
        try:
            return records.sample(sample_id - part.read.first_sample)
        except ShardError as error:
            return self._alone(part, sample_id, error)

    @property
    def piece(self) -> Piece | None:
        """The piece of a sound unit; `sample` salvages a sample that the piece refuses."""
        return getattr(self._parts[0].records, "piece", None) if len(self._parts) == 1 else None

    def append(self, read: UnitRead, records: Records | Damaged) -> None:
        """Append the next samples, or the damage of all of them."""
        self._parts.append(_Part(read, records))
        self._ends.append(read.first_sample + read.num_samples)

    def _alone(self, part: _Part, sample_id: int, error: ShardError) -> Sample | Damaged:
        """Read and parse the sample alone: the fault may lie in another sample, or be damage in transit."""
        opened = self._opened
        if part.read.num_samples == 1 or opened.index.sample_bytes is None:
            return Damaged(error)
        piece = _single(opened, part.read, sample_id)
        try:
            return parse_unit(opened, piece, read_unit(opened, piece, stats=self.stats)).sample(0)
        except ShardError as error_alone:
            return _damage_or_raise(opened, piece.shard, error_alone)


@dataclass(frozen=True, slots=True)
class _Part:
    """Consecutive samples, or their damage."""

    read: UnitRead
    records: Records | Damaged


def _smaller(opened: Opened, read: UnitRead) -> list[UnitRead]:
    """Cut a read into its samples if the index has their offsets, else into its extents."""
    if opened.index.sample_bytes is None:
        return _extents_of(opened, read)
    starts = starts_in(opened.index, read) or []
    return [
        read._replace(
            first_byte=read.first_byte + starts[number],
            end_byte=read.first_byte + starts[number + 1],
            first_sample=read.first_sample + number,
            num_samples=1,
        )
        for number in range(read.num_samples)
    ]


def _single(opened: Opened, read: UnitRead, sample_id: int) -> UnitRead:
    _, first_byte, end_byte = locate(opened.index, np.array([sample_id]))
    return read._replace(
        first_byte=int(first_byte[0]), end_byte=int(end_byte[0]), first_sample=sample_id, num_samples=1
    )


def _extents_of(opened: Opened, read: UnitRead) -> list[UnitRead]:
    """Cut a unit at the borders of its extents; a unit within one extent is not cut."""
    index = opened.index
    first, last = (extent_of(index, read.first_sample), extent_of(index, read.first_sample + read.num_samples - 1))
    return [read] if first == last else [extent_read(index, extent) for extent in range(first, last + 1)]
