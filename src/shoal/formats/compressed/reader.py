"""Compressed shards: read in pieces, decompressed in memory, then parsed like any other.

A compressed unit is read as a whole. A shard of several members or frames, as writers of seekable zstd, ``bgzip`` or
``cat`` produce them, is cut into pieces of whole frames (`shoal.formats.compressed.pieces`). Other shards are one
piece: one extent, one chunk, one read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from shoal.errors import ShardError
from shoal.formats.compressed.codecs import (
    CODEC_OF_SUFFIX,
    CodecError,
    TooMuchError,
    decompress,
    decompress_parts,
    limit_hint,
)
from shoal.formats.compressed.decompressed import DecompressedContent, FrameBorders, ReadAnywhere
from shoal.formats.compressed.pieces import (
    HINT,
    PiecesOfSpan,
    WhereToCut,
    cut_pieces,
    head_of_pieces,
    may_cut,
    pieces_of_span,
)
from shoal.formats.rows.lines.json_array import ARRAY_HEAD
from shoal.formats.rows.records import compact
from shoal.formats.shard_format import (
    About,
    Format,
    ReadBytes,
    Records,
    SampleBorders,
    Span,
    Spilled,
    SpillSpace,
    StoredContent,
    as_format,
)
from shoal.index.shard_scan import Buffer, ShardScan

_AT_ONCE_BYTES = 4 << 20  # of compressed bytes, read at a time


class Compressed(Format):
    """The format of another format's shards, compressed with gzip, zlib, bzip2, xz, zstd, brotli or snappy.

    A shard with more than ``limit_bytes`` of content is refused before it fills the memory. Errors count bytes of the
    content, not of the compressed shard.

    Examples
    --------
    >>> packed = shoal.pack.pack([{"text": "a cat"}, {"text": "a dog"}], "packed", format="jsonl.gz")
    >>> shoal.open("packed", format=shoal.formats.Compressed(shoal.formats.JsonLines(), "gz", limit_bytes=1 << 40))[1]
    {'text': 'a dog'}
    """

    scan_rule = 1

    def __init__(self, inner: Format, codec: str, *, limit_bytes: int = 4 << 30) -> None:
        self.inner = inner = as_format(inner)
        self.codec, self.limit_bytes = codec, limit_bytes
        self.options = dict(inner.options)
        self.name = self.spilled_as = f"{inner.name}.{codec}"
        endings = [ending for ending, meant in CODEC_OF_SUFFIX.items() if meant == codec]
        self.suffixes = tuple(suffix + ending for suffix in inner.suffixes for ending in endings)
        if inner.name == "tar" and codec == "gz":
            self.suffixes += (".tgz",)

    def scan(self, read: ReadBytes, num_bytes: int, *, shard: str) -> ShardScan:
        """Decompress the shard and find the samples inside, with some MiB at a time in memory.

        Snappy in one block is held whole; of formats with a table of samples at the front, such as MDS, the table is
        held. The layout CRC of a piece covers its compressed bytes. Raises `ShardError`: it cannot be decompressed,
        or its content is not in the inner format.
        """
        return self._scanned(read, num_bytes, shard, WhereToCut())

    def field_names(self, head: Mapping[str, Any]) -> Sequence[str] | None:
        """Return the fields that the inner format finds in the head."""
        return self.inner.field_names(head.get("inner", {}))

    def scan_as(self, head: Mapping[str, Any], read: ReadBytes, num_bytes: int, *, shard: str) -> ShardScan:
        """Scan like `scan`, and cut the shard as in the index that has this ``head``."""
        return self._scanned(read, num_bytes, shard, may_cut(head))

    def _scanned(self, read: ReadBytes, num_bytes: int, shard: str, where: WhereToCut) -> ShardScan:
        if not num_bytes:  # no samples; codecs write something for empty content, too
            return _no_samples(self.inner.scan(read, 0, shard=shard).notes)

        def from_front() -> DecompressedContent:
            return DecompressedContent(self.codec, _in_parts(read, 0, num_bytes), limit_bytes=self.limit_bytes)

        content = from_front()
        borders = FrameBorders(content)
        try:
            about = self.inner.scan_forward(content, borders, shard=shard)
            if about is None:
                scan = self.inner.scan(ReadAnywhere(from_front), content.read_to_end(), shard=shard)
                if scan.piece_samples is not None:
                    msg = f"the content of this shard ({self.codec}) is itself compressed, or is a table"
                    raise ShardError(msg, shard=shard, byte=0, hint="decompress the shard, and open the result")
                about = About(scan.head, scan.notes)
                borders.add(scan.sample_starts, scan.layout_crcs)
            content.read_to_end()
        except CodecError as error:
            raise self._undecodable(error, num_bytes, shard, 0) from None
        if not borders.num_samples:
            return _no_samples(about.notes)
        if not {"pax_globals", *ARRAY_HEAD}.isdisjoint(about.head):  # of all that follows: every piece would need it
            where = where._replace(at_ends=False)
        pieces, piece_samples = cut_pieces(borders, content.members, where=where)
        return ShardScan(
            np.append(pieces.first_byte, pieces.end_byte[-1:]),
            pieces.crcs(content.members),
            head={"inner": dict(about.head)} | ({} if len(pieces) == 1 else head_of_pieces(pieces)),
            notes=about.notes,
            piece_samples=piece_samples,
            piece_decoded_bytes=pieces.content_end - pieces.content_first,
            piece_ends=pieces.end_byte if pieces.share_frames else None,
        )

    def parse(self, buffer: Buffer, span: Span) -> Records:
        """Decompress a shard, or some consecutive pieces of one, and parse the content.

        Raises `ShardError`: it cannot be decompressed, or does not hold that many samples.
        """
        shard, first_byte, num_samples, _, head = span
        pieces, view, inner_head = (
            self._pieces(span, first_byte + len(buffer)),
            memoryview(buffer),
            head.get("inner", {}),
        )
        if pieces is None:
            inside = self._decompressed(buffer, shard, self.limit_bytes)
            content = memoryview(inside)
            borders = self._borders(lambda a, b: bytes(content[a:b]), len(inside), shard)
            _check_samples(borders, span)
            begin, end = int(borders[0]), int(borders[-1])
            borders -= begin
            within = Span(shard, begin, num_samples, compact(borders), inner_head)
            return _CompressedRecords(self.inner.parse(content[begin:end], within), [crc32(buffer)])
        inside = self._decompressed(buffer, shard, pieces.end - pieces.begin, first_byte)
        _check_size(len(inside), pieces, span)
        within = Span(shard, pieces.low, num_samples, None, inner_head)
        content = memoryview(inside)[pieces.low - pieces.begin : pieces.high - pieces.begin]
        view = memoryview(buffer)
        crcs = [crc32(view[first:end]) for first, end in pieces.stored]
        return _CompressedRecords(self.inner.parse(content, within), crcs)

    def _pieces(self, span: Span, end_byte: int) -> PiecesOfSpan | None:
        """Return the pieces of a span; None if it is a whole shard."""
        return pieces_of_span(span, end_byte, limit_bytes=self.limit_bytes) if "pieces" in span.head else None

    def spill(self, read: ReadBytes, end_byte: int, span: Span, space: SpillSpace) -> Spilled:
        """Decompress some consecutive pieces, or a whole shard, into scratch space; each sample is a part.

        Memory: some MiB, and as a `scan` of the inner format, 20 bytes a sample; for snappy, all of it; for formats
        that need the front of a shard (`needs_front`), all the content of the pieces. Raises as `parse` does.
        """
        shard, first_byte = span.shard, span.first_byte
        pieces = self._pieces(span, end_byte)
        limit_bytes = self.limit_bytes if pieces is None else pieces.end - pieces.begin
        num_bytes = 0
        try:
            for part in decompress_parts(self.codec, _in_parts(read, first_byte, end_byte), limit_bytes=limit_bytes):
                space.append(part)
                num_bytes += len(part)
        except CodecError as error:
            raise self._undecodable(error, end_byte - first_byte, shard, first_byte) from None
        begin = low = 0
        if pieces is not None:
            _check_size(num_bytes, pieces, span)
            begin, low, num_bytes = pieces.begin, pieces.low - pieces.begin, pieces.high - pieces.begin

        def inside(first: int, end: int, /) -> bytes:
            return space.read(low + first, low + end)

        head: dict[str, Any] = {"inner": dict(span.head.get("inner", {})), "begin": begin}
        if pieces is not None and self.inner.needs_front:
            within = Span(shard, pieces.low, span.num_samples, None, head["inner"])
            records = self.inner.parse(inside(0, num_bytes - low), within)
            starts = np.asarray(records.starts, dtype=np.int64)  # type: ignore[attr-defined]  # see `needs_front`
        else:
            starts = self._borders(inside, num_bytes - low, shard)
            _check_samples(starts, span)
        return Spilled(starts + low, span.num_samples, 1, head)

    def parse_part(self, data: bytes, span: Span) -> Records:
        """Open one spilled sample."""
        head = span.head
        first_byte = int(head["begin"]) + span.first_byte
        within = Span(span.shard, first_byte, span.num_samples, [0, len(data)], head["inner"])
        return self.inner.parse(data, within)

    def _borders(self, read: ReadBytes, num_bytes: int, shard: str) -> NDArray[np.int64]:
        """Return the borders of the samples in decompressed bytes, as a writable array; [0] for pieces."""
        borders = SampleBorders(with_crcs=False)
        if self.inner.scan_forward(StoredContent(read, num_bytes), borders, shard=shard) is None:
            scan = self.inner.scan(read, num_bytes, shard=shard)
            return np.zeros(1, dtype=np.int64) if scan.piece_samples is not None else scan.sample_starts.copy()
        return borders.starts()

    def _decompressed(self, stored: Buffer, shard: str, limit_bytes: int, first_byte: int = 0) -> bytearray:
        if not stored:  # an empty shard has no samples
            return bytearray()
        try:
            return decompress(self.codec, stored, limit_bytes=limit_bytes)
        except CodecError as error:
            raise self._undecodable(error, len(stored), shard, first_byte) from None

    def _undecodable(self, error: CodecError, num_bytes: int, shard: str, first_byte: int) -> ShardError:
        msg = f"these {num_bytes} bytes cannot be decompressed ({self.codec}): {error}"
        is_large = isinstance(error, TooMuchError) and error.limit_bytes == self.limit_bytes
        hint = limit_hint(type(self.inner).__name__, self.codec) if is_large else HINT
        return ShardError(msg, shard=shard, byte=first_byte + error.member_byte, hint=hint)


def _in_parts(read: ReadBytes, first_byte: int, end_byte: int) -> Iterator[Buffer]:
    for step in range(first_byte, end_byte, _AT_ONCE_BYTES):
        yield read(step, min(step + _AT_ONCE_BYTES, end_byte))


def _no_samples(notes: Mapping[str, int]) -> ShardScan:
    return ShardScan(np.zeros(1, np.int64), np.zeros(0, np.uint32), notes=notes)


def _check_size(num_bytes: int, pieces: PiecesOfSpan, span: Span) -> None:
    if num_bytes != pieces.end - pieces.begin:
        msg = f"these bytes decompress to {num_bytes} bytes, but the index says {pieces.end - pieces.begin}"
        raise ShardError(msg, shard=span.shard, byte=span.first_byte, hint=HINT)


def _check_samples(borders: NDArray[np.int64], span: Span) -> None:
    if len(borders) - 1 != span.num_samples:
        msg = f"the index says {span.num_samples} samples in this shard, but the shard has {len(borders) - 1}"
        raise ShardError(msg, shard=span.shard, hint=HINT)


class _CompressedRecords:
    """The samples of decompressed bytes, and the CRCs of their pieces."""

    __slots__ = ("_crcs", "_records", "sample")

    def __init__(self, records: Records, crcs: Sequence[int]) -> None:
        self._records, self._crcs = records, crcs
        self.sample = records.sample

    def __len__(self) -> int:
        return len(self._records)

    def layout_crcs(self) -> NDArray[np.uint32]:
        return np.array(self._crcs, dtype=np.uint32)
