"""Chunks of LitData whose items are compressed in frames: several items in each, or one.

With ``compression_level="batch"``, the meaning of ``compression="zstd"`` since LitData 0.2.76, a chunk begins with a
magic number and an uncompressed table of items and frames; the frames follow. With ``"sample"`` a chunk is laid out
like an uncompressed chunk, but each item is a frame.
"""

from __future__ import annotations

from functools import partial
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from shoal.errors import ShardError
from shoal.formats.compressed.codecs import CodecError, decompress
from shoal.formats.compressed.decompressed import DecompressedContent, FrameBorders, KnownFrames, Members
from shoal.formats.compressed.pieces import HINT, WhereToCut, cut_pieces, head_of_pieces, pieces_of_span
from shoal.formats.rows.offset_table import walk_sizes
from shoal.formats.rows.records import BadRecordError, CutRecords, DecodeRecord, borders_in
from shoal.formats.shard_format import ReadBytes, Span
from shoal.index.shard_scan import Buffer, ShardScan

FRAMES_MAGIC = b"LDFZ01\0\0"
_PREFIX_BYTES = 24
_VERSION = 1
_FRAME = np.dtype(
    [("first_item", "<u4"), ("num_items", "<u4"), ("byte", "<u8"), ("packed_bytes", "<u4"), ("content_bytes", "<u4")]
)
_LIMIT_BYTES = 4 << 30  # of a chunk's content
_ITEM_LIMIT_BYTES = 1 << 30
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"


def scan_frames(read: ReadBytes, num_bytes: int, *, shard: str, num_leaves: int) -> ShardScan:
    """Read the table of a chunk of frames: 4 bytes an item, 24 a frame. Pieces are frames, or several small ones.

    The layout CRC of a piece covers the offsets of its items. Raises `ShardError` if the table contradicts itself
    or the size of the chunk.
    """
    prefix = bytes(read(0, min(num_bytes, _PREFIX_BYTES))).ljust(_PREFIX_BYTES, b"\0")
    version = int.from_bytes(prefix[8:10], "little")
    num_items, _, num_frames = np.frombuffer(prefix, "<u4", offset=12).tolist()
    offsets_end = _PREFIX_BYTES + 4 * (num_items + 1)
    origin = offsets_end + _FRAME.itemsize * num_frames
    if version != _VERSION or origin > num_bytes:
        msg = f"a table of {num_items} items in {num_frames} frames, version {version}, in {num_bytes} bytes"
        raise ShardError(msg, shard=shard, byte=8, hint="version 1 is read; else the chunk is cut short or damaged")
    offsets = np.frombuffer(read(_PREFIX_BYTES, offsets_end), "<u4").astype(np.int64)
    frames = np.frombuffer(read(offsets_end, origin), _FRAME)
    _check(offsets, frames, origin, num_bytes, num_leaves, shard)
    if not num_items:
        return ShardScan(np.array([origin]), np.zeros(0, np.uint32))
    byte_ends, content_ends = (np.cumsum(frames[name].astype(np.int64)) for name in ("packed_bytes", "content_bytes"))
    members = Members()
    for ends in zip(byte_ends.tolist(), content_ends.tolist(), strict=True):
        members.add(*ends, 0)
    borders = FrameBorders(KnownFrames(members, int(content_ends[-1])))
    borders.add(offsets, np.zeros(num_items, np.uint32))
    pieces, piece_samples = cut_pieces(borders, members, where=WhereToCut(inside_frames=False))
    before = np.append(0, np.cumsum(piece_samples))
    return ShardScan(
        origin + np.append(pieces.first_byte, pieces.end_byte[-1:]),
        _crcs(offsets, before),
        head={**head_of_pieces(pieces), "origin": origin},
        piece_samples=piece_samples,
        piece_decoded_bytes=pieces.content_end - pieces.content_first,
    )


