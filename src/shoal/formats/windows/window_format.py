"""A format whose samples are windows of the rows of another format."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np

from shoal.errors import ShardError
from shoal.formats.shard_format import Format, ReadBytes, Records, Sample, Span
from shoal.formats.windows.row_fields import Stack
from shoal.formats.windows.row_offsets import WindowTable
from shoal.formats.windows.window_columns import Anchors
from shoal.formats.windows.window_records import IS_PAD, WindowRecords, mask_name
from shoal.index.shard_scan import Buffer, ShardScan
from shoal.index.table import Index

_OTHER_INDEX = "the shards, or their index, have changed since the windows were made: open the dataset again"


class _Extents(NamedTuple):
    """Consecutive extents of a shard, by their numbers in the index of the rows; and their rows ``[first, end)``."""

    first: int
    end: int
    first_row: int
    end_row: int


class Windows(Format):
    """Windows of rows as samples: rows are parsed by the ``inner`` format, once for all windows of a piece.

    ``index`` is the index of the rows, and ``table`` finds the rows of each window. ``stack`` makes one value of the
    values of a field. A span of windows begins at the extent of its first row, and its bytes hold all of its rows.
    """

    has_columns = True

    def __init__(self, inner: Format, index: Index, table: WindowTable, stack: Stack) -> None:
        self.inner, self.table = inner, table
        self._index, self._stack = index, stack
        self.name, self.suffixes = inner.name, inner.suffixes
        self.options = {**inner.options, "windows": table.shape.to_dict()}
        self.whole_codec, self.needs_bytes = inner.whole_codec, inner.needs_bytes

    def scan(self, read: ReadBytes, num_bytes: int, *, shard: str) -> ShardScan:
        """Find the rows of a shard."""
        return self.inner.scan(read, num_bytes, shard=shard)

    def field_names(self, head: Mapping[str, Any]) -> Sequence[str] | None:
        """Return the fields of the rows, and the masks of padded places."""
        names, shape = self.inner.field_names(head), self.table.shape
        if names is None or not shape.is_padded:
            return names
        return [*names, *(map(mask_name, shape.offsets) if shape.offsets else [IS_PAD])]

    def projected(self, names: Sequence[str]) -> Windows:
        """Return windows of only these fields; a mask needs its field."""
        masked = {mask_name(field): field for field in self.table.shape.offsets}
        wanted = [*dict.fromkeys(masked.get(name, name) for name in names if name != IS_PAD)]
        inner = self.inner.projected(wanted) if wanted else self.inner
        return Windows(inner, self._index, self.table, self._stack)

    def parse(self, buffer: Buffer, span: Span) -> WindowRecords:
        """Parse the rows in some bytes, and open the windows that begin there; raises `ShardError` as ``inner``."""
        extents, anchors = self._located(span)
        if self.needs_bytes:
            self._check_bytes(buffer, span, extents)
        return WindowRecords(self._parsed(buffer, span, extents), anchors, self.table.shape, self._stack)

    def parse_together(self, spans: Sequence[Span]) -> list[Records]:
        """Let ``inner`` read the rows of several spans together; raises `ShardError` as ``inner``."""
        located = [self._located(span) for span in spans]
        inner = [self._span(span, extents) for span, (extents, _) in zip(spans, located, strict=True)]
        rows = self.inner.parse_together(inner) if len(spans) > 1 else [self._parsed(b"", spans[0], located[0][0])]
        return [
            WindowRecords(some, anchors, self.table.shape, self._stack)
            for some, (_, anchors) in zip(rows, located, strict=True)
        ]

    def _located(self, span: Span) -> tuple[_Extents, Anchors]:
        """Return the extents with the rows of a span, and the anchors of its windows."""
        first = self._extent_at(span)
        first_row = int(self._index.extent_first_sample[first])
        first_window = int(self.table.windows_before(np.array([first_row]))[0])
        numbers = np.arange(first_window, first_window + span.num_samples)
        anchors = Anchors(*(rows - first_row for rows in self._rows_of(numbers)))
        end_row = int(self.table.row_ranges(numbers[-1:])[1][0]) if len(numbers) else first_row
        return self._extents(first, end_row), anchors

    def _rows_of(self, windows: Any) -> tuple[Any, Any, Any]:
        return (self.table.anchors(windows), *self.table.episode_rows(windows))

    def _parsed(self, buffer: Buffer, span: Span, extents: _Extents) -> Records:
        """Parse the rows of extents; if that fails, parse them in smaller pieces, so that few rows are damaged."""
        try:
            return self.inner.parse(buffer, self._span(span, extents))
        except ShardError as error:
            rows = _Salvaged()
            for part in self._parts(extents):
                self._salvage(rows, buffer, span, part)
            if all(isinstance(row, ShardError) for row in rows.rows):
                raise error from None
            return rows

    def _salvage(self, rows: _Salvaged, buffer: Buffer, span: Span, part: _Extents) -> None:
        """Add the rows of one extent, parsed together or, if that fails, one by one."""
        view, inner = memoryview(buffer), self._span(span, part)
        begin, end = (byte - span.first_byte for byte in self._byte_range(part))
        inner = inner._replace(first_byte=span.first_byte + begin)
        try:
            rows.add(self.inner.parse(bytes(view[begin:end]), inner))
        except ShardError as error:
            if inner.sample_starts is None:
                rows.lose(inner.num_samples, error)
                return
            for start, stop in pairwise(inner.sample_starts):
                alone = inner._replace(
                    first_byte=inner.first_byte + start, num_samples=1, sample_starts=[0, stop - start]
                )
                try:
                    rows.add(self.inner.parse(bytes(view[begin + start : begin + stop]), alone))
                except ShardError as error_alone:
                    rows.lose(1, error_alone)

    def _extent_at(self, span: Span) -> int:
        """Return the extent of rows that begins with a span."""
        index, number = self._index, self._shard_numbers.get(span.shard, -1)
        shard_ends = np.searchsorted(index.extent_shard, np.array([number, number + 1], np.int32))
        begin, end = int(shard_ends[0]), int(shard_ends[1])
        first = begin + int(np.searchsorted(index.extent_first_byte[begin:end], span.first_byte))
        if first == end or index.extent_first_byte[first] != span.first_byte:
            msg = "no rows begin here, by the index of the rows"
            raise ShardError(msg, shard=span.shard, byte=span.first_byte, hint=_OTHER_INDEX)
        return first

    def _extents(self, first: int, end_row: int) -> _Extents:
        """Return the extents from ``first`` on with the rows before ``end_row``; whole ones if rows have no sizes."""
        first_sample = self._index.extent_first_sample
        end = int(np.searchsorted(first_sample, end_row, side="left"))
        if self._index.sample_bytes is None:
            end_row = int(first_sample[end])
        return _Extents(first, end, int(first_sample[first]), end_row)

    def _parts(self, extents: _Extents) -> Iterator[_Extents]:
        """Yield extents one by one."""
        first_sample = self._index.extent_first_sample
        for number in range(extents.first, extents.end):
            yield self._extents(number, min(int(first_sample[number + 1]), extents.end_row))

    def _byte_range(self, extents: _Extents) -> tuple[int, int]:
        """Return the bytes of the rows of extents."""
        index, last = self._index, extents.end - 1
        end_byte = int(index.extent_end_byte[last])
        if index.sample_bytes is not None:
            end_byte -= int(index.sample_bytes[extents.end_row : index.extent_first_sample[extents.end]].sum())
        return int(index.extent_first_byte[extents.first]), end_byte

    def _check_bytes(self, buffer: Buffer, span: Span, extents: _Extents) -> None:
        """Raise `ShardError` if some rows lie behind the bytes of a span."""
        needed, end_byte = self._byte_range(extents)[1], span.first_byte + len(buffer)
        if needed > end_byte:
            msg = f"{span.num_samples} windows need the bytes up to {needed}, but these end before {end_byte}"
            raise ShardError(msg, shard=span.shard, byte=span.first_byte, hint=_OTHER_INDEX)

    def _span(self, span: Span, extents: _Extents) -> Span:
        """Return the span of the rows of extents."""
        sizes, starts = self._index.sample_bytes, None
        if sizes is not None:
            starts = list(accumulate(sizes[extents.first_row : extents.end_row].tolist(), initial=0))
        return span._replace(num_samples=extents.end_row - extents.first_row, sample_starts=starts)

    @cached_property
    def _shard_numbers(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self._index.shard_names)}

    def __getstate__(self) -> dict[str, Any]:
        """Leave out values that are computed again."""
        return {name: value for name, value in vars(self).items() if name != "_shard_numbers"}


class _Salvaged:
    """Rows that were parsed in pieces: the error of each damaged row in its place."""

    def __init__(self) -> None:
        self.rows: list[tuple[Records, int] | ShardError] = []

    def __len__(self) -> int:
        return len(self.rows)

    def add(self, records: Records) -> None:
        """Append rows."""
        self.rows += [(records, number) for number in range(len(records))]

    def lose(self, num_rows: int, error: ShardError) -> None:
        """Append damaged rows."""
        self.rows += [error] * num_rows

    def layout_crcs(self) -> Any:
        """Return nothing: nobody compares them."""
        return np.zeros(0, dtype=np.uint32)

    def sample(self, number: int) -> Sample:
        """Return a row, or raise its error."""
        row = self.rows[number]
        if isinstance(row, ShardError):
            raise row
        return row[0].sample(row[1])
