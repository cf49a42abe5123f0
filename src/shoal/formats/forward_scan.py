"""Forward-only scans of content whose end need not be known: of a shard, or of its decompressed bytes.

A format with such a scan is a `ForwardFormat`. Its scan reads ascending ranges from `Content` and passes what it finds
to `FoundSamples`, which need not keep all of it.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from shoal.formats.shard_format import Format, ReadBytes
from shoal.index.shard_scan import Buffer, ShardScan


class Content(Protocol):
    """Bytes that are read in ascending order."""

    @property
    def num_bytes(self) -> int | None:
        """Size of the content; None until a read has reached its end."""
        ...

    def read(self, first_byte: int, end_byte: int, /) -> Buffer:
        """Return the bytes ``[first_byte, end_byte)``, fewer only at the end; ranges must begin in ascending order."""
        ...


class StoredContent:
    """The bytes of a shard of known size, of which any range can be read."""

    def __init__(self, read: ReadBytes, num_bytes: int) -> None:
        self._read, self.num_bytes = read, num_bytes

    def read(self, first_byte: int, end_byte: int, /) -> Buffer:
        """Read a range; see `Content.read`."""
        end_byte = min(end_byte, self.num_bytes)
        return self._read(first_byte, end_byte) if first_byte < end_byte else b""


class FoundSamples(Protocol):
    """A receiver of sample borders, as a scan finds them."""

    def add(self, borders: NDArray[np.int64], crcs: NDArray[np.uint32], /) -> None:
        """Receive the next borders, ascending, and the CRCs of the samples that end at these.

        The very first border is the start of the first sample; each of the others is the end of one.
        """
        ...


class SampleBorders:
    """All borders of a shard, 8 bytes a sample, and their CRCs, 4 bytes more, unless these are not wanted."""

    def __init__(self, *, with_crcs: bool = True) -> None:
        self._borders, self._crcs, self._keeps_crcs = array("q"), array("I"), with_crcs

    def add(self, borders: NDArray[np.int64], crcs: NDArray[np.uint32], /) -> None:
        """Keep the next borders and CRCs; see `FoundSamples.add`."""
        if len(borders):
            self._borders.frombytes(np.ascontiguousarray(borders, dtype=np.int64).data.cast("B"))
        if self._keeps_crcs and len(crcs):
            self._crcs.frombytes(np.ascontiguousarray(crcs, dtype=np.uint32).data.cast("B"))

    def starts(self) -> NDArray[np.int64]:
        """Return where samples begin and the last one ends, shape (num_samples + 1,): [0] if there are none."""
        return np.frombuffer(self._borders, dtype=np.int64) if self._borders else np.zeros(1, dtype=np.int64)

    def crcs(self) -> NDArray[np.uint32]:
        """Return the CRC of each sample; shape (num_samples,)."""
        return np.frombuffer(self._crcs, dtype=np.uint32) if self._crcs else np.zeros(0, dtype=np.uint32)


class About(NamedTuple):
    """Findings of a scan besides the samples: ``head`` and ``notes`` of `ShardScan`."""

    head: Mapping[str, Any] = {}
    notes: Mapping[str, int] = {}


@runtime_checkable
class ForwardFormat(Protocol):
    """A format whose scan only reads forward."""

    def scan_forward(self, content: Content, found: FoundSamples, *, shard: str) -> About:
        """Find the samples of all of the content; raises what `Format.scan` does."""
        ...


def forward_scan(format: ForwardFormat, read: ReadBytes, num_bytes: int, *, shard: str) -> ShardScan:  # noqa: A002
    """Scan a shard of a forward format, as `Format.scan`; takes 12 bytes a sample on top of the scan's own memory."""
    found = SampleBorders()
    head, notes = format.scan_forward(StoredContent(read, num_bytes), found, shard=shard)
    return ShardScan(found.starts(), found.crcs(), head=head, notes=notes)


def forward_borders(format: Format, read: ReadBytes, num_bytes: int, *, shard: str) -> NDArray[np.int64]:  # noqa: A002
    """Return only the ``sample_starts`` of a scan, to split bytes at hand into samples; the result may be written to.

    A scan that finds pieces instead of samples gives [0].
    """
    if not isinstance(format, ForwardFormat):
        scan = format.scan(read, num_bytes, shard=shard)
        return np.zeros(1, dtype=np.int64) if scan.piece_samples is not None else scan.sample_starts.copy()
    found = SampleBorders(with_crcs=False)
    format.scan_forward(StoredContent(read, num_bytes), found, shard=shard)
    return found.starts()