def parse_frames(buffer: Buffer, span: Span, *, num_leaves: int, decode: DecodeRecord) -> CutRecords:
    """Decompress some consecutive pieces and open their items. Errors of items name bytes of the content.

    Raises `ShardError` if they cannot be decompressed, or do not hold that many items.
    """
    shard, first_byte = span.shard, span.first_byte
    known = pieces_of_span(span, first_byte + len(buffer), limit_bytes=_LIMIT_BYTES)
    try:
        content = DecompressedContent("zst", [buffer], limit_bytes=known.end - known.begin)
        inside = content.read(0, known.end - known.begin)
        content.read_to_end()
    except CodecError as error:
        msg = f"these {len(buffer)} bytes cannot be decompressed (zstd): {error}"
        raise ShardError(msg, shard=shard, byte=first_byte + error.member_byte, hint=HINT) from None
    content_end = dict(zip(content.members.ends, content.members.content_ends, strict=True))
    borders = [0, *(content_end.get(end, -1) for _, end in known.stored)]
    if borders[-1] != known.end - known.begin or -1 in borders:
        msg = f"the frames in these bytes hold {len(inside)} bytes, but the index says {known.end - known.begin}"
        raise ShardError(msg, shard=shard, byte=first_byte, hint=HINT)
    within = Span(shard, known.begin, span.num_samples)
    starts = borders_in(inside, within, partial(walk_sizes, inside, span.num_samples, num_sizes=num_leaves))

    def crcs() -> NDArray[np.uint32]:
        offsets = np.asarray(starts, dtype=np.int64)
        return _crcs(offsets + known.begin, np.searchsorted(offsets, borders))

    return CutRecords(inside, starts, within, decode=decode, crcs=crcs)


def inflated(data: bytes) -> bytearray:
    """Decompress an item that is a frame of its own.

    Raises `BadRecordError` if it is not a frame, or holds more than 1 GiB.
    """
    try:
        return decompress("zst", data, limit_bytes=_ITEM_LIMIT_BYTES)
    except CodecError as error:
        msg = f"these {len(data)} bytes cannot be decompressed (zstd): {error}"
        raise BadRecordError(msg, byte=error.member_byte) from None


def frame_ends(buffer: Buffer, num_frames: int) -> list[int]:
    """Return the borders of zstd frames, by the sizes of their blocks; fewer if a block ends outside the buffer.

    See RFC 8878, section 3.1.1.
    """
    view = memoryview(buffer)
    ends = [0]
    while len(ends) <= num_frames:
        at = ends[-1]
        if bytes(view[at : at + 4]) != _ZSTD_MAGIC or at + 5 > len(view):
            break
        about = view[at + 4]
        is_single = about >> 5 & 1
        size_bytes = (is_single, 2, 4, 8)[about >> 6]
        at += 5 + (not is_single) + (0, 1, 2, 4)[about & 3] + size_bytes
        is_last = False
        while not is_last and at + 3 <= len(view):
            block = int.from_bytes(view[at : at + 3], "little")
            is_last = bool(block & 1)
            at += 3 + (1 if block >> 1 & 3 == 1 else block >> 3)  # a block of one repeated byte stores it once
        at += 4 * (about >> 2 & 1)
        if not is_last or at > len(view):
            break
        ends.append(at)
    return ends


def _check(
    offsets: NDArray[np.int64], frames: NDArray[np.void], origin: int, num_bytes: int, num_leaves: int, shard: str
) -> None:
    """Check that items, and frames, follow each other up to the end of the chunk."""
    ends = np.append(0, np.cumsum(frames["num_items"].astype(np.int64)))
    borders = origin + np.append(0, np.cumsum(frames["packed_bytes"].astype(np.int64)))
    items_fit = offsets[0] == 0 and bool((np.diff(offsets) >= 4 * num_leaves).all())
    frames_fit = (
        ends[-1] == len(offsets) - 1
        and borders[-1] == num_bytes
        and bool((frames["num_items"] > 0).all())
        and np.array_equal(frames["first_item"], ends[:-1])
        and np.array_equal(frames["byte"], borders[:-1])
        and np.array_equal(frames["content_bytes"], np.diff(offsets[ends]))
    )
    if not items_fit or not frames_fit:
        what = "frames" if items_fit else "items"
        msg = f"the {what} in the table of this chunk have gaps, or do not end with the chunk at byte {num_bytes}"
        raise ShardError(msg, shard=shard, byte=_PREFIX_BYTES, hint="the chunk is cut short or damaged: copy it again")


def _crcs(offsets: NDArray[np.int64], before: NDArray[np.int64]) -> NDArray[np.uint32]:
    words = offsets.astype("<u4")
    pairs = zip(before[:-1].tolist(), before[1:].tolist(), strict=True)
    return np.array([crc32(words[first : end + 1].tobytes()) for first, end in pairs], dtype=np.uint32)
