"""MXNet RecordIO shards (``.rec``), as im2rec writes them and DALI reads them.

A part is a magic number, a word with 3 bits for its place in the record and 29 for its length, the data, and zeros up
to a multiple of 4. A record that holds the magic number at a multiple of 4 is split there into parts, without it. The
data of an image record begin with a header: a flag, a label, two ids; the flag is the number of labels that follow,
or 0. See ``dmlc/recordio.h`` and ``mxnet.recordio.IRHeader``.
"""

from __future__ import annotations

from struct import Struct
from typing import NoReturn
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from shoal.formats.rows.records import BadRecordError, CutRecords, borders_in
from shoal.formats.shard_format import About, BorderSink, Content, Format, Sample, Span
from shoal.index.shard_scan import Buffer

_MAGIC = 0xCED7230A
_MAGIC_BYTES = _MAGIC.to_bytes(4, "little")
_WHOLE, _FIRST, _MIDDLE, _LAST = range(4)
_part_head = Struct("<II").unpack_from
_image_head = Struct("<IfQQ").unpack_from
_PART_HEAD_BYTES, _IMAGE_HEAD_BYTES = 8, 24
_LARGE_RECORD_BYTES = 256 << 10
_UNKNOWN_BYTES = 1 << 62
_NO_SHARD = "this is not a RecordIO shard, or it is damaged"


class RecordIO(Format):
    """The format of MXNet's records.

    A sample has ``label``, a float, or an array of float32 for several labels; ``id``; and ``data``, bytes, usually of
    an image. With ``image_headers=False`` a sample has only ``data``, the whole record.

    Examples
    --------
    >>> import pathlib, struct
    >>> size = pathlib.Path("train.rec").write_bytes(struct.pack("<II8s", 0xCED7230A, 5, b"a cat"))
    >>> shoal.open("train.rec", format=shoal.formats.RecordIO(image_headers=False))[0]
    {'data': b'a cat'}
    """

    name: str = "recordio"
    suffixes: tuple[str, ...] = (".rec",)

    def __init__(self, *, image_headers: bool = True, window_bytes: int = 1 << 20) -> None:
        self.image_headers, self.window_bytes = image_headers, window_bytes

    def scan_forward(self, content: Content, borders: BorderSink, *, shard: str) -> About:
        """Find the records by the heads of their parts; the layout CRC of a sample covers the heads.

        Reads whole windows if records are small, and only heads if they are larger than 256 KiB. Raises `ShardError` if
        no part begins where one should, or the last one ends after the shard.
        """
        walk = _Walk(_UNKNOWN_BYTES)
        num_records = 0
        try:
            while True:
                first = walk.position
                large = first / max(1, num_records) > _LARGE_RECORD_BYTES
                window = content.read(first, first + (_PART_HEAD_BYTES if large else self.window_bytes))
                walk.num_bytes = _UNKNOWN_BYTES if content.num_bytes is None else content.num_bytes
                if not len(window):
                    break
                walk.add(window)
                num_records += len(walk.crcs)
                borders.add(*walk.taken())
            walk.finish()
        except BadRecordError as error:
            raise error.placed(shard, 0) from None
        return About()

    def parse(self, buffer: Buffer, span: Span) -> CutRecords:
        """Open the bytes of consecutive records; each is checked when its sample is requested.

        Raises `ShardError` if the bytes do not hold that many records.
        """
        view = memoryview(buffer)

        def walked(end: int | None = None) -> _Walk:
            try:
                return _walked(view[:end])
            except BadRecordError as error:
                raise error.placed(span.shard, span.first_byte) from None

        starts = borders_in(buffer, span, lambda: walked().starts, what="records")
        return CutRecords(buffer, starts, span, decode=self._decode, crcs=lambda: walked(starts[-1]).layout_crcs())

    def _decode(self, record: bytes) -> Sample:
        payloads: list[tuple[int, int]] = []
        walk = _walked(record, payloads)
        if len(walk.starts) != 2:
            raise BadRecordError(f"the index says that one record lies here, but there are {len(walk.starts) - 1}")
        data = _MAGIC_BYTES.join(record[begin:stop] for begin, stop in payloads)
        if not self.image_headers:
            return {"data": data}
        num_labels, label, identity, _ = _image_head(data) if len(data) >= _IMAGE_HEAD_BYTES else (-1, 0.0, 0, 0)
        begin = _IMAGE_HEAD_BYTES + 4 * num_labels
        if num_labels < 0 or begin > len(data):
            msg = f"a record of {len(data)} bytes has no header of an image, or more labels than fit"
            hint = "for records without this header, give RecordIO(image_headers=False) as format="
            raise BadRecordError(msg, hint=hint)
        if num_labels:
            label = np.frombuffer(data, "<f4", count=num_labels, offset=_IMAGE_HEAD_BYTES).copy()
        return {"label": label, "id": identity, "data": data[begin:]}


