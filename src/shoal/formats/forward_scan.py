"""Scans that go forward through bytes whose end they need not know: of a shard, or of what one is decompressed to.

Such a format is a `ForwardFormat`. Its scan asks `Content` for one range behind the other and hands what it finds to
`FoundSamples`, which need not keep all of it.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from shoal.formats.shard_format import Buffer, Format, ReadBytes, ShardScan

__all__ = [
    "About",
    "Content",
    "ForwardFormat",
    "FoundSamples",
    "SampleBorders",
    "StoredContent",
    "forward_borders",
    "forward_scan",
]


class Content(Protocol):
    """Bytes that are read forward."""

    @property
    def num_bytes(self) -> int | None:
        """All of them; None as long as no read has come to the end."""
        ...

    def read(self, first_byte: int, end_byte: int, /) -> Buffer:
        """The bytes ``[first_byte, end_byte)``, fewer only at the end; no range begins before the one that was last."""
        ...


class StoredContent:
    """The bytes of a shard, of which all is known and any can be read."""

    __slots__ = ("_read", "num_bytes")

    def __init__(self, read: ReadBytes, num_bytes: int) -> None:
        self._read, self.num_bytes = read, num_bytes

    def read(self, first_byte: int, end_byte: int, /) -> Buffer:
        """As `Content.read`."""
        end_byte = min(end_byte, self.num_bytes)
        return self._read(first_byte, end_byte) if first_byte < end_byte else b""


class FoundSamples(Protocol):
    """Takes where samples lie, as a scan finds them."""

    def add(self, borders: NDArray[np.int64], crcs: NDArray[np.uint32], /) -> None:
        """The next borders, ascending, and the CRCs of the samples that end at these.

        The first border of all is where the first sample begins, each of the others where one ends.
        """
        ...


class SampleBorders:
    """All borders of a shard, 8 bytes a sample, and the CRCs, 4 more, unless they are not wanted."""

    __slots__ = ("_borders", "_crcs", "_keeps_crcs")

    def __init__(self, *, with_crcs: bool = True) -> None:
        self._borders, self._crcs, self._keeps_crcs = array("q"), array("I"), with_crcs

    def add(self, borders: NDArray[np.int64], crcs: NDArray[np.uint32], /) -> None:
        """As `FoundSamples.add`."""
        if len(borders):
            self._borders.frombytes(np.ascontiguousarray(borders, dtype=np.int64).data.cast("B"))
        if self._keeps_crcs and len(crcs):
            self._crcs.frombytes(np.ascontiguousarray(crcs, dtype=np.uint32).data.cast("B"))

    def starts(self) -> NDArray[np.int64]:
        """Where samples begin and the last one ends, shape (num_samples + 1,): [0] where there are none."""
        return np.frombuffer(self._borders, dtype=np.int64) if self._borders else np.zeros(1, dtype=np.int64)

    def crcs(self) -> NDArray[np.uint32]:
        """Of each sample; shape (num_samples,)."""
        return np.frombuffer(self._crcs, dtype=np.uint32) if self._crcs else np.zeros(0, dtype=np.uint32)


class About(NamedTuple):
    """What a scan found of a shard besides its samples: ``head`` and ``notes`` of `ShardScan`."""

    head: Mapping[str, Any] = {}
    notes: Mapping[str, int] = {}


@runtime_checkable
class ForwardFormat(Protocol):
    """A format whose scan only goes forward."""

    def scan_forward(self, content: Content, found: FoundSamples, *, shard: str) -> About:
        """Find the samples of all of the content; raises what `Format.scan` does."""
        ...


def forward_scan(format: ForwardFormat, read: ReadBytes, num_bytes: int, *, shard: str) -> ShardScan:  # noqa: A002
    """`Format.scan` of such a format; memory 12 bytes a sample beyond what its scan takes."""
    found = SampleBorders()
    head, notes = format.scan_forward(StoredContent(read, num_bytes), found, shard=shard)
    return ShardScan(found.starts(), found.crcs(), head=head, notes=notes)


def forward_borders(format: Format, read: ReadBytes, num_bytes: int, *, shard: str) -> NDArray[np.int64]:  # noqa: A002
    """``sample_starts`` of a scan alone, by which samples that are at hand are told apart; may be written to.

    Of pieces, which are no samples, none.
    """
    if not isinstance(format, ForwardFormat):
        scan = format.scan(read, num_bytes, shard=shard)
        return np.zeros(1, dtype=np.int64) if scan.piece_samples is not None else scan.sample_starts.copy()
    found = SampleBorders(with_crcs=False)
    format.scan_forward(StoredContent(read, num_bytes), found, shard=shard)
    return found.starts()
