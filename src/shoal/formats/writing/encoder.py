"""What the writing side of a format must do: bytes of samples, and what an index needs to know of them, at once.

The other direction of `shoal.formats.shard_format`. An encoder is pure: samples go in, bytes come out, in the order
in which they are to be written, and equal samples give equal bytes. Where they go is not its question.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.formats.shard_format import Buffer, Sample, ShardScan
from shoal.formats.writing.joined_checksums import joined_crcs
from shoal.formats.writing.record_block import RecordBlock
from shoal.index.cutting import cut_borders

__all__ = ["AppendedShard", "EncodedRecord", "Encoder", "ShardEncoder", "WrittenShard", "check_names", "extent_crcs"]


class EncodedRecord(NamedTuple):
    """One sample as a shard will hold it.

    ``parts`` are its bytes, one buffer after the other, ``num_bytes`` how many these are; ``layout_crc`` is what
    `ShardScan.layout_crcs` will say of it. Formats of columns keep the sample itself in ``row`` instead, and
    ``num_bytes`` says about how many bytes it has in memory.
    """

    parts: Sequence[Buffer]
    num_bytes: int
    layout_crc: int = 0
    row: Sample | None = None


@dataclass(frozen=True, slots=True, eq=False)
class WrittenShard:
    """What is known of a shard that was written, without reading it.

    ``scan`` is what `Format.scan` finds in its ``num_bytes`` bytes. ``record_crcs``, shape (num_samples,), uint32, are
    the CRC-32 of the bytes of each sample, where each has bytes of its own; else ``piece_crcs``, shape (num_pieces,).
    ``frame_crc`` is that of all bytes before the first sample and behind the last; None where it is not known.
    """

    scan: ShardScan
    num_bytes: int
    record_crcs: NDArray[np.uint32] | None = None
    piece_crcs: NDArray[np.uint32] | None = None
    frame_crc: int | None = None


class ShardEncoder(Protocol):
    """One shard in the making; used once."""

    @property
    def num_samples(self) -> int:
        """Samples added so far."""
        ...

    @property
    def num_bytes(self) -> int:
        """About how many bytes the shard would have if it ended now; exactly for formats of rows."""
        ...

    @property
    def held_bytes(self) -> int:
        """About how many bytes of what was added are still in memory."""
        ...

    def add(self, record: EncodedRecord) -> Sequence[Buffer]:
        """Add a record; the bytes that can be written now."""
        ...

    def finish(self) -> Sequence[Buffer]:
        """End the shard; the rest of its bytes."""
        ...

    def written(self) -> WrittenShard:
        """What is known of the shard, once it is finished."""
        ...


class Encoder(Protocol):
    """One format, with its options; makes as many shards as are wanted. Can be pickled."""

    name: str
    suffix: str

    def record(self, sample: Sample) -> EncodedRecord:
        """A sample in the form of this format; raises `UsageError` where the format cannot hold it."""
        ...

    def begin(self) -> ShardEncoder:
        """A new shard."""
        ...


class AppendedShard:
    """A shard of records one after the other, from its first byte on: what all formats of rows but MDS are.

    ``tail`` ends a shard, and ``head`` is what `ShardScan.head` says of it.
    """

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
        """How many bytes the shard would have if it ended now."""
        return self._position + len(self._tail)

    @property
    def held_bytes(self) -> int:
        """None: all bytes were given away."""
        return 0

    def add(self, record: EncodedRecord) -> Sequence[Buffer]:
        """Add a record; its bytes."""
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
        """Add many records; their bytes."""
        self._crcs += block.crcs.tolist()
        self._layout_crcs += block.layout_crcs.tolist()
        self._sizes += block.num_bytes.tolist()
        self._position += len(block.data)
        return [block.data]

    def finish(self) -> Sequence[Buffer]:
        """End the shard."""
        return [self._tail] if self._tail else []

    def written(self) -> WrittenShard:
        """What is known of the shard."""
        starts = np.cumsum([0, *self._sizes], dtype=np.int64)
        scan = ShardScan(starts, np.array(self._layout_crcs, dtype=np.uint32), head=self.head)
        crcs = np.array(self._crcs, dtype=np.uint32)
        return WrittenShard(scan, self.num_bytes, record_crcs=crcs, frame_crc=crc32(self._tail))


def extent_crcs(written: WrittenShard, *, extent_bytes: int) -> NDArray[np.uint32]:
    """CRC-32 of the bytes of each extent into which `cut_extents` cuts the shard; shape (num_extents,)."""
    if written.piece_crcs is not None:
        return written.piece_crcs
    if written.record_crcs is None or not len(written.record_crcs):
        return np.zeros(0, dtype=np.uint32)
    cuts = cut_borders(written.scan, extent_bytes=extent_bytes)
    return joined_crcs(written.record_crcs, np.diff(written.scan.sample_starts), cuts)


def check_names(sample: Mapping[str, Any]) -> None:
    """Make sure that the fields of a sample are named by text.

    Raises
    ------
    UsageError
        One is named by something else.
    """
    names: Iterable[object] = sample  # whatever they are declared to be
    for name in names:
        if not isinstance(name, str):
            msg = f"a field of a sample is named by {name!r} of type {type(name).__name__}"
            raise UsageError(msg, hint="names of fields are text")
