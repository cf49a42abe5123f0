"""Shards that are compressed as a whole: read whole, decompressed in memory, and then like any other.

Nothing inside such a shard can be read alone, so it is one piece: one extent, one chunk, one read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from shoal.errors import ShardError
from shoal.shards.codecs import CODEC_OF_SUFFIX, CodecError, decompress
from shoal.shards.protocol import Buffer, Format, ReadBytes, Records, Sample, ShardScan, Stretch

__all__ = ["Compressed", "CompressedRecords"]

_LIMIT_BYTES = 4 << 30
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

        The layout CRC is that of the compressed bytes.

        Raises
        ------
        ShardError
            It cannot be decompressed, or what is inside is none of the format.
        """
        stored = read(0, num_bytes)
        inside = self._decompressed(stored, shard)
        found = self.inner.scan(_reading(inside), len(inside), shard=shard)
        if not found.num_samples:
            return ShardScan(np.zeros(1, np.int64), np.zeros(0, np.uint32), notes=found.notes)
        return ShardScan(
            np.array([0, num_bytes], dtype=np.int64),
            np.array([crc32(stored)], dtype=np.uint32),
            head={"inner": dict(found.head)},
            notes=found.notes,
            piece_samples=np.array([found.num_samples], dtype=np.int64),
            piece_decoded_bytes=np.array([len(inside)], dtype=np.int64),
        )

    def parse(self, buffer: Buffer, stretch: Stretch) -> CompressedRecords:
        """Decompress a shard and open what is inside.

        Raises
        ------
        ShardError
            It cannot be decompressed, or does not hold ``num_samples`` samples.
        """
        shard = stretch.shard
        inside = self._decompressed(buffer, shard)
        found = self.inner.scan(_reading(inside), len(inside), shard=shard)
        if found.num_samples != stretch.num_samples or found.piece_samples is not None:
            msg = f"the index says {stretch.num_samples} samples in this shard, and {found.num_samples} are inside"
            raise ShardError(msg, shard=shard, hint=_HINT)
        begin, end = int(found.sample_starts[0]), int(found.sample_starts[-1])
        starts = (found.sample_starts - begin).tolist()
        within = Stretch(shard, begin, stretch.num_samples, starts, stretch.head.get("inner", {}))
        return CompressedRecords(self.inner.parse(memoryview(inside)[begin:end], within), crc32(buffer))

    def _decompressed(self, stored: Buffer, shard: str) -> bytearray:
        if not stored:  # a shard of no bytes has no samples, whatever its codec would write for that
            return bytearray()
        try:
            return decompress(self.codec, stored, limit_bytes=self.limit_bytes)
        except CodecError as error:
            msg = f"this shard of {len(stored)} bytes cannot be decompressed ({self.codec}): {error}"
            raise ShardError(msg, shard=shard, hint=_HINT) from None


class CompressedRecords:
    """The samples of a shard that was decompressed, handed out by number."""

    __slots__ = ("_crc", "_records")

    def __init__(self, records: Records, crc: int) -> None:
        self._records, self._crc = records, crc

    def __len__(self) -> int:
        return len(self._records)

    def layout_crcs(self) -> NDArray[np.uint32]:
        """The CRC of the piece, as `Compressed.scan` gives it; shape (1,)."""
        return np.array([self._crc], dtype=np.uint32)

    def sample(self, number: int) -> Sample:
        """Sample ``number`` of the shard."""
        return self._records.sample(number)


def _reading(inside: bytearray) -> ReadBytes:
    view = memoryview(inside)

    def read(first_byte: int, end_byte: int, /) -> Buffer:
        return bytes(view[first_byte:end_byte])

    return read
