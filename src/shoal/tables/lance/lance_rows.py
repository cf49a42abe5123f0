"""The format of Lance fragments: rows are read by Lance itself, so that a read of one row is as cheap as Lance has it.

Lance does not say where a row lies in its files. A row takes an equal part of the bytes of its fragment, so that the
bytes of a dataset, a chunk and a window have the right size, and a byte tells its row.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.errors import ShardError
from shoal.formats.field_columns import Columns, wanted_of
from shoal.formats.shard_format import Format, ReadBytes, Sample, Span
from shoal.formats.tables.arrow_types import arrow_library
from shoal.formats.tables.table_rows import TableRecords
from shoal.index.shard_scan import Buffer, ShardScan
from shoal.tables.lance.lance_library import OpenedTable, lance_errors

_FRAGMENT, _NUM_ROWS, _NUM_BYTES = "fragment", "rows", "bytes"  # kept in the head
_MOST_SESSIONS = 64
_BLOB, _OLD_BLOB = "lance.blob.v2", b"lance-encoding:blob"
# With fewer rows of each fragment, one call for all fragments takes less time than one for each.
_FEW_ROWS = 16


class LanceRows(Format):
    """The format of the fragments of a version of a Lance table; a sample is a row.

    A shard is a fragment, named by its first data file. Deleted rows keep their numbers.
    """

    name: str = "lance"
    suffixes: tuple[str, ...] = ()
    needs_bytes = False
    has_columns = True

    def __init__(self, table: OpenedTable, projection: Sequence[str] | None = None) -> None:
        self._table = table
        self._projection = None if projection is None else tuple(projection)
        self._sessions: tuple[int, OrderedDict[int, _Fragment]] = 0, OrderedDict()

    def __reduce__(self) -> tuple[Any, ...]:
        return LanceRows, (self._table, self._projection)

    def projected(self, names: Sequence[str]) -> LanceRows:
        """Return a copy that reads only these columns."""
        return LanceRows(self._table, names)

    def scan(self, read: ReadBytes, num_bytes: int, *, shard: str) -> ShardScan:  # noqa: ARG002  # Lance reads
        """Return equal parts of the fragment's bytes, one for each row, deleted rows included; no row is read."""
        by_name = {name_of(fragment): fragment for fragment in self._table.dataset().get_fragments()}
        if shard not in by_name:
            msg = f"{self._table.location.words} has no fragment of this name"
            raise ShardError(msg, shard=shard, hint="open the table again")
        metadata = by_name[shard].metadata
        num_rows = int(metadata.physical_rows)
        stored = sum(int(file.file_size_bytes or 0) for file in metadata.files)
        num_bytes = max(stored or num_bytes, num_rows * _least_row_bytes(self._table.dataset().schema))
        rows = np.arange(num_rows + 1, dtype=np.int64)
        starts = rows * (num_bytes // max(1, num_rows)) + rows * (num_bytes % max(1, num_rows)) // max(1, num_rows)
        head = {_FRAGMENT: int(metadata.id), _NUM_ROWS: num_rows, _NUM_BYTES: num_bytes}
        return ShardScan(starts, np.zeros(num_rows, dtype=np.uint32), head=head)

    def parse(self, buffer: Buffer, span: Span) -> LanceRecords:  # noqa: ARG002  # Lance reads
        """Read the rows of a span by Lance.

        Raises `ShardError`: Lance cannot decode the rows; `StorageError`: the rows could not be read, or a file of the
        version is missing.
        """
        return self.parse_together([span])[0]

    def parse_together(self, spans: Sequence[Span]) -> list[LanceRecords]:  # type: ignore[override]
        """Read the rows of some spans, by one call of Lance for each fragment; raises as `parse`."""
        by_fragment: dict[int, list[int]] = {}
        for number, span in enumerate(spans):
            by_fragment.setdefault(span.head[_FRAGMENT], []).append(number)
        words, records = self._table.location.words, dict[int, LanceRecords]()
        num_rows = sum(span.num_samples for span in spans)
        if len(by_fragment) > 1 and num_rows < _FEW_ROWS * len(by_fragment) and not self._has_blobs():
            with lance_errors(words, is_remote=self._table.is_remote, shard=spans[0].shard):
                return self._rows_of_many(spans, words)
        for fragment, numbers in by_fragment.items():
            inside = [spans[number] for number in numbers]
            with lance_errors(words, is_remote=self._table.is_remote, shard=inside[0].shard):
                records.update(zip(numbers, self._fragment(fragment).records(inside, words), strict=True))
        return [records[number] for number in range(len(spans))]

    def read_sample(self, read: ReadBytes, end_byte: int, span: Span) -> Sample:  # noqa: ARG002
        """Read one row by Lance; raises as `parse`."""
        return self.parse(b"", span).sample(0)

    def schema(self, head: Mapping[str, Any]) -> Any:  # noqa: ARG002  # of all fragments
        """Return the Arrow schema of the version."""
        return self._table.dataset().schema

    def field_names(self, head: Mapping[str, Any]) -> Sequence[str] | None:
        """Return the names of the columns."""
        return list(self.schema(head).names)

    def _rows_of_many(self, spans: Sequence[Span], words: str) -> list[LanceRecords]:
        """Read few rows of each of many fragments by one call of Lance for the whole table."""
        fragments = [self._fragment(span.head[_FRAGMENT]) for span in spans]
        parts = [fragment.part(span) for fragment, span in zip(fragments, spans, strict=True)]
        first_of = self._table.first_rows()
        places = [
            np.arange(part.first, part.end) + first_of[fragment.number]
            for fragment, part in zip(fragments, parts, strict=True)
        ]
        table = self._table.dataset().take(np.concatenate(places).tolist(), columns=list(fragments[0].names))
        begins, rows = np.cumsum([0, *map(len, places)]).tolist(), (table, _records_of(table, spans[0]))
        return [
            fragment.records_of(rows, begin, span, part, words)
            for begin, fragment, span, part in zip(begins, fragments, spans, parts, strict=False)
        ]

    def _has_blobs(self) -> bool:
        """Return True if the table has blobs, which a read of the whole table gives as places in files."""
        fields = self._table.dataset().schema
        return any(
            getattr(one.type, "extension_name", "") == _BLOB or _OLD_BLOB in (one.metadata or {}) for one in fields
        )

    def _fragment(self, number: int) -> _Fragment:
        """Return a fragment ready for reads: one of the last few, since opening one takes as long as a small read."""
        pid, sessions = self._sessions
        if pid != os.getpid():
            sessions = OrderedDict()
            self._sessions = os.getpid(), sessions
        if (known := sessions.get(number)) is None:
            while len(sessions) >= _MOST_SESSIONS:
                sessions.popitem(last=False)
            known = sessions[number] = _Fragment.of(self._table.dataset(), number, self._projection)
        return known


class LanceRecords:
    """Some consecutive rows of a fragment, among the rows of a ``table`` that were read together.

    The first is row ``begin`` of the table, and ``records`` has all its rows by number. ``places`` has the place of
    each row behind the first, -1 for deleted rows between others; None if no row is deleted.
    """

    def __init__(
        self, table: Any, records: TableRecords, begin: int, places: NDArray[np.int64] | None, span: Span, words: str
    ) -> None:
        self._table, self._records, self._begin, self._places = table, records, begin, places
        self._span, self._words = span, words

    def __len__(self) -> int:
        return self._span.num_samples

    def layout_crcs(self) -> NDArray[np.uint32]:
        """Return zeros, as the scan."""
        return np.zeros(len(self), dtype=np.uint32)

    def sample(self, number: int) -> Sample:
        """Return a row by column; raises `ShardError` for a deleted row."""
        if self._places is None:
            return self._records.sample(self._begin + number)
        if (place := int(self._places[number])) < 0:
            msg = f"row {number} of this piece is deleted in {self._words}"
            raise ShardError(msg, shard=self._span.shard, byte=self._span.first_byte, hint="choose another sample")
        return self._records.sample(self._begin + place)

    def columns(self) -> Columns | None:
        """Return the rows as columns; deleted rows, which no order has, repeat a neighbour."""
        if self._places is None:
            if len(self) == len(self._records):
                return self._records.columns()
            table = self._table.slice(self._begin, len(self))
        else:
            table = self._table.take(self._begin + np.maximum.accumulate(self._places).clip(0))
        return _records_of(table, self._span).columns()


def _records_of(table: Any, span: Span) -> TableRecords:
    return TableRecords(table, [], shard=span.shard, byte=span.first_byte)


class _Part(NamedTuple):
    """The first row of a span in its fragment, and the range of its rows among the rows left."""

    first_row: int
    first: int
    end: int


class _Fragment(NamedTuple):
    """An opened fragment: its session, its number, the rows that are left (None for all), and columns of blobs."""

    session: Any
    number: int
    left: NDArray[np.int64] | None
    blobs: tuple[str, ...]
    names: tuple[str, ...]
    dataset: Any

    @classmethod
    def of(cls, dataset: Any, number: int, projection: Sequence[str] | None) -> _Fragment:
        fragment = dataset.get_fragment(number)
        names = dataset.schema.names
        wanted = names if projection is None else wanted_of(names, projection)
        blobs = tuple(
            name for name in wanted if getattr(dataset.schema.field(name).type, "extension_name", "") == _BLOB
        )
        session = fragment.open_session([name for name in wanted if name not in blobs])
        left = rows_left(fragment) if fragment.num_deletions else None
        return cls(session, number, left, blobs, tuple(wanted), dataset)

    def records(self, spans: Sequence[Span], words: str) -> list[LanceRecords]:
        """Return the rows of some spans, read together."""
        parts = [self.part(span) for span in spans]
        together = np.unique(np.concatenate([np.arange(part.first, part.end) for part in parts]))
        table = self.session.take(together.tolist()) if len(together) else None
        if self.blobs and table is not None:
            table = self._with_blobs(table, together if self.left is None else self.left[together])
        rows = None if table is None else (table, _records_of(table, spans[0]))
        begins = np.searchsorted(together, [part.first for part in parts]).tolist()
        return [
            self.records_of(rows, begin, span, part, words)
            for begin, span, part in zip(begins, spans, parts, strict=True)
        ]

    def records_of(
        self, rows: tuple[Any, TableRecords] | None, begin: int, span: Span, part: _Part, words: str
    ) -> LanceRecords:
        """Return the rows of a span, which begin at row ``begin`` of a table and its records.

        If all rows are deleted, the deleted rows themselves, as other formats have them: somebody asks for them by id.
        """
        if part.first == part.end or rows is None:
            table = self._deleted(part.first_row, span.num_samples)
            return LanceRecords(table, _records_of(table, span), 0, None, span, words)
        gaps = None
        if part.end - part.first < span.num_samples and self.left is not None:
            gaps = np.full(span.num_samples, -1, dtype=np.int64)
            gaps[self.left[part.first : part.end] - part.first_row] = np.arange(part.end - part.first)
        return LanceRecords(*rows, begin, gaps, span, words)

    def part(self, span: Span) -> _Part:
        """Return the first row of a span, and the range of its rows among the rows left."""
        first_row = -(-span.first_byte * span.head[_NUM_ROWS] // span.head[_NUM_BYTES])
        end_row = first_row + span.num_samples
        if self.left is None:
            return _Part(first_row, first_row, end_row)
        first, end = np.searchsorted(self.left, [first_row, end_row]).tolist()
        return _Part(first_row, first, end)

    def _deleted(self, first_row: int, num_rows: int) -> Any:
        """Return deleted rows, which stay in their files until the table is compacted; blobs are left out."""
        names = [name for name in self.names if name not in self.blobs]
        scanner = self.dataset.get_fragment(self.number).scanner(
            columns=names, offset=first_row, limit=num_rows, include_deleted_rows=True, with_row_id=True
        )
        return scanner.to_table().select(names)

    def _with_blobs(self, table: Any, rows: NDArray[np.int64]) -> Any:
        pa = arrow_library("Lance")
        addresses = ((self.number << 32) + rows).tolist()
        for name in self.blobs:
            values = self.dataset.read_blobs(name, addresses=addresses, preserve_order=True)
            table = table.append_column(name, pa.array([value for _, value in values], pa.large_binary()))
        return table.select(self.names)


def name_of(fragment: Any) -> str:
    """Return the name of a fragment as a shard: its first data file, which no other fragment has."""
    return f"data/{fragment.metadata.files[0].path}"


def rows_left(fragment: Any) -> NDArray[np.int64]:
    """Return the numbers of the rows that are not deleted, ascending."""
    addresses = fragment.scanner(columns=[], with_row_address=True).to_table()["_rowaddr"].to_numpy()
    return np.sort((addresses & np.uint64(0xFFFFFFFF)).astype(np.int64))


def _least_row_bytes(schema: Any) -> int:
    """Return the bytes in memory of a row's values of fixed size, which may be stored in fewer; at least 1."""
    total = 0
    for kind in schema.types:
        try:
            total += kind.bit_width // 8
        except (ValueError, AttributeError):  # of no fixed width
            total += 4
    return max(1, total)
