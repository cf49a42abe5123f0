"""Which samples of a damaged unit are lost: as few as the format can tell.

Lost are samples whose own bytes cannot be parsed, or have another checksum than the index; or all of an extent, where
only its checksum tells or where nobody knows where in it a sample begins. That a shard is not the one that was indexed,
or that bytes cannot be had, is no damage of samples, and is raised as ever.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from shoal.errors import ShardError
from shoal.formats.shard_format import Buffer, Records, Sample
from shoal.index.table import locate
from shoal.indexing.open_source import Opened
from shoal.reading.checks.record_checksums import knows_records, wrong_extent, wrong_records
from shoal.reading.checks.verified_read import parse_unit, read_unit
from shoal.reading.schedule.units import UnitRead, extent_read, starts_in

__all__ = ["Damaged", "ForgivingRecords", "forgiving_records", "forgiving_sample", "sound_or_lost", "verified_sample"]

_CHANGED = "the shard was changed or damaged after it was indexed: restore it, or index it again"


@dataclass(frozen=True, slots=True)
class Damaged:
    """What stands in the place of a sample that cannot be had, with the error that says why."""

    error: Exception


def _damage_or_raise(opened: Opened, shard: int, error: ShardError) -> Damaged:
    """The damage that an error means; raised instead if the shard as a whole is another than was indexed."""
    opened.check.check(shard)
    return Damaged(error)


def forgiving_records(
    opened: Opened,
    read: UnitRead,
    get: Callable[[], Buffer],
    *,
    parse: Callable[[UnitRead, Buffer], Records] | None = None,
) -> ForgivingRecords:
    """The samples of a unit, some of them `Damaged`.

    ``get`` gives its bytes, and ``parse`` the samples in bytes. Where these are damaged as such (a checksum), its
    extents are read again one by one.

    Raises
    ------
    ShardError
        The shard is not the one that was indexed.
    StorageError
        Bytes could not be had.
    """
    records = ForgivingRecords(opened, read, parse)
    try:
        records.add(read, get())
    except ShardError as error:
        lost = _damage_or_raise(opened, read.shard, error)
        parts = _extents_of(opened, read)
        if parts == [read]:
            _lose_wrong(records, opened, read, lost)
            return records
        for part in parts:
            try:
                records.add(part, checked_unit(opened, part))
            except ShardError as error_of_part:
                _lose_wrong(records, opened, part, _damage_or_raise(opened, part.shard, error_of_part))
    return records


def sound_or_lost(opened: Opened, read: UnitRead, sample_id: int, error: ShardError) -> Sample | Damaged:
    """The sample of a read that failed, where its own checksum says that what is wrong lies beside it; else the damage.

    Raises
    ------
    ShardError
        The shard is not the one that was indexed.
    StorageError
        Bytes could not be had.
    """
    damage = _damage_or_raise(opened, read.shard, error)
    if read.num_samples == 1:
        return damage
    records = ForgivingRecords(opened, read)
    _lose_wrong(records, opened, read, damage)
    return records.sample(sample_id - read.first_sample)


def _lose_wrong(records: ForgivingRecords, opened: Opened, read: UnitRead, damage: Damaged) -> None:
    """Of a unit with a wrong checksum, lose the samples whose own is wrong; all where they have none, or all are right.

    What is right by its own checksum was indexed, whatever lies beside it.
    """
    if read.num_samples == 1 or not knows_records(opened.index, read):
        records.lose(read, damage)
        return
    pieces = _smaller(opened, read)
    try:
        # In two halves: the whole would be compared on its arrival from a remote store, and not be given out.
        halves = (pieces[: len(pieces) // 2], pieces[len(pieces) // 2 :])
        data = b"".join(read_unit(opened, _joined(half)) for half in halves)
    except ShardError as error:
        records.lose(read, _damage_or_raise(opened, read.shard, error))
        return
    wrong = set(wrong_records(opened.index, read, data))
    if not wrong:
        records.lose(read, damage)
        return
    for number, piece in enumerate(pieces):
        begin, end = piece.first_byte - read.first_byte, piece.end_byte - read.first_byte
        if number not in wrong:
            records.add(piece, data[begin:end])
            continue
        msg = f"bytes [{piece.first_byte}, {piece.end_byte}) do not have the checksum in the index"
        shard = opened.index.shard_names[read.shard]
        records.lose(piece, Damaged(ShardError(msg, shard=shard, byte=piece.first_byte, hint=_CHANGED)))


def checked_unit(opened: Opened, read: UnitRead) -> bytes:
    """The bytes of a unit, compared with the checksums of the extents that it holds as a whole.

    Raises
    ------
    ShardError
        They are others, or the shard is not the one that was indexed.
    StorageError
        They could not be had.
    """
    data = read_unit(opened, read)
    if (wrong := wrong_extent(opened.index, read.shard, read.first_byte, data)) is not None:
        msg = f"bytes [{wrong[0]}, {wrong[1]}) do not have the checksum in the index"
        raise ShardError(msg, shard=opened.index.shard_names[read.shard], byte=wrong[0], hint=_CHANGED)
    return data


def forgiving_sample(opened: Opened, sample_id: int) -> Sample | Damaged:
    """One sample read on its own, or its damage: with its whole extent where only that has a checksum.

    Raises
    ------
    ShardError
        The shard is not the one that was indexed.
    StorageError
        Bytes could not be had.
    """
    extent = int(np.searchsorted(opened.index.extent_first_sample, sample_id, side="right")) - 1
    whole = opened.index.extent_checksum is not None or opened.index.sample_bytes is None
    read = extent_read(opened.index, extent) if whole else _single(opened, extent_read(opened.index, extent), sample_id)
    records = forgiving_records(opened, read, partial(checked_unit, opened, read))
    return records.sample(sample_id - read.first_sample)


def verified_sample(opened: Opened, sample_id: int) -> Sample:
    """One sample out of its whole extent, which is compared with its checksum.

    Raises
    ------
    ShardError
        The bytes are others, or cannot be parsed, or the shard is not the one that was indexed.
    StorageError
        Bytes could not be had.
    """
    read = extent_read(
        opened.index, int(np.searchsorted(opened.index.extent_first_sample, sample_id, side="right")) - 1
    )
    return parse_unit(opened, read, checked_unit(opened, read)).sample(sample_id - read.first_sample)


class ForgivingRecords:
    """Consecutive samples, of which those that are damaged are told and the others handed out."""

    def __init__(
        self, opened: Opened, read: UnitRead, parse: Callable[[UnitRead, Buffer], Records] | None = None
    ) -> None:
        self._parse = partial(parse_unit, opened) if parse is None else parse
        self._opened, self._first_sample, self._num_samples = opened, read.first_sample, read.num_samples
        self._parts: list[_Part] = []
        self._ends: list[int] = []  # the sample id behind each part

    def __len__(self) -> int:
        return self._num_samples

    def add(self, read: UnitRead, data: Buffer) -> None:
        """The next samples, in these bytes."""
        try:
            self._append(_Part(read, self._parse(read, data)))
        except ShardError as error:
            pieces = _smaller(self._opened, read)
            if len(pieces) < 2:
                self.lose(read, Damaged(error))
                return
            for piece in pieces:
                begin = piece.first_byte - read.first_byte
                self.add(piece, data[begin : begin + piece.num_bytes])

    def lose(self, read: UnitRead, damage: Damaged) -> None:
        """The next samples are damaged, all of them."""
        self._append(_Part(read, damage))

    def sample(self, number: int) -> Sample | Damaged:
        """Sample ``number``, or what is wrong with it."""
        sample_id = self._first_sample + number
        part = self._parts[bisect_right(self._ends, sample_id)]
        records = part.records
        if isinstance(records, Damaged):
            return records
        try:
            return records.sample(sample_id - part.read.first_sample)
        except ShardError as error:
            return self._alone(part, sample_id, error)

    def _append(self, part: _Part) -> None:
        self._parts.append(part)
        self._ends.append(part.read.first_sample + part.read.num_samples)

    def _alone(self, part: _Part, sample_id: int, error: ShardError) -> Sample | Damaged:
        """The sample read and parsed by itself: what was wrong may have been another one, or the way of the bytes."""
        opened = self._opened
        if part.read.num_samples == 1 or opened.index.sample_bytes is None:
            return Damaged(error)
        piece = _single(opened, part.read, sample_id)
        try:
            return parse_unit(opened, piece, read_unit(opened, piece)).sample(0)
        except ShardError as error_alone:
            return _damage_or_raise(opened, piece.shard, error_alone)


@dataclass(frozen=True, slots=True)
class _Part:
    """Some consecutive samples, or their damage."""

    read: UnitRead
    records: Records | Damaged


def _smaller(opened: Opened, read: UnitRead) -> list[UnitRead]:
    """What a stretch of bytes that cannot be parsed is cut into: its samples where they are known, else its extents."""
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


def _joined(pieces: list[UnitRead]) -> UnitRead:
    num_samples = sum(piece.num_samples for piece in pieces)
    return pieces[0]._replace(end_byte=pieces[-1].end_byte, num_samples=num_samples)


def _single(opened: Opened, read: UnitRead, sample_id: int) -> UnitRead:
    _, first_byte, end_byte = locate(opened.index, np.array([sample_id]))
    return read._replace(
        first_byte=int(first_byte[0]), end_byte=int(end_byte[0]), first_sample=sample_id, num_samples=1
    )


def _extents_of(opened: Opened, read: UnitRead) -> list[UnitRead]:
    """A unit cut at the borders of its extents; one that is a part of an extent is not cut."""
    index = opened.index
    first, last = (
        int(extent) - 1
        for extent in np.searchsorted(
            index.extent_first_sample, [read.first_sample, read.first_sample + read.num_samples - 1], side="right"
        )
    )
    return [read] if first == last else [extent_read(opened.index, extent) for extent in range(first, last + 1)]
