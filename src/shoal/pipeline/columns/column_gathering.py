"""The path from chunks to batches: units are copied into tables as they arrive, and each batch is gathered at once.

Python code runs per unit and per batch, never per sample, unless units of different kinds meet in a batch.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.formats.field_columns import Columns, Kind, Kinds
from shoal.formats.rows.records import Piece
from shoal.formats.shard_format import ColumnRecords, Records, Sample
from shoal.formats.tables.arrow_columns import arrow_array
from shoal.order.partition import Share
from shoal.pipeline.columns.column_sources import ColumnSource
from shoal.pipeline.columns.lifetimes_of_rows import RowLifetimes
from shoal.pipeline.columns.unit_columns import Rows, Table
from shoal.pipeline.output_format import Formatting
from shoal.reading.checks.damaged_samples import Damaged, SalvagedRecords
from shoal.reading.fetcher import most_in_run
from shoal.reading.schedule.units import UnitRead

_PARTS = 16  # a batch is gathered in parts: each has at most one 16th of the rows in memory
_LEAST_PART = 64
_MOST_SHARDS = 1024  # whose tables are cached


@lru_cache(maxsize=64)
def _has_columns(kind: type) -> bool:
    """Return True if records of this class are `ColumnRecords`; cached, since the check takes 15 us."""
    return issubclass(kind, ColumnRecords)


class _Held(NamedTuple):
    """A unit in memory: rows in a table, or records that cannot be columns (``table`` is -1), and a piece of some."""

    piece: Piece | None
    first_sample: int
    table: int
    first: int
    num_rows: int
    records: Records | SalvagedRecords | None
    num_bytes: int


_held = partial(tuple.__new__, _Held)  # same as calling the class, in a third of the time


class Gathering:
    """The batches of one rank, gathered span by span from ``sources`` in the order of their units and samples.

    ``formatting`` is the output format of gathered columns. ``allocate`` makes the arrays of batches, given a shape and
    a type.
    """

    def __init__(
        self,
        sources: Sequence[ColumnSource],
        *,
        formatting: Formatting,
        allocate: Callable[..., NDArray[Any]] = np.empty,
    ) -> None:
        self._sources, self._formatting, self._allocate = sources, formatting, allocate
        self._first_units = [source.first_unit for source in sources]
        self._unit_rows = np.array([source.unit_rows for source in sources])
        self._num_units = sources[-1].first_unit + sources[-1].num_units
        self._shards: dict[tuple[int, int], tuple[int | None, int]] = {}
        self._tables: list[Table] = []
        self._numbers: dict[Kinds, int] = {}
        self._held: dict[int, _Held] = {}
        self._held_rows = self._held_bytes = 0
        self._waits = any(source.fetch.opened.waits for source in sources)
        self._gapped: set[str] = set()  # columns whose units differ in kind; stored as cells from then on

    def read_ahead(self, units: NDArray[np.int64]) -> None:
        """Read these units next, after all units of earlier calls."""
        if len(self._sources) == 1:
            self._sources[0].fetch.read_ahead(units)
            return
        owners = self._owners(units)
        for number in np.unique(owners).tolist():
            source = self._sources[number]
            source.fetch.read_ahead(units[owners == number] - source.first_unit)

    def _owner(self, unit: int) -> int:
        return bisect_right(self._first_units, unit) - 1

    def _owners(self, units: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.searchsorted(self._first_units, units, side="right") - 1

    def batches(self, share: Share, units: NDArray[np.int64], last: NDArray[np.bool_]) -> Iterator[Any]:
        """Yield the batches of a span whose samples lie in ``units``; ``last`` marks the last use of a unit.

        A batch is a dict of columns, or a list of samples if its units have no columns of one kind.
        """
        span = self._span(share, units, last)
        rows_in_use = int(span.most_rows)
        most = max(_LEAST_PART, rows_in_use // _PARTS)
        for begin, end in itertools.pairwise(share.batch_first.tolist()):
            yield self._batch(span, begin, end, most, rows_in_use)

    def runs(self, share: Share, units: NDArray[np.int64], last: NDArray[np.bool_]) -> Iterator[list[Any]]:
        """Yield the samples of a span in short lists; takes the arguments of `batches`.

        A list ends before the first sample that another machine still has to send. An error is raised after all samples
        before it.
        """
        span = self._span(share, units, last)
        rows_in_use, waits = int(span.most_rows), self._waits
        at, num_samples = 0, len(share.ids)
        while at < num_samples:
            stop = min(at + most_in_run(self._held_rows, self._held_bytes), num_samples)
            failure = None
            while arriving := span.arrivals(stop):
                if waits and span.next_arrival > at:
                    stop = span.next_arrival
                    break
                try:
                    span.arrived(self._take(arriving, span, rows_in_use))
                except Exception as error:  # noqa: BLE001  # raised below
                    stop, failure = span.next_arrival, error
                    break
            run: list[Any] = []
            try:
                if stop > at:
                    self._add_samples(run, span, at, stop)
            except Exception as error:  # noqa: BLE001  # raised below
                failure = error
            if run:
                yield run
            if failure is not None:
                raise failure
            for unit in span.departures(stop):
                self._let_go(unit)
            at = stop

    def _add_samples(self, run: list[Any], span: RowLifetimes, at: int, stop: int) -> None:
        """Append the samples ``[at, stop)`` of a span; a damaged sample raises after the samples before it."""
        number = span.table(at, stop)
        if number >= 0:
            table = self._tables[number]
            run += table.samples(span.rows(at, stop), span.firsts(at, stop) if table.has_cells else None)
            return
        units, ids = span.units_and_ids(at, stop)
        number, num_samples, has_stages = 0, len(ids), len(self._sources) > 1 or bool(self._sources[0].stages)
        while number < num_samples:
            piece = None if has_stages else self._held[units[number]].piece
            samples = [] if piece is None else piece.cut(self._held, ids, units, None, number, num_samples)
            run += samples or [self._sample(units[number], ids[number])]
            number += len(samples) or 1

    def _span(self, share: Share, units: NDArray[np.int64], last: NDArray[np.bool_]) -> RowLifetimes:
        span = RowLifetimes(
            share.ids,
            units,
            last,
            num_units=self._num_units,
            held={unit: held.num_rows for unit, held in self._held.items()},
            rows_of=lambda some: self._unit_rows[self._owners(some)],
        )
        for unit, held in self._held.items():
            span.lies(unit, held.table, held.first, held.first_sample)
        return span

    def _batch(self, span: RowLifetimes, begin: int, end: int, most: int, rows_in_use: int) -> Any:
        rows: Rows | None = None
        samples: list[Sample | Damaged] | None = None
        for at in range(begin, end, most):
            stop = min(at + most, end)
            while arriving := span.arrivals(stop):
                span.arrived(self._take(arriving, span, rows_in_use))
            number = span.table(at, stop)
            if number >= 0 and samples is None and (rows is None or rows.table is self._tables[number]):
                if rows is None:
                    rows = self._tables[number].rows(end - begin, self._allocate)
                firsts = span.firsts(at, stop) if rows.table.has_cells else None
                rows.gather(at - begin, span.rows(at, stop), firsts)
            else:
                if samples is None:
                    samples = [] if rows is None else list(rows.samples(at - begin))
                self._add_samples(samples, span, at, stop)
            for unit in span.departures(stop):
                self._let_go(unit)
        if samples is None and rows is not None:
            return self._formatting.columns(rows.table.kinds, rows.arrays())
        return samples

    def _take(self, units: list[int], span: RowLifetimes, rows_in_use: int) -> int:
        """Take the first of these units into use, and others that are best read together with it; return how many."""
        owner = self._owner(units[0])
        source = self._sources[owner]
        due = source.due(units) if len(self._sources) > 1 else source.fetch.due(units)
        places = [self._place(owner, read, rows_in_use) for read, _ in due]
        # The memory of a table may move while rows are reserved.
        buffers = [
            None if number < 0 else self._tables[number].memory(first, read.num_samples)
            for (read, _), (number, first) in zip(due, places, strict=True)
        ]
        taken = source.fetch.take(due, buffers)
        for (read, _), (number, first) in zip(due[len(taken) :], places[len(taken) :], strict=True):
            if number >= 0:
                self._tables[number].drop(first, read.num_samples)
        for unit, (read, _), place, records in zip(units, due, places, taken, strict=False):
            table, row = place if records is None else self._put(source, records, rows_in_use)
            kept = records if table < 0 else None
            first_sample, num_bytes = source.first_sample + read.first_sample, read.end_byte - read.first_byte
            piece = None if kept is None else getattr(kept, "piece", None)
            self._held[unit] = _held((piece, first_sample, table, row, read.num_samples, kept, num_bytes))
            self._held_rows += read.num_samples
            self._held_bytes += num_bytes
            span.lies(unit, table, row, first_sample)
        return len(taken)

    def _place(self, owner: int, read: UnitRead, rows_in_use: int) -> tuple[int, int]:
        """Reserve rows for the unparsed bytes of a unit; return the table and the first row, or (-1, 0) to parse it."""
        number, record_bytes = self._shards.get((owner, read.shard)) or self._layout_of(owner, read.shard, rows_in_use)
        if number is None or read.end_byte - read.first_byte != read.num_samples * record_bytes:
            return -1, 0
        return number, self._tables[number].reserve(read.num_samples)

    def _put(self, source: ColumnSource, records: Records | SalvagedRecords, rows_in_use: int) -> tuple[int, int]:
        """Store records as columns; return the number of the table (-1 if they have no columns) and the first row."""
        kind: Any = type(records)
        columns = records.columns() if _has_columns(kind) else None  # type: ignore[union-attr]  # `_has_columns` checked
        if columns is None or (columns := source.columns(columns)) is None:
            return -1, 0
        number, columns = self._table_of(columns, rows_in_use)
        return number, self._tables[number].put(columns, len(records))

    def _layout_of(self, owner: int, shard: int, rows_in_use: int) -> tuple[int | None, int]:
        """Return the table that can take unparsed records of a shard, and the bytes of a record; cached."""
        record = self._sources[owner].record(shard)
        number, record_bytes = None, 0
        if record is not None:
            key, record_bytes = self._key(record.kinds), record.layout.itemsize
            if (number := self._numbers.get(key)) is None:
                number = self._numbers[key] = len(self._tables)
                self._tables.append(Table(record.kinds, num_rows=rows_in_use, layout=record.layout))
            elif not self._tables[number].has_layout(record.layout):
                number = None
        if len(self._shards) >= _MOST_SHARDS:
            self._shards.clear()
        self._shards[owner, shard] = number, record_bytes
        return number, record_bytes

    def _let_go(self, unit: int) -> None:
        held = self._held.pop(unit)
        self._held_rows -= held.num_rows
        self._held_bytes -= held.num_bytes
        if held.records is None:
            self._tables[held.table].drop(held.first, held.num_rows)
        self._sources[self._owner(unit)].release(unit)

    def _table_of(self, columns: Columns, rows_in_use: int) -> tuple[int, Columns]:
        """Return the number of the table for columns of these kinds, and the columns converted to fit it."""
        number = self._numbers.get(self._key(columns.kinds))
        if number is not None:
            return number, columns
        columns = self._alike(columns)
        key = self._key(columns.kinds)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._tables)
            keeps_arrow = self._formatting.name == "arrow"
            self._tables.append(Table(columns.kinds, num_rows=rows_in_use, keeps_arrow=keeps_arrow))
        return number, columns

    def _key(self, kinds: Kinds) -> Kinds:
        """Return the key of the table for columns of these kinds: one table holds kinds that make the same batches."""
        return kinds if self._formatting.name == "arrow" else tuple((name, kind.in_memory) for name, kind in kinds)

    def _alike(self, columns: Columns) -> Columns:
        """Convert columns of one Arrow type to cells if only some units have gaps or different lengths."""
        for table in self._tables:
            if [(name, kind.arrow) for name, kind in table.kinds] != [(n, kind.arrow) for n, kind in columns.kinds]:
                continue
            pairs = zip(table.kinds, columns.kinds, strict=True)
            self._gapped |= {name for (name, one), (_, other) in pairs if one != other and one.arrow is not None}
        kinds, arrays = list(columns.kinds), list(columns.arrays)
        for number, (name, kind) in enumerate(kinds):
            if name in self._gapped and kind.how != "cells" and kind.arrow is not None:
                kinds[number] = name, Kind("cells", arrow=kind.arrow)
                arrays[number] = arrow_array(kind, arrays[number])
        return Columns(tuple(kinds), tuple(arrays))

    def _sample(self, unit: int, sample_id: int) -> Sample | Damaged:
        """Return one sample, for a batch that has no columns of one kind."""
        held = self._held[unit]
        number = sample_id - held.first_sample
        if held.records is not None:
            sample: Sample | Damaged = self._sources[self._owner(unit)].sample(held.records.sample(number))
            return sample
        return self._tables[held.table].sample(held.first, number)
