"""The path from chunks to batches: units are copied into tables as they arrive, and each batch is gathered at once.

Python code runs per unit and per batch, never per sample, unless units of different kinds meet in a batch.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.formats.field_columns import Columns, Kind
from shoal.formats.shard_format import ColumnarFormat, ColumnRecords, RecordFormat, Records, Sample
from shoal.formats.tables.arrow_columns import arrow_array
from shoal.indexing.open_source import Opened
from shoal.order.partition import Share
from shoal.pipeline.columns.lifetimes_of_rows import RowLifetimes
from shoal.pipeline.columns.unit_columns import Rows, Table
from shoal.pipeline.output_format import Formatting
from shoal.pipeline.stages import Rename, SelectColumns, Stage, ToTuple, WithIds
from shoal.reading.checks.salvage import Damaged, SalvagedRecords
from shoal.reading.fetcher import Fetcher
from shoal.reading.schedule.units import UnitRead


def gathers(stages: Sequence[Stage]) -> bool:
    """True if these stages do to the columns of a batch what they do to its samples."""
    return all(isinstance(stage, SelectColumns | Rename | ToTuple | WithIds) for stage in stages)


def with_chosen(opened: Opened, stages: Sequence[Stage]) -> Opened:
    """Restrict decoding to the fields that the first stage keeps, if the format supports it."""
    first = stages[0] if stages else None
    if not isinstance(first, SelectColumns | ToTuple) or not isinstance(opened.format, ColumnarFormat):
        return opened
    names = [name for names in first.names for name in names.split(";")]
    return replace(opened, format=opened.format.projected(names))


_PARTS = 16  # a batch is gathered in parts of at most this share of the rows in memory
_LEAST_PART = 64
_SHARDS_AT_HAND = 1024


class _Held(NamedTuple):
    """A unit in memory: its rows in a table, or its records if they cannot be columns (and ``table`` is -1)."""

    table: int
    first: int
    num_rows: int
    first_sample: int
    records: Records | SalvagedRecords | None


class Gathering:
    """The batches of one rank, gathered span by span.

    Parameters
    ----------
    fetch
        The source of units.
    num_units
        Units of the dataset, with about ``unit_rows`` samples each.
    formatting
        The output format of gathered columns.
    allocate
        Makes the arrays that batches are gathered into, given a shape and a type.
    """

    def __init__(
        self,
        fetch: Fetcher,
        *,
        num_units: int,
        unit_rows: float,
        formatting: Formatting,
        allocate: Callable[..., NDArray[Any]] = np.empty,
    ) -> None:
        self.fetch, self._formatting, self._allocate = fetch, formatting, allocate
        self._index, self._format = fetch.opened.index, fetch.opened.format
        self._shards: dict[int, tuple[int | None, int]] = {}
        self._num_units, self._unit_rows = num_units, unit_rows
        self._tables: list[Table] = []
        self._numbers: dict[tuple[tuple[str, Kind], ...], int] = {}
        self._held: dict[int, _Held] = {}
        self._gapped: set[str] = set()  # columns without a common kind at some point, stored as cells from then on

    def batches(self, share: Share, units: NDArray[np.int64], last: NDArray[np.bool_]) -> Iterator[Any]:
        """Yield the batches of a span whose samples lie in ``units``; ``last`` marks the last use of a unit.

        A batch is a dict of columns, or a list of samples if these are not all columns of one kind.
        """
        span = RowLifetimes(share.ids, units, last, num_units=self._num_units, held=list(self._held))
        for unit, held in self._held.items():
            span.lies(unit, held.table, held.first, held.first_sample)
        rows_in_use = int(span.num_live * self._unit_rows)
        most = max(_LEAST_PART, rows_in_use // _PARTS)
        firsts = share.batch_first.tolist()
        for begin, end in itertools.pairwise(firsts):
            yield self._batch(span, begin, end, most, rows_in_use)

    def _batch(self, span: RowLifetimes, begin: int, end: int, most: int, rows_in_use: int) -> Any:
        rows: Rows | None = None
        samples: list[Sample | Damaged] | None = None
        for at in range(begin, end, most):
            stop = min(at + most, end)
            for unit in span.arrivals(stop):
                self._take(unit, span, rows_in_use)
            number = span.table(at, stop)
            if number >= 0 and samples is None and (rows is None or rows.table is self._tables[number]):
                if rows is None:
                    rows = self._tables[number].rows(end - begin, self._allocate)
                firsts = span.firsts(at, stop) if rows.table.has_cells else None
                rows.gather(at - begin, span.rows(at, stop), firsts)
            else:
                if samples is None:
                    samples = [] if rows is None else list(rows.samples(at - begin))
                samples += [self._sample(unit, sample_id) for unit, sample_id in span.pairs(at, stop)]
            for unit in span.departures(stop):
                self._let_go(unit)
        if samples is None and rows is not None:
            return self._formatting.columns(rows.table.kinds, rows.arrays())
        return samples

    def _take(self, unit: int, span: RowLifetimes, rows_in_use: int) -> None:
        placed: list[_Held] = []

        def place(read: UnitRead) -> memoryview | None:
            number = self._table_of_records(read, rows_in_use)
            if number is None:
                return None
            first, buffer = self._tables[number].place(read.num_samples)
            placed.append(_Held(number, first, read.num_samples, read.first_sample, None))
            return buffer

        read, records = self.fetch.take(unit, place)
        held = placed[0] if records is None else self._put(read, records, rows_in_use)
        self._held[unit] = held
        span.lies(unit, held.table, held.first, held.first_sample)

    def _put(self, read: UnitRead, records: Records | SalvagedRecords, rows_in_use: int) -> _Held:
        num_rows = len(records)
        columns = records.columns() if isinstance(records, ColumnRecords) else None
        if columns is None:
            return _Held(-1, 0, num_rows, read.first_sample, records)
        number, columns = self._table_of(columns, rows_in_use)
        return _Held(number, self._tables[number].put(columns, num_rows), num_rows, read.first_sample, None)

    def _table_of_records(self, read: UnitRead, rows_in_use: int) -> int | None:
        """Return the table that can take the bytes of a read unparsed; None if they must be parsed."""
        number, record_bytes = self._shards.get(read.shard) or self._met(read.shard, rows_in_use)
        return number if number is not None and read.num_bytes == read.num_samples * record_bytes else None

    def _met(self, shard: int, rows_in_use: int) -> tuple[int | None, int]:
        """Remember for a shard the table of its records, if it holds records, and the bytes of one; return both."""
        name, head = self._index.shard_names[shard], self._index.shard_heads.get(shard, {})
        record = self._format.record(head, shard=name) if isinstance(self._format, RecordFormat) else None
        number, record_bytes = None, 0
        if record is not None:
            number, record_bytes = self._numbers.get(record.kinds), record.layout.itemsize
            if number is None:
                number = self._numbers[record.kinds] = len(self._tables)
                self._tables.append(Table(record.kinds, num_rows=rows_in_use, layout=record.layout))
        if len(self._shards) >= _SHARDS_AT_HAND:
            self._shards.clear()
        self._shards[shard] = number, record_bytes
        return number, record_bytes

    def _let_go(self, unit: int) -> None:
        held = self._held.pop(unit)
        if held.records is None:
            self._tables[held.table].drop(held.first, held.num_rows)
        self.fetch.release(unit)

    def _table_of(self, columns: Columns, rows_in_use: int) -> tuple[int, Columns]:
        """Return the number of the table for columns of these kinds, and the columns converted to fit it."""
        number = self._numbers.get(columns.kinds)
        if number is not None:
            return number, columns
        columns = self._alike(columns)
        number = self._numbers.get(columns.kinds)
        if number is None:
            number = self._numbers[columns.kinds] = len(self._tables)
            self._tables.append(Table(columns.kinds, num_rows=rows_in_use))
        return number, columns

    def _alike(self, columns: Columns) -> Columns:
        """Convert columns of one Arrow type to cells if only some units of them have gaps or differing lengths."""
        for table in self._tables:
            if [(name, kind.arrow) for name, kind in table.kinds] != [(n, kind.arrow) for n, kind in columns.kinds]:
                continue
            pairs = zip(table.kinds, columns.kinds, strict=True)
            self._gapped |= {name for (name, one), (_, other) in pairs if one != other and one.arrow is not None}
        kinds, arrays = list(columns.kinds), list(columns.arrays)
        for place, (name, kind) in enumerate(kinds):
            if name in self._gapped and kind.how != "cells":
                kinds[place], arrays[place] = (name, Kind("cells", arrow=kind.arrow)), arrow_array(kind, arrays[place])
        return Columns(tuple(kinds), tuple(arrays))

    def _sample(self, unit: int, sample_id: int) -> Sample | Damaged:
        """Return one sample, for a batch that has to be made of samples."""
        held = self._held[unit]
        number = sample_id - held.first_sample
        if held.records is not None:
            return held.records.sample(number)
        return self._tables[held.table].sample(held.first, number)
