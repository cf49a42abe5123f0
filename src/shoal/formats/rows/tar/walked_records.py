"""Samples of a span that the fast path for tars cannot read: this reader walks through all headers."""

from __future__ import annotations

from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from shoal.errors import ShardError
from shoal.formats.metadata.third_party_index import wrong_border
from shoal.formats.rows.tar.header_fields import BLOCK_BYTES
from shoal.formats.rows.tar.headers import IS_REGULAR, OTHER_FILE, TarMembers
from shoal.formats.rows.tar.names import Grouping, key_and_suffix
from shoal.formats.shard_format import Sample
from shoal.hints import MOST_POINTER_BYTES, SKIP_HINT, pointer_in


class WalkedRecords:
    """Some consecutive samples of a tar whose members are all known, handed out by number.

    Values are slices of ``values``, or else new bytes. ``by_borders`` is True if another tool's index gave the borders.
    """

    def __init__(
        self, members: TarMembers, first_members: list[int], shard: str, values: memoryview | None, *, by_borders: bool
    ) -> None:
        self._members, self._names, self._first = members, members.names, first_members
        self._shard, self._by_borders = shard, by_borders
        self._values = members.buffer if values is None else values
        self._copies = values is None and not isinstance(members.buffer, bytes)
        # Members that are not regular files lose their names here, and so belong to no sample.
        for member in np.flatnonzero(~IS_REGULAR[members.kinds]).tolist():
            self._names[member] = ""
        payloads = members.headers + BLOCK_BYTES
        self._payloads = payloads.tolist()
        self._ends = (payloads + members.sizes).tolist()

    def __len__(self) -> int:
        return len(self._first) - 1

    def layout_crcs(self) -> NDArray[np.uint32]:
        """Return the CRC-32 of the headers of each sample; shape (len,)."""
        view = memoryview(self._members.buffer)
        starts, payloads = self._members.starts.tolist(), self._payloads
        crcs = np.zeros(len(self), dtype=np.uint32)
        for number in range(len(self)):
            crc = 0
            for member in range(self._first[number], self._first[number + 1]):
                crc = crc32(view[starts[member] : payloads[member]], crc)
            crcs[number] = crc
        return crcs

    def sample(self, number: int) -> Sample:
        """Return a sample as `TarRecords.sample` does; raises `IndexFileError` if another tool's index is wrong."""
        sample: Sample = {}
        key: str | None = None
        for member in range(self._first[number], self._first[number + 1]):
            name = self._names[member]
            parts = key_and_suffix(name)
            if parts is None:
                continue
            member_key, field = parts
            if key is None:
                sample["__key__"] = key = member_key
            if member_key != key and self._by_borders:
                what = f"the index puts {name!r} into the sample {key!r}"
                raise wrong_border(what, shard=self._shard, byte=self._byte(member))
            if member_key != key or field in sample:
                msg = f"{name!r} should belong to the sample {key!r}, but cannot"
                raise ShardError(msg, shard=self._shard, byte=self._byte(member), hint=OTHER_FILE)
            payload = self._values[self._payloads[member] : self._ends[member]]
            if len(payload) <= MOST_POINTER_BYTES and (pointer := pointer_in(bytes(payload))):
                msg, hint = f"{name!r}: {pointer[0]}", f"{pointer[1]}, and write the shard again; {SKIP_HINT}"
                raise ShardError(msg, shard=self._shard, byte=self._byte(member), hint=hint)
            sample[field] = bytes(payload) if self._copies else payload
        if key is None:
            msg = "the index says that a sample begins here, but no member of a sample does"
            raise ShardError(msg, shard=self._shard, byte=self._byte(self._first[number]), hint=OTHER_FILE)
        return sample

    def _byte(self, member: int) -> int:
        return self._members.first_byte + int(self._members.starts[member])


def group_starts(members: TarMembers, num_samples: int, shard: str) -> NDArray[np.int64]:
    """Return where the samples of a span begin, by the names; the samples must fill the span and match the count."""
    grouping = Grouping(shard=shard)
    grouping.add(members)
    starts = np.concatenate([grouping.taken()[0], grouping.last()[0]]) - members.first_byte
    num_grouped = max(0, len(starts) - 1)
    end = int(members.ends[-1]) if len(members) else 0
    if num_grouped != num_samples or (num_grouped and starts[-1] != end):
        msg = f"the index says {num_samples} samples in these {end} bytes, but there are {num_grouped}"
        raise ShardError(msg, shard=shard, byte=members.first_byte, hint=OTHER_FILE)
    if num_grouped == 0:
        return np.zeros(1, dtype=np.int64)
    starts[0] = 0
    return starts


def first_members(members: TarMembers, starts: NDArray[np.int64], shard: str) -> list[int]:
    """Return the number of each sample's first member, and one past the last; each sample must end with a member."""
    last = np.searchsorted(members.ends, starts[1:])
    wrong = np.flatnonzero(members.ends[last] != starts[1:]) if len(starts) > 1 else last
    if wrong.size:
        msg = "the index says that a sample ends here, but no tar member ends here"
        byte = members.first_byte + int(starts[1:][wrong[0]])
        raise ShardError(msg, shard=shard, byte=byte, hint=OTHER_FILE)
    return [0, *(last + 1).tolist()]
