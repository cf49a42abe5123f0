"""Shards that are compressed: read in pieces, decompressed in memory, and then like any other.

What was compressed as one can only be read as one. A shard made of several members or frames, as ``zstd`` with a frame
size, ``bgzip`` or ``cat`` make them, is cut where one of them ends with a sample; others are one piece: one extent, one
chunk, one read.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from shoal.errors import ShardError
from shoal.shards.codecs import CODEC_OF_SUFFIX, CodecError, Member, decompress_members, decompress_parts
from shoal.shards.index.build import EXTENT_BYTES
from shoal.shards.protocol import Aside, Buffer, Format, ReadBytes, Records, Sample, ShardScan, Spilled, Stretch

__all__ = ["Compressed", "CompressedRecords"]

_LIMIT_BYTES = 4 << 30
_AT_ONCE_BYTES = 4 << 20  # of compressed bytes, where they come in parts
_HINT = "the shard is damaged, or not the one that was indexed: copy it again, or index it again"


class Compressed:
    """The shards of another format, compressed with gzip, bzip2, xz, zstd, brotli or snappy.

    A shard that holds more than ``limit_bytes`` is refused before it fills the memory. Errors name bytes of what is
    inside.
    """

    def __init__(self, inner: Format, codec: str, *, limit_bytes: int = _LIMIT_BYTES) -> None:
        self.inner, self.codec, self.limit_bytes = inner, codec, limit_bytes
        self.name = f"{inner.name}.{codec}"
        endings = [ending for ending, meant in CODEC_OF_SUFFIX.items() if meant == codec]
        self.suffixes = tuple(suffix + ending for suffix in inner.suffixes for ending in endings)
        if inner.name == "tar" and codec == "gz":
            self.suffixes += (".tgz",)

    @property
    def options(self) -> Mapping[str, Any]:
        """Those of what is inside."""
        return getattr(self.inner, "options", {})

    def scan(self, read: ReadBytes, num_bytes: int, *, shard: str) -> ShardScan:
        """Decompress the shard and find the samples inside; memory O(both sizes of it).

        The layout CRC of a piece is that of its compressed bytes.

        Raises
        ------
        ShardError
            It cannot be decompressed, or what is inside is none of the format.
        """
        stored = read(0, num_bytes)
        inside, members = self._decompressed(stored, shard, self.limit_bytes)
        found = self.inner.scan(_reading(inside), len(inside), shard=shard)
        if not found.num_samples:
            return ShardScan(np.zeros(1, np.int64), np.zeros(0, np.uint32), notes=found.notes)
        pieces = _pieces(found, members, num_bytes)
        view = memoryview(stored)
        crcs = [crc32(view[first:end]) for first, end in pairwise(pieces.starts.tolist())]
        return ShardScan(
            pieces.starts,
            np.array(crcs, dtype=np.uint32),
            head={"inner": dict(found.head)} | ({} if len(crcs) == 1 else _packed(pieces, found)),
            notes=found.notes,
            piece_samples=pieces.num_samples,
            piece_decoded_bytes=np.diff(pieces.content_starts),
        )

    def parse(self, buffer: Buffer, stretch: Stretch) -> CompressedRecords:
        """Decompress a shard, or some consecutive pieces of one, and open what is inside.

        Raises
        ------
        ShardError
            It cannot be decompressed, or does not hold so many samples.
        """
        if "pieces" in stretch.head:
            return self._parse_pieces(buffer, stretch)
        shard = stretch.shard
        inside, _ = self._decompressed(buffer, shard, self.limit_bytes)
        found = self.inner.scan(_reading(inside), len(inside), shard=shard)
        _check_samples(found, stretch)
        begin, end = int(found.sample_starts[0]), int(found.sample_starts[-1])
        starts = (found.sample_starts - begin).tolist()
        within = Stretch(shard, begin, stretch.num_samples, starts, stretch.head.get("inner", {}))
        return CompressedRecords(self.inner.parse(memoryview(inside)[begin:end], within), [crc32(buffer)])

    def _parse_pieces(self, buffer: Buffer, stretch: Stretch) -> CompressedRecords:
        held = _held(stretch, stretch.first_byte + len(buffer))
        begin, low, high = held.begin, held.low, held.high
        inside, _ = self._decompressed(buffer, stretch.shard, held.end - begin, stretch.first_byte)
        _check_size(len(inside), held, stretch)
        within = Stretch(stretch.shard, low, stretch.num_samples, None, stretch.head.get("inner", {}))
        view = memoryview(buffer)
        crcs = [crc32(view[one:other]) for one, other in pairwise(held.borders)]
        return CompressedRecords(self.inner.parse(memoryview(inside)[low - begin : high - begin], within), crcs)

    @property
    def spilled_as(self) -> str:
        """What is inside lies there as it was before it was compressed."""
        return self.name

    def spill(self, read: ReadBytes, end_byte: int, stretch: Stretch, aside: Aside) -> Spilled:
        """Decompress some consecutive pieces, or a whole shard, to another place; each sample is a part.

        Memory: some MiB, and what `scan` of the format inside holds, 20 bytes a sample; of snappy, all of it.

        Raises
        ------
        ShardError
            As `parse` does.
        """
        shard, first_byte = stretch.shard, stretch.first_byte
        held = _held(stretch, end_byte) if "pieces" in stretch.head else None
        limit_bytes = self.limit_bytes if held is None else held.end - held.begin
        steps = range(first_byte, end_byte, _AT_ONCE_BYTES)
        stored = (read(step, min(step + _AT_ONCE_BYTES, end_byte)) for step in steps)
        num_bytes = 0
        try:
            for piece in decompress_parts(self.codec, stored, limit_bytes=limit_bytes):
                aside.append(piece)
                num_bytes += len(piece)
        except CodecError as error:
            raise self._undecodable(error, end_byte - first_byte, shard, first_byte if held else None) from None
        begin = low = 0
        if held is not None:
            _check_size(num_bytes, held, stretch)
            begin, low, num_bytes = held.begin, held.low - held.begin, held.high - held.begin

        def inside(first: int, end: int, /) -> bytes:
            return aside.read(low + first, low + end)

        found = self.inner.scan(inside, num_bytes - low, shard=shard)
        _check_samples(found, stretch)
        head = {"inner": dict(stretch.head.get("inner", {})), "begin": begin}
        return Spilled(found.sample_starts + low, stretch.num_samples, 1, head)

    def parse_part(self, data: bytes, stretch: Stretch) -> Records:
        """Open one sample of what was spilled."""
        head = stretch.head
        first_byte = int(head["begin"]) + stretch.first_byte
        within = Stretch(stretch.shard, first_byte, stretch.num_samples, [0, len(data)], head["inner"])
        return self.inner.parse(data, within)

    def _decompressed(
        self, stored: Buffer, shard: str, limit_bytes: int, first_byte: int | None = None
    ) -> tuple[bytearray, list[Member]]:
        if not stored:  # a shard of no bytes has no samples, whatever its codec would write for that
            return bytearray(), []
        try:
            return decompress_members(self.codec, stored, limit_bytes=limit_bytes)
        except CodecError as error:
            raise self._undecodable(error, len(stored), shard, first_byte) from None

    def _undecodable(self, error: CodecError, num_bytes: int, shard: str, first_byte: int | None) -> ShardError:
        msg = f"these {num_bytes} bytes cannot be decompressed ({self.codec}): {error}"
        return ShardError(msg, shard=shard, byte=first_byte, hint=_HINT)


class _Held(NamedTuple):
    """What pieces hold: bytes ``[begin, end)`` of what is inside, and in ``[low, high)`` of these the samples.

    ``borders`` are where the pieces begin and the last one ends, in the bytes that were read.
    """

    begin: int
    end: int
    low: int
    high: int
    borders: list[int]


def _held(stretch: Stretch, end_byte: int) -> _Held:
    """What the pieces of a stretch hold, by the head of their shard."""
    head, first_byte = stretch.head, stretch.first_byte
    starts, content_starts = _unpacked(head["pieces"])
    first, end = (int(np.searchsorted(starts, byte)) for byte in (first_byte, end_byte))
    if end >= len(starts) or starts[first] != first_byte or starts[end] != end_byte or first == end:
        msg = f"by the index no pieces of this shard lie at bytes [{first_byte}, {end_byte})"
        raise ShardError(msg, shard=stretch.shard, byte=first_byte, hint=_HINT)
    begin, stop = int(content_starts[first]), int(content_starts[end])
    borders = [int(byte) - first_byte for byte in starts[first : end + 1]]
    # What precedes the first sample of a shard and follows its last one belongs to none.
    return _Held(begin, stop, max(begin, int(head["begin"])), min(stop, int(head["end"])), borders)


def _check_size(num_bytes: int, held: _Held, stretch: Stretch) -> None:
    if num_bytes != held.end - held.begin:
        msg = f"these bytes hold {num_bytes}, and by the index {held.end - held.begin}"
        raise ShardError(msg, shard=stretch.shard, byte=stretch.first_byte, hint=_HINT)


def _check_samples(found: ShardScan, stretch: Stretch) -> None:
    if found.num_samples != stretch.num_samples or found.piece_samples is not None:
        msg = f"the index says {stretch.num_samples} samples in this shard, and {found.num_samples} are inside"
        raise ShardError(msg, shard=stretch.shard, hint=_HINT)


class _Pieces(NamedTuple):
    """The pieces of a shard: borders in its bytes and in what they hold, shape (num_pieces + 1,), and their samples."""

    starts: NDArray[np.int64]
    content_starts: NDArray[np.int64]
    num_samples: NDArray[np.int64]


def _pieces(found: ShardScan, members: Sequence[Member], num_bytes: int) -> _Pieces:
    """Cut where a member ends with a sample, into pieces that hold 64 KiB or more."""
    # What holds for all that follows would have to be known of each piece.
    members = members if "pax_globals" not in found.head else members[-1:]
    ends = np.array([member.content_end_byte for member in members], dtype=np.int64)
    samples = np.searchsorted(found.sample_starts, ends)
    at_sample = found.sample_starts[np.minimum(samples, len(found.sample_starts) - 1)] == ends
    cuts, content_cuts, counts = [0], [0], [0]
    for place in np.flatnonzero(at_sample[:-1]).tolist():
        num_before, content_end = int(samples[place]), int(ends[place])
        if content_end - content_cuts[-1] >= EXTENT_BYTES and counts[-1] < num_before < found.num_samples:
            cuts.append(members[place].end_byte)
            content_cuts.append(content_end)
            counts.append(num_before)
    starts = np.array([*cuts, num_bytes], dtype=np.int64)
    content_starts = np.array([*content_cuts, int(ends[-1])], dtype=np.int64)
    num_samples = np.array([*counts[1:], found.num_samples], dtype=np.int64) - np.array(counts, dtype=np.int64)
    return _Pieces(starts, content_starts, num_samples)


def _packed(pieces: _Pieces, found: ShardScan) -> dict[str, Any]:
    """The pieces as a head keeps them: about 10 bytes for each."""
    table = np.stack([np.diff(pieces.starts), np.diff(pieces.content_starts)]).astype("<i8")
    return {
        "pieces": base64.b64encode(zlib.compress(table.tobytes())).decode(),
        "begin": int(found.sample_starts[0]),
        "end": int(found.sample_starts[-1]),
    }


@lru_cache(maxsize=256)
def _unpacked(text: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where pieces begin, in a shard and in what it holds; shape (num_pieces + 1,)."""
    table = np.frombuffer(zlib.decompress(base64.b64decode(text)), dtype="<i8").reshape(2, -1)
    starts = np.zeros((2, table.shape[1] + 1), dtype=np.int64)
    np.cumsum(table, axis=1, out=starts[:, 1:])
    return starts[0], starts[1]


class CompressedRecords:
    """The samples of a shard that was decompressed, handed out by number."""

    __slots__ = ("_crcs", "_records")

    def __init__(self, records: Records, crcs: Sequence[int]) -> None:
        self._records, self._crcs = records, crcs

    def __len__(self) -> int:
        return len(self._records)

    def layout_crcs(self) -> NDArray[np.uint32]:
        """The CRC of each piece, as `Compressed.scan` gives it; shape (num_pieces,)."""
        return np.array(self._crcs, dtype=np.uint32)

    def sample(self, number: int) -> Sample:
        """Sample ``number`` of the shard."""
        return self._records.sample(number)


def _reading(inside: bytearray) -> ReadBytes:
    view = memoryview(inside)

    def read(first_byte: int, end_byte: int, /) -> Buffer:
        return bytes(view[first_byte:end_byte])

    return read