def _walked(buffer: Buffer, payloads: list[tuple[int, int]] | None = None) -> _Walk:
    """Walk through all of these bytes; they must end with a record."""
    walk = _Walk(len(buffer), payloads=payloads)
    walk.add(buffer)
    walk.finish()
    return walk


class _Walk:
    """A walk from part to part through some bytes, window by window."""

    def __init__(self, num_bytes: int, *, payloads: list[tuple[int, int]] | None = None) -> None:
        self.num_bytes = num_bytes
        self.position = 0
        self.starts = [0]
        self.crcs: list[int] = []
        self._payloads = payloads  # collects the byte range of each part's data
        self._first_taken = False
        self._part = 0  # where the newest part begins
        self._crc = 0
        self._inside = False  # the last part was not the last of its record

    def add(self, window: Buffer) -> None:
        """Walk through the next bytes, which begin at ``position``."""
        first = self.position
        if self.num_bytes - first < _PART_HEAD_BYTES and first < self.num_bytes:
            self._refuse(f"{self.num_bytes - first} bytes are left here, too few for a record")
        while self.position + _PART_HEAD_BYTES <= min(first + len(window), self.num_bytes):
            at = self.position - first
            magic, word = _part_head(window, at)
            kind, size = word >> 29, word & ((1 << 29) - 1)
            if magic != _MAGIC or kind > _LAST or (kind in (_MIDDLE, _LAST)) != self._inside:
                self._refuse("the next part of a record should begin here, but does not")
            begin = self.position + _PART_HEAD_BYTES
            if begin + size + -size % 4 > self.num_bytes:
                self._refuse(f"a part of {size} bytes begins here, but only {self.num_bytes - begin} are left")
            self._crc = crc32(window[at : at + _PART_HEAD_BYTES], self._crc)
            if self._payloads is not None:
                self._payloads.append((begin, begin + size))
            self._part = self.position
            self.position = begin + size + -size % 4
            self._inside = kind in (_FIRST, _MIDDLE)
            if not self._inside:
                self.starts.append(self.position)
                self.crcs.append(self._crc)
                self._crc = 0

    def taken(self) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
        """Return the borders and CRCs since the last call, for `BorderSink.add`."""
        borders = self.starts[self._first_taken :] if self.crcs else []
        taken = np.array(borders, dtype=np.int64), self.layout_crcs()
        self._first_taken = self._first_taken or bool(self.crcs)
        self.starts, self.crcs = self.starts[-1:], []
        return taken

    def finish(self) -> None:
        """Check, once all bytes were added, that they end with a record."""
        if self._inside or self.position != self.num_bytes:
            self.position = self._part if self.position > self.num_bytes else self.position
            self._refuse("the shard ends in the middle of a record")

    def layout_crcs(self) -> NDArray[np.uint32]:
        """Return the CRC of the heads of each record."""
        return np.array(self.crcs, dtype=np.uint32)

    def _refuse(self, what: str) -> NoReturn:
        raise BadRecordError(what, byte=self.position, hint=_NO_SHARD)
