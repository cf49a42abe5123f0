"""TFRecord shards: each record between its length and two checksums, as TensorFlow writes them.

A record is 8 bytes of length, 4 bytes of masked CRC-32C over these, the data, and 4 bytes of masked CRC-32C over the
data; all little-endian. See ``tensorflow/core/lib/io/record_writer.h``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from struct import Struct
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from shoal.errors import ShardError
from shoal.shards.crc32c import crc32c, crc32c_of_rows, masked
from shoal.shards.protocol import Buffer, ReadBytes, Sample, ShardScan
from shoal.shards.tf_example import NotAnExampleError, parse_example

__all__ = ["TFRecord", "TFRecords"]

_HEADER_BYTES, _FOOTER_BYTES = 12, 4
_FRAME_BYTES = _HEADER_BYTES + _FOOTER_BYTES
_length_of = Struct("<Q").unpack_from
_crc_of = Struct("<I").unpack_from
_LARGE_RECORD_BYTES = 256 << 10
_CUT_SHORT = "an unfinished copy? copy the shard again"
_OTHER_FILE = "the shard has changed since it was indexed, or the index belongs to another: index it again"


class TFRecord:
    """The format of one record after the other.

    Where the first undamaged record of a shard is a ``tf.train.Example``, all must be, and a sample has the features of
    its record (see `shoal.shards.tf_example.parse_example`). Else, or with ``examples=False``, it is
    ``{"record": bytes}``.
    A scan checks every length; the checksum of the data is checked whenever a sample is read.
    """

    name: str = "tfrecord"
    suffixes: tuple[str, ...] = (".tfrecord", ".tfrecords", ".tfrec")

    def __init__(self, *, examples: bool = True, window_bytes: int = 4 << 20) -> None:
        self.examples = examples
        self.window_bytes = window_bytes

    def scan(self, read: ReadBytes, num_bytes: int, *, shard: str) -> ShardScan:
        """Find the records by their lengths; the layout CRC of a sample is the CRC-32 of its first 12 bytes.

        Reads whole windows where records are small, and only headers where they are larger than 256 KiB.

        Raises
        ------
        ShardError
            Where a length does not have its checksum, or a record ends after the shard.
        """
        starts, layout = [0], []
        head: dict[str, Any] = {}
        while starts[-1] < num_bytes:
            first = starts[-1]
            large = len(starts) > 1 and (first / (len(starts) - 1)) > _LARGE_RECORD_BYTES
            end = min(num_bytes, first + (_HEADER_BYTES if large else self.window_bytes))
            window = read(first, end)
            places = _headers_in(window, starts, num_bytes, shard)
            layout += [crc32(window[at : at + _HEADER_BYTES]) for at in places]
        if self.examples and _holds_examples(read, starts):
            head["records"] = "examples"
        return ShardScan(np.array(starts, dtype=np.int64), np.array(layout, dtype=np.uint32), head=head)

    def read_sample(
        self, read: ReadBytes, first_byte: int, end_byte: int, *, shard: str, head: Mapping[str, Any]
    ) -> Sample:
        """One record, read and checked whole."""
        record, borders = read(first_byte, end_byte), [0, end_byte - first_byte]
        return self.parse(record, borders, num_samples=1, shard=shard, first_byte=first_byte, head=head).sample(0)

    def parse(
        self,
        buffer: Buffer,
        sample_starts: Sequence[int] | None,
        *,
        num_samples: int,
        shard: str,
        first_byte: int,
        head: Mapping[str, Any],
    ) -> TFRecords:
        """Open the bytes of consecutive records; each is checked when its sample is asked for.

        Raises
        ------
        ShardError
            Where the bytes are no chain of ``num_samples`` records.
        """
        if sample_starts is None:
            walked = [0]
            while walked[-1] < len(buffer) and len(walked) <= num_samples:
                _headers_in(memoryview(buffer)[walked[-1] :], walked, len(buffer), shard, before=first_byte)
            sample_starts = walked
        if len(sample_starts) != num_samples + 1 or sample_starts[-1] > len(buffer):
            msg = (
                f"the index says {num_samples} records in these {len(buffer)} bytes, {len(sample_starts) - 1} are there"
            )
            raise ShardError(msg, shard=shard, byte=first_byte, hint=_OTHER_FILE)
        examples = self.examples and head.get("records") == "examples"
        return TFRecords(buffer, sample_starts, shard, first_byte, examples=examples)


class TFRecords:
    """Some consecutive records of a shard, handed out by number."""

    __slots__ = ("_buffer", "_examples", "_first_byte", "_shard", "_starts")

    def __init__(self, buffer: Buffer, starts: Sequence[int], shard: str, first_byte: int, *, examples: bool) -> None:
        self._buffer, self._starts = buffer, starts
        self._shard, self._first_byte, self._examples = shard, first_byte, examples

    def __len__(self) -> int:
        return len(self._starts) - 1

    def layout_crcs(self) -> NDArray[np.uint32]:
        """CRC-32 of the header of each record, as `TFRecord.scan` gives them; shape (len,)."""
        view = memoryview(self._buffer)
        crcs = [crc32(view[start : start + _HEADER_BYTES]) for start in self._starts[:-1]]
        return np.array(crcs, dtype=np.uint32)

    def sample(self, number: int) -> Sample:
        """Sample ``number``; O(its bytes).

        Raises
        ------
        ShardError
            Where a checksum is wrong, or a record of a shard of examples is none.
        """
        start, end = self._starts[number], self._starts[number + 1]
        record = bytes(memoryview(self._buffer)[start:end])
        data = record[_HEADER_BYTES:-_FOOTER_BYTES]
        if wrong := _first_wrong(record, data):
            raise self._wrong(*wrong, start)
        if not self._examples:
            return {"record": data}
        try:
            return parse_example(data)
        except NotAnExampleError as error:
            what = f"the first record of this shard is a tf.train.Example, and this one is none: {error}"
            raise self._wrong(what, _HEADER_BYTES + error.byte, start) from None

    def _wrong(self, what: str, byte: int, start: int) -> ShardError:
        hint = "the shard is damaged, or not the one that was indexed: copy it again, or index it again"
        return ShardError(what, shard=self._shard, byte=self._first_byte + start + byte, hint=hint)


def _first_wrong(record: bytes, data: bytes) -> tuple[str, int] | None:
    """What is wrong with the frame of a record, and at which of its bytes."""
    if len(record) < _FRAME_BYTES or _length_of(record)[0] != len(data):
        return "by the index a record lies here, and its length says otherwise", 0
    if int(masked(crc32c(record[:8]))) != _crc_of(record, 8)[0]:
        return "the length of this record does not have its checksum", 0
    if int(masked(crc32c(data))) != _crc_of(record, len(record) - _FOOTER_BYTES)[0]:
        return "the data of this record do not have their checksum", _HEADER_BYTES
    return None


def _headers_in(window: Buffer, starts: list[int], num_bytes: int, shard: str, *, before: int = 0) -> list[int]:
    """The places in ``window`` of the headers that it holds whole; to ``starts`` is added where each record ends.

    The window begins at the last of ``starts``; all of these count from byte ``before`` of the shard, as does
    ``num_bytes``, where the last record has to end.
    """
    first = position = starts[-1]
    places = []
    while position < num_bytes and position + _HEADER_BYTES <= first + len(window):
        places.append(position - first)
        position += _length_of(window, position - first)[0] + _FRAME_BYTES
        starts.append(position)
    data = np.frombuffer(window, dtype=np.uint8)
    headers = data[np.array(places, dtype=np.int64)[:, None] + np.arange(_HEADER_BYTES)]
    stored = np.ascontiguousarray(headers[:, 8:]).view("<u4").reshape(-1)
    wrong = np.flatnonzero(masked(crc32c_of_rows(headers[:, :8])) != stored)
    if wrong.size:
        msg = "no record begins here: the length does not have its checksum"
        byte = before + first + places[int(wrong[0])]
        raise ShardError(msg, shard=shard, byte=byte, hint="this is no TFRecord shard, a compressed or a damaged one")
    if not places:
        msg = f"{num_bytes - position} bytes are left here, too few for a record"
        raise ShardError(msg, shard=shard, byte=before + position, hint=_CUT_SHORT)
    if position > num_bytes:
        msg = f"this record would end at byte {before + position}, and there are {before + num_bytes}"
        raise ShardError(msg, shard=shard, byte=before + starts[-2], hint=_CUT_SHORT)
    return places


def _holds_examples(read: ReadBytes, starts: Sequence[int]) -> bool:
    """Whether the first record that is not damaged is an example: a damaged one must not decide about the others."""
    for start, end in pairwise(starts):
        record = bytes(read(start, end))
        data = record[_HEADER_BYTES:-_FOOTER_BYTES]
        if _first_wrong(record, data):
            continue
        try:
            parse_example(data)
        except NotAnExampleError:
            return False
        return True
    return False
