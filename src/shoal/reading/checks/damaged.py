"""Recovery of the sound samples of a damaged unit: as few are lost as the format allows.

A sample is lost if its own bytes cannot be parsed, or have another checksum than the index; all samples of an extent
are lost if only the extent has a checksum, or sample offsets are unknown. A shard that is not the one that was indexed,
or bytes that cannot be read, are no damage of samples, and raise as usual.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from shoal.errors import ShardError
from shoal.formats.shard_format import Records, Sample
from shoal.index.shard_scan import Buffer
from shoal.index.table import locate
from shoal.indexing.open_source import Opened
from shoal.reading.checks.record_checksums import knows_records, wrong_extent, wrong_records
from shoal.reading.checks.verified_read import parse_unit, read_unit
from shoal.reading.schedule.units import UnitRead, extent_read, starts_in

_CHANGED = "the shard was changed or damaged after it was indexed: restore it, or index it again"


@dataclass(frozen=True, slots=True)
class Damaged:
    """Placeholder for a sample that cannot be read, with the error that says why."""

    error: Exception


def _damage_or_raise(opened: Opened, shard: int, error: ShardError) -> Damaged:
    """Return the error as damage, or raise if the shard as a whole is not the one that was indexed."""
    opened.check.check(shard)
    return Damaged(error)


def forgiving_records(
    opened: Opened,
    read: UnitRead,
    get: Callable[[], Buffer],
    *,
    parse: Callable[[UnitRead, Buffer], Records] | None = None,
) -> ForgivingRecords:
    """Return the samples of a unit, some of them `Damaged`.

    ``get`` returns its bytes, and ``parse`` the samples in them. If getting the bytes fails (by a checksum), the
    extents of the unit are read again one by one.

    Raises
    ------
    ShardError
        The shard is not the one that was indexed.
    StorageError
        Bytes could not be read.
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
    """Return a sample of a failed read if its own checksum shows that the fault lies elsewhere; else the damage.

    Raises
    ------
    ShardError
        The shard is not the one that was indexed.
    StorageError
        Bytes could not be read.
    """
    damage = _damage_or_raise(opened, read.shard, error)
    if read.num_samples == 1:
        return damage
    records = ForgivingRecords(opened, read)
    _lose_wrong(records, opened, read, damage)
    return records.sample(sample_id - read.first_sample)


def _lose_wrong(records: ForgivingRecords, opened: Opened, read: UnitRead, damage: Damaged) -> None:
    """Lose the samples with wrong checksums in a unit that failed; all, if they have none or all are right.

    A sample with the right checksum is the one that was indexed, whatever lies beside it.
    """
    if read.num_samples == 1 or not knows_records(opened.index, read):
        records.lose(read, damage)
        return
    pieces = _smaller(opened, read)
    try:
        # In two halves: a whole extent from a remote store would be verified on arrival, and rejected.
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
    """Read the bytes of a unit, and compare them with the checksums of the whole extents in it.

    Raises
    ------
    ShardError
        A checksum differs, or the shard is not the one that was indexed.
    StorageError
        Bytes could not be read.
    """
    data = read_unit(opened, read)
    if (wrong := wrong_extent(opened.index, read.shard, read.first_byte, data)) is not None:
        msg = f"bytes [{wrong[0]}, {wrong[1]}) do not have the checksum in the index"
        raise ShardError(msg, shard=opened.index.shard_names[read.shard], byte=wrong[0], hint=_CHANGED)
    return data


def forgiving_sample(opened: Opened, sample_id: int) -> Sample | Damaged:
    """Read one sample on its own, or return its damage; its whole extent is read if only that has a checksum.

    Raises
    ------
    ShardError
        The shard is not the one that was indexed.
    StorageError
        Bytes could not be read.
    """
    extent = int(np.searchsorted(opened.index.extent_first_sample, sample_id, side="right")) - 1
    whole = opened.index.extent_checksum is not None or opened.index.sample_bytes is None
    read = extent_read(opened.index, extent) if whole else _single(opened, extent_read(opened.index, extent), sample_id)
    records = forgiving_records(opened, read, partial(checked_unit, opened, read))
    return records.sample(sample_id - read.first_sample)


def verified_sample(opened: Opened, sample_id: int) -> Sample:
    """Read one sample with its whole extent, which is compared with its checksum.

    Raises
    ------
    ShardError
        The checksum differs, the bytes cannot be parsed, or the shard is not the one that was indexed.
    StorageError
        Bytes could not be read.
    """
    read = extent_read(
        opened.index, int(np.searchsorted(opened.index.extent_first_sample, sample_id, side="right")) - 1
    )
    return parse_unit(opened, read, checked_unit(opened, read)).sample(sample_id - read.first_sample)


class ForgivingRecords:
    """Consecutive samples, with `Damaged` in the place of each damaged one."""

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
        """Append the next samples, parsed from these bytes; if that fails, in smaller pieces."""
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
        """Append the next samples as damaged, all of them."""
        self._append(_Part(read, damage))

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

    def _append(self, part: _Part) -> None:
        self._parts.append(part)
        self._ends.append(part.read.first_sample + part.read.num_samples)

    def _alone(self, part: _Part, sample_id: int, error: ShardError) -> Sample | Damaged:
        """Read and parse the sample by itself: the fault may be in another sample, or have arisen in transit."""
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
    """A run of consecutive samples, or their damage."""

    read: UnitRead
    records: Records | Damaged


def _smaller(opened: Opened, read: UnitRead) -> list[UnitRead]:
    """Cut a read that cannot be parsed into its samples if the index has their offsets, else into its extents."""
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
    """Cut a unit at the borders of its extents; a unit within one extent is not cut."""
    index = opened.index
    first, last = (
        int(extent) - 1
        for extent in np.searchsorted(
            index.extent_first_sample, [read.first_sample, read.first_sample + read.num_samples - 1], side="right"
        )
    )
    return [read] if first == last else [extent_read(opened.index, extent) for extent in range(first, last + 1)]
