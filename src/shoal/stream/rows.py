"""Batches gathered from columns, without a sample in between.

Where records lie in memory as columns of numbers, what is passed on for a sample is only which row of which columns it
is, and a batch is one copy of each row into its place. It is the batch that collating the samples would have given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.shards.protocol import Buffer, Format, ReadBytes, Records, Sample, ShardScan, Stretch, reading_alone
from shoal.stream.collate import collate
from shoal.stream.indexing.opening import Opened

__all__ = ["collate_rows", "with_rows"]

_Kinds = tuple[tuple[str, np.dtype[Any], tuple[int, ...]], ...]


def with_rows(opened: Opened) -> Opened:
    """The same dataset, whose samples are rows where they can be: for `collate_rows` and nothing else.

    A row is a tuple, the records and its number in them: of the ways to say it, the fastest by far.
    """
    return replace(opened, format=_Columnar(opened.format))


def collate_rows(rows: Sequence[Any]) -> Any:
    """The batch of these rows: what `collate` makes of their samples.

    One copy a row and column, about 0.5 us and the time to copy its bytes.
    """
    kinds = rows[0][0].kinds if type(rows[0]) is tuple else None
    if kinds is None or any(type(row) is not tuple or row[0].kinds is not kinds for row in rows):
        return collate([row[0].stored(row[1]) if type(row) is tuple else row for row in rows])
    batch: dict[str, NDArray[Any]] = {}
    for place, (name, kind, shape) in enumerate(kinds):
        column = batch[name] = np.empty((len(rows), *shape), kind)
        for number, (records, row) in enumerate(rows):
            column[number] = records.arrays[place][row]
    return batch


class _RowRecords:
    """Records that hand out rows."""

    __slots__ = ("_records", "arrays", "kinds")

    def __init__(self, records: Records, columns: Mapping[str, NDArray[Any]], known: dict[_Kinds, _Kinds]) -> None:
        self._records = records
        self.arrays = tuple(columns.values())
        kinds = tuple((name, array.dtype.newbyteorder("="), array.shape[1:]) for name, array in columns.items())
        self.kinds = known.setdefault(kinds, kinds)  # one object for all that are equal: they are compared for each row

    def __len__(self) -> int:
        return len(self._records)

    def layout_crcs(self) -> NDArray[np.uint32]:
        """As the records say it."""
        return self._records.layout_crcs()

    def sample(self, number: int) -> tuple[_RowRecords, int]:
        """The row with this number."""
        return self, number

    def stored(self, number: int) -> Sample:
        """The sample that a row stands for."""
        return self._records.sample(number)


class _Columnar:
    """A format whose records hand out rows where they are columns."""

    def __init__(self, format: Format) -> None:  # noqa: A002
        self._format = format
        self._kinds: dict[_Kinds, _Kinds] = {}
        self.name, self.suffixes = format.name, format.suffixes
        self.read_sample = reading_alone(format)

    def scan(self, read: ReadBytes, num_bytes: int, *, shard: str) -> ShardScan:
        """As the format does it."""
        return self._format.scan(read, num_bytes, shard=shard)

    def parse(self, buffer: Buffer, stretch: Stretch) -> Any:
        """Records of rows, or of samples."""
        records = self._format.parse(buffer, stretch)
        # Not isinstance: to ask a protocol takes longer than to read 64 KiB.
        columns = records.columns() if hasattr(records, "columns") else None
        return records if columns is None else _RowRecords(records, columns, self._kinds)
