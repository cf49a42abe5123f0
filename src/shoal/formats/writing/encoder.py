"""The interface of a format's writing side: the bytes of samples, and their entries in an index.

The counterpart of `shoal.formats.shard_format`. An encoder is pure: it turns samples into bytes in the order of the
shard, and equal samples into equal bytes. It does not know where the bytes are written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.formats.shard_format import Sample
from shoal.formats.writing.joined_checksums import joined_crcs
from shoal.index.cutting import cut_borders
from shoal.index.shard_scan import Buffer, ShardScan


class EncodedRecord(NamedTuple):
    """One encoded sample.

    ``parts`` are its bytes, one buffer after another, ``num_bytes`` their total; ``layout_crc`` is its value in
    `ShardScan.layout_crcs`. Formats of columns keep the sample in ``row`` instead, with its approximate size in memory
    as ``num_bytes``.
    """

    parts: Sequence[Buffer]
    num_bytes: int
    layout_crc: int = 0
    row: Sample | None = None


@dataclass(frozen=True, slots=True, eq=False)
class RecordBlock:
    """Consecutive records of a format of rows; all arrays have shape (num_records,).

    ``data`` holds their bytes, ``num_bytes`` their sizes, ``layout_crcs`` their values in `ShardScan.layout_crcs`,
    ``crcs`` the CRC-32 of each record. ``columns`` has values for the index, by their paths in a sample.
    """

    data: Buffer
    num_bytes: NDArray[np.int64]
    layout_crcs: NDArray[np.uint32]
    crcs: NDArray[np.uint32]
    columns: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)

    @property
    def num_records(self) -> int:
        """Number of records."""
        return len(self.num_bytes)


@dataclass(frozen=True, slots=True, eq=False)
class WrittenShard:
    """A description of a written shard of ``num_bytes``, obtained without reading it.

    ``scan`` equals the result of `Format.scan`. ``record_crcs``, shape (num_samples,), uint32, has the CRC-32 of each
    sample, if samples have bytes of their own; else ``piece_crcs``, shape (num_pieces,). ``frame_crc`` is the CRC-32 of
    all bytes before the first sample and after the last; None if unknown.
    """

    scan: ShardScan
    num_bytes: int
    record_crcs: NDArray[np.uint32] | None = None
    piece_crcs: NDArray[np.uint32] | None = None
    frame_crc: int | None = None

    def extent_crcs(self, *, extent_bytes: int) -> NDArray[np.uint32]:
        """Return the CRC-32 of each extent, as cut by `cut_extents`; shape (num_extents,)."""
        if self.piece_crcs is not None:
            return self.piece_crcs
        if self.record_crcs is None or not len(self.record_crcs):
            return np.zeros(0, dtype=np.uint32)
        cuts = cut_borders(self.scan, extent_bytes=extent_bytes)
        return joined_crcs(self.record_crcs, np.diff(self.scan.sample_starts), cuts)


class ShardEncoder(Protocol):
    """The encoder of a single shard."""

    @property
    def num_samples(self) -> int:
        """Samples added so far."""
        ...

    @property
    def num_bytes(self) -> int:
        """Approximate size of the shard if it ended now; exact for formats of rows."""
        ...

    @property
    def held_bytes(self) -> int:
        """Approximate number of added bytes that are still in memory."""
        ...

    def add(self, record: EncodedRecord) -> Sequence[Buffer]:
        """Add a record; return bytes that are complete."""
        ...

    def finish(self) -> Sequence[Buffer]:
        """End the shard; return the rest of its bytes."""
        ...

    def written(self) -> WrittenShard:
        """Return the description of the finished shard."""
        ...


class Encoder(Protocol):
    """A format with its options; creates any number of shards. Can be pickled."""

    name: str
    suffix: str

    def record(self, sample: Sample) -> EncodedRecord:
        """Encode a sample in this format; raises `UsageError` if the format cannot hold it."""
        ...

    def begin(self) -> ShardEncoder:
        """Begin a new shard."""
        ...


class AppendedShard:
    """A `ShardEncoder` of consecutive records, for all formats of rows but MDS.

    ``tail`` ends a shard, and ``head`` is its `ShardScan.head`.
    """

    held_bytes = 0  # all bytes were returned

    def __init__(self, *, tail: bytes = b"", head: Mapping[str, Any] | None = None) -> None:
        self.head: dict[str, Any] = dict(head or {})
        self._tail = tail
        self._position = 0
        self._sizes: list[int] = []
        self._layout_crcs: list[int] = []
        self._crcs: list[int] = []

    @property
    def num_samples(self) -> int:
        """Samples added so far."""
        return len(self._sizes)

    @property
    def num_bytes(self) -> int:
        """Size of the shard if it ended now."""
        return self._position + len(self._tail)

    def add(self, record: EncodedRecord) -> Sequence[Buffer]:
        """Add a record; return its bytes."""
        parts, num_bytes, layout_crc, _ = record
        crc = 0
        for part in parts:
            crc = crc32(part, crc)
        self._crcs.append(crc)
        self._layout_crcs.append(layout_crc)
        self._position += num_bytes
        self._sizes.append(num_bytes)
        return parts

    def add_block(self, block: RecordBlock) -> Sequence[Buffer]:
        """Add many records; return their bytes."""
        self._crcs += block.crcs.tolist()
        self._layout_crcs += block.layout_crcs.tolist()
        self._sizes += block.num_bytes.tolist()
        self._position += len(block.data)
        return [block.data]

    def finish(self) -> Sequence[Buffer]:
        """End the shard; return its tail."""
        return [self._tail] if self._tail else []

    def written(self) -> WrittenShard:
        """Return the description of the shard."""
        starts = np.cumsum([0, *self._sizes], dtype=np.int64)
        scan = ShardScan(starts, np.array(self._layout_crcs, dtype=np.uint32), head=self.head)
        crcs = np.array(self._crcs, dtype=np.uint32)
        return WrittenShard(scan, self.num_bytes, record_crcs=crcs, frame_crc=crc32(self._tail))


def check_names(sample: Mapping[str, Any]) -> None:
    """Raise `UsageError` if the name of a field is not text."""
    names: Iterable[object] = sample  # the declared type promises text
    for name in names:
        if not isinstance(name, str):
            msg = f"the name of a field is {name!r} of type {type(name).__name__}"
            raise UsageError(msg, hint="names of fields are text")
