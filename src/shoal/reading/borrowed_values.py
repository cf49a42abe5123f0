"""Values that are views of the bytes of their chunk and keep the bytes alive, so that nothing is copied."""

from __future__ import annotations

import weakref
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from shoal.formats.shard_format import Format, ReadBytes, Records, Sample, Span
from shoal.index.shard_scan import Buffer, ShardScan
from shoal.indexing.opened_dataset import Opened
from shoal.stats.counters import Pins


def with_views(opened: Opened, pins: Pins) -> Opened:
    """Return the dataset with values that are views; unchanged if its format cannot provide them."""
    if not opened.format.has_views:
        return opened
    return replace(opened, format=_Viewing(opened.format, pins))


class _Viewing(Format):
    """A format whose values are views."""

    def __init__(self, format: Format, pins: Pins) -> None:  # noqa: A002
        self._format, self._pins = format, pins
        self.name, self.suffixes = format.name, format.suffixes

    def scan(self, read: ReadBytes, num_bytes: int, *, shard: str) -> ShardScan:
        """Scan as the wrapped format does."""
        return self._format.scan(read, num_bytes, shard=shard)

    def read_sample(self, read: ReadBytes, end_byte: int, span: Span) -> Sample:
        """Read a sample as the wrapped format does; each value is a view of its own bytes."""
        sample = self._format.read_sample(read, end_byte, span)
        return {name: memoryview(value) if type(value) is bytes else value for name, value in sample.items()}

    def parse(self, buffer: Buffer, span: Span) -> Records:
        """Parse records whose values are views."""
        data = bytes(buffer) if isinstance(buffer, bytearray) else buffer
        # An array between the bytes and their views, since bytes objects cannot be weakly referenced.
        array = np.frombuffer(data, dtype=np.uint8) if data else np.zeros(0, dtype=np.uint8)
        records = self._format.parse_views(data, array.data, span)
        return _ViewedRecords(records, weakref.ref(array), self._pins)


class _ViewedRecords:
    """Records that report to `Pins` when they are released."""

    __slots__ = ("_array", "_pins", "_records", "sample")

    def __init__(self, records: Records, array: weakref.ref[NDArray[np.uint8]], pins: Pins) -> None:
        self._records: Records | None = records
        self._array, self._pins = array, pins
        self.sample = records.sample

    def __len__(self) -> int:
        return len(self._records) if self._records is not None else 0

    def layout_crcs(self) -> NDArray[np.uint32]:
        """Return the layout checksums of the wrapped records."""
        return self._records.layout_crcs() if self._records is not None else np.zeros(0, dtype=np.uint32)

    def __del__(self) -> None:
        self._records = None
        del self.sample
        self._pins.keep(self._array)
