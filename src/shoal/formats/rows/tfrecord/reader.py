"""TFRecord shards: each record between its length and two checksums, as TensorFlow writes them.

A record is 8 bytes of length, 4 bytes of masked CRC-32C over these, the data, and 4 bytes of masked CRC-32C over the
data; all little-endian. See ``tensorflow/core/lib/io/record_writer.h``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from struct import Struct
from typing import NoReturn
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from shoal.errors import ShardError
from shoal.formats.compressed.codecs import packed_hint
from shoal.formats.rows.records import BadRecordError, CutRecords, borders_in, cut_together
from shoal.formats.rows.tfrecord.crc32c import crc32c, crc32c_of_rows, masked
from shoal.formats.rows.tfrecord.tf_example import (
    FIELD_HEAD_BYTES,
    NotAnExampleError,
    field_end,
    is_example,
    parse_example,
)
from shoal.formats.shard_format import About, BorderSink, Content, Format, Sample, Span
from shoal.index.shard_scan import Buffer

_HEADER_BYTES, _FOOTER_BYTES = 12, 4
_FRAME_BYTES = _HEADER_BYTES + _FOOTER_BYTES
_length_of = Struct("<Q").unpack_from
_crc_of = Struct("<I").unpack_from
_LARGE_RECORD_BYTES = 256 << 10
_HUGE_RECORD_BYTES = 32 << 20
_UNKNOWN_BYTES = 1 << 62
_CUT_SHORT = "an unfinished copy? copy the shard again"


class TFRecord(Format):
    """The TFRecord format: one record after another.

    If the first undamaged record of a shard is a ``tf.train.Example`` or ``SequenceExample``, all records must be
    examples, and a sample has the features of its record (see
    `shoal.formats.rows.tfrecord.tf_example.parse_example`). Otherwise, or with ``examples=False``, a sample is
    ``{"record": bytes}``.

    A scan checks every length; the checksum of the data is checked whenever a sample is read.

    Examples
    --------
    >>> packed = shoal.pack.pack([{"text": b"a cat", "label": 0}], "packed", format="tfrecord")
    >>> shoal.open("packed", format=shoal.formats.TFRecord())[0]
    {'text': b'a cat', 'label': array([0])}
    """

    name: str = "tfrecord"
    suffixes: tuple[str, ...] = (".tfrecord", ".tfrecords", ".tfrec")
    scan_rule = 1

    def __init__(self, *, examples: bool = True, window_bytes: int = 1 << 20) -> None:
        self.examples, self.window_bytes = examples, window_bytes

    def scan_forward(self, content: Content, borders: BorderSink, *, shard: str) -> About:
        """Find the records by their lengths; the layout CRC of a sample is the CRC-32 of its first 12 bytes.

        Reads whole windows if records are small, and only headers if they are larger than 256 KiB. Raises `ShardError`
        if a length does not match its checksum, or a record ends after the shard.
        """
        first = position = num_records = 0
        are_examples: bool | None = None
        while True:
            large = num_records and position / num_records > _LARGE_RECORD_BYTES
            window = content.read(position, position + (_HEADER_BYTES if large else self.window_bytes))
            if not len(window):
                break
            starts = [position]
            headers_at = _headers_in(window, starts, content.num_bytes or _UNKNOWN_BYTES, shard)
            crcs = [crc32(window[at : at + _HEADER_BYTES]) for at in headers_at]
            borders.add(np.array(starts[bool(num_records) :], dtype=np.int64), np.array(crcs, dtype=np.uint32))
            first, position, num_records = starts[-2], starts[-1], num_records + len(headers_at)
            if are_examples is None:
                are_examples = _hold_examples(content, starts)
        if position > (content.num_bytes or 0):
            raise _beyond(first, position, content.num_bytes or 0, shard)
        return About({"records": "examples"} if are_examples else {})

    def parse(self, buffer: Buffer, span: Span) -> CutRecords:
        """Open the bytes of consecutive records; each is checked when its sample is requested.

        Raises `ShardError` if the bytes are not a chain of that many records.
        """
        starts = borders_in(buffer, span, partial(_walk, buffer, span), what="records")
        examples = self.examples and span.head.get("records") == "examples"
        view = memoryview(buffer)

        def header_crcs() -> NDArray[np.uint32]:
            return np.array([crc32(view[start : start + _HEADER_BYTES]) for start in starts[:-1]], dtype=np.uint32)

        decode, cut = (_example, _CUT_EXAMPLES) if examples else (_record, _CUT_RECORDS)
        return CutRecords(buffer, starts, span, decode=decode, crcs=header_crcs, cut=cut)


def _record(record: bytes) -> Sample:
    return {"record": _data_of(record)}


def _example(record: bytes) -> Sample:
    try:
        return parse_example(_data_of(record))
    except NotAnExampleError as error:
        what = f"the first record of this shard is a tf.train.Example, but this record is not: {error}"
        hint = "the shard is damaged, or mixes records: format=TFRecord(examples=False) gives the raw bytes of each"
        raise BadRecordError(what, byte=_HEADER_BYTES + error.byte, hint=hint) from None


_CUT_EXAMPLES, _CUT_RECORDS = cut_together(_example), cut_together(_record)


def _data_of(record: bytes) -> bytes:
    """Return the data in the frame of a record, with both checksums verified."""
    data = record[_HEADER_BYTES:-_FOOTER_BYTES]
    if len(record) < _FRAME_BYTES or _length_of(record)[0] != len(data):
        _refuse("the index has a record here, but the length in the record differs")
    if masked(crc32c(record[:8])) != _crc_of(record, 8)[0]:
        _refuse("the length of this record does not match its checksum")
    if masked(crc32c(data)) != _crc_of(record, len(record) - _FOOTER_BYTES)[0]:
        _refuse("the data of this record does not match its checksum", _HEADER_BYTES)
    return data


def _refuse(what: str, byte: int = 0) -> NoReturn:
    raise BadRecordError(what, byte=byte)


def _walk(buffer: Buffer, span: Span) -> list[int]:
    """Return where records begin and the last one ends, by their lengths."""
    starts = [0]
    while starts[-1] < len(buffer) and len(starts) <= span.num_samples:
        rest = memoryview(buffer)[starts[-1] :]
        _headers_in(rest, starts, len(buffer), span.shard, before=span.first_byte)
    return starts


def _headers_in(window: Buffer, starts: list[int], num_bytes: int, shard: str, *, before: int = 0) -> list[int]:
    """Return the positions of whole headers in ``window``; append each record's end to ``starts``.

    The window begins at the last of ``starts``; all offsets count from byte ``before`` of the shard. The last record
    must end at ``num_bytes``.
    """
    first = position = starts[-1]
    headers_at = []
    while position < num_bytes and position + _HEADER_BYTES <= first + len(window):
        headers_at.append(position - first)
        position += _length_of(window, position - first)[0] + _FRAME_BYTES
        starts.append(position)
    data = np.frombuffer(window, dtype=np.uint8)
    headers = data[np.array(headers_at, dtype=np.int64)[:, None] + np.arange(_HEADER_BYTES)]
    stored = np.ascontiguousarray(headers[:, 8:]).view("<u4").reshape(-1)
    wrong = np.flatnonzero(masked(crc32c_of_rows(headers[:, :8])) != stored)
    if wrong.size:
        msg = "no record begins here: the length does not match its checksum"
        byte = before + first + headers_at[int(wrong[0])]
        packed = packed_hint(window[:6], "tfrecord") if byte == 0 else None
        hint = packed or "this is not a TFRecord shard, or it is compressed or damaged"
        raise ShardError(msg, shard=shard, byte=byte, hint=hint)
    if not headers_at:
        msg = f"{num_bytes - position} bytes are left here, too few for a record"
        raise ShardError(msg, shard=shard, byte=before + position, hint=_CUT_SHORT)
    if position > num_bytes:
        raise _beyond(before + starts[-2], before + position, before + num_bytes, shard)
    return headers_at


def _beyond(start: int, end: int, num_bytes: int, shard: str) -> ShardError:
    msg = f"this record would end at byte {end}, but the shard has {num_bytes}"
    return ShardError(msg, shard=shard, byte=start, hint=_CUT_SHORT)


def _hold_examples(content: Content, starts: Sequence[int]) -> bool | None:
    """Return True if the first undamaged record of these is an example; None if all are damaged.

    A damaged record must not decide for the other records.
    """
    for start, end in pairwise(starts):
        if end - start > _HUGE_RECORD_BYTES:
            return _is_huge_example(content, start + _HEADER_BYTES, end - _FOOTER_BYTES)
        try:
            return is_example(_data_of(bytes(content.read(start, end))))
        except BadRecordError:
            continue
    return None


def _is_huge_example(content: Content, begin: int, end: int) -> bool:
    """Return True if the fields of an example fill these bytes; reads only the field heads, not the whole record."""
    at: int | None = begin
    while at is not None and at < end:
        at = field_end(bytes(content.read(at, min(at + FIELD_HEAD_BYTES, end))), at)
    return at == end
