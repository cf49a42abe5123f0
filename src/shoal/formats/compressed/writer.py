"""Shards compressed as a whole while they are written, with fixed settings."""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol
from zlib import crc32

import numpy as np

from shoal.errors import UsageError
from shoal.formats.shard_format import Sample
from shoal.formats.writing.encoder import EncodedRecord, Encoder, ShardEncoder, WrittenShard
from shoal.hints import pip_install
from shoal.index.shard_scan import Buffer, ShardScan

_ZSTD_LEVEL = 3


class _Compressor(Protocol):
    def compress(self, data: bytes, /) -> bytes: ...

    def flush(self) -> bytes: ...


class CompressedEncoder:
    """The shards of another format of rows, compressed with gzip, bzip2, xz or zstd."""

    def __init__(self, inner: Encoder, codec: str) -> None:
        if codec not in COMPRESSORS:
            msg = f"shards are not written compressed with {codec!r}"
            raise UsageError(msg, hint=f"{', '.join(COMPRESSORS)} are written")
        self.inner, self.codec = inner, codec
        self.name = f"{inner.name}.{codec}"
        self.suffix = f"{inner.suffix}.{codec}"

    def record(self, sample: Sample) -> EncodedRecord:
        """Encode a sample in the inner format."""
        return self.inner.record(sample)

    def begin(self) -> ShardEncoder:
        """Begin a new shard."""
        return _CompressedShard(self.inner.begin(), COMPRESSORS[self.codec]())


class _CompressedShard:
    """One compressed shard being written; its size is the size of the content, the only one known in advance."""

    def __init__(self, inner: ShardEncoder, compressor: _Compressor) -> None:
        self._inner, self._compressor = inner, compressor
        self._stored_bytes = self._crc = 0

    @property
    def num_samples(self) -> int:
        return self._inner.num_samples

    @property
    def num_bytes(self) -> int:
        return self._inner.num_bytes

    @property
    def held_bytes(self) -> int:
        return self._inner.held_bytes

    def add(self, record: EncodedRecord) -> Sequence[Buffer]:
        return self._counted(map(self._compressor.compress, map(bytes, self._inner.add(record))))

    def finish(self) -> Sequence[Buffer]:
        rest = self._counted(map(self._compressor.compress, map(bytes, self._inner.finish())))
        return rest + self._counted([self._compressor.flush()])

    def written(self) -> WrittenShard:
        inner = self._inner.written()
        scan = ShardScan(np.zeros(1, np.int64), np.zeros(0, np.uint32), notes=inner.scan.notes)
        if inner.scan.num_samples:
            scan = ShardScan(
                np.array([0, self._stored_bytes], dtype=np.int64),
                np.array([self._crc], dtype=np.uint32),
                head={"inner": dict(inner.scan.head)},
                notes=inner.scan.notes,
                piece_samples=np.array([inner.scan.num_samples], dtype=np.int64),
                piece_decoded_bytes=np.array([inner.num_bytes], dtype=np.int64),
            )
        crcs = np.array([self._crc] * len(scan.layout_crcs), dtype=np.uint32)
        return WrittenShard(scan, self._stored_bytes, piece_crcs=crcs, frame_crc=0)  # there is nothing around the piece

    def _counted(self, parts: Iterable[bytes]) -> list[Buffer]:
        compressed: list[Buffer] = []
        for part in filter(None, parts):
            self._crc = crc32(part, self._crc)
            self._stored_bytes += len(part)
            compressed.append(part)
        return compressed


def _gzip() -> _Compressor:
    return zlib.compressobj(level=6, wbits=31)  # its header has no file name and no time


def _zstd() -> Any:
    try:
        import zstandard  # noqa: PLC0415  # optional
    except ImportError:
        msg = "shards compressed with zstd need zstandard, which is not installed"
        raise UsageError(msg, hint=pip_install("zstandard")) from None
    return zstandard.ZstdCompressor(level=_ZSTD_LEVEL, write_checksum=True).compressobj()


COMPRESSORS: Mapping[str, Callable[[], _Compressor]] = MappingProxyType(
    {"gz": _gzip, "bz2": bz2.BZ2Compressor, "xz": lzma.LZMACompressor, "zst": _zstd}
)
