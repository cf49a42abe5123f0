"""The scan of all samples of a dataset for columns: once, several spans of extents at a time.

A scan of Parquet shards reads only the pages of the columns. A scan of large samples in local tars reads only headers
and the members of the columns. Any other scan reads all bytes, and compares them with checksums in the index.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.formats.column_paths import LENGTH, TOTAL_BYTES, Column
from shoal.formats.field_columns import Kind
from shoal.formats.shard_format import (
    ColumnRecords,
    Records,
    Sample,
)
from shoal.formats.tables.arrow_columns import field_lengths, field_values, inner_column
from shoal.formats.tables.arrow_values import cells_as_list
from shoal.formats.tables.table_rows import partition_fields
from shoal.index.table import Index, own_bytes
from shoal.indexing.opened_dataset import Opened
from shoal.pipeline.sample_columns.column_lookup import ColumnLookup, check_source, refuse_unknown, wanted_members
from shoal.pipeline.sample_columns.column_parts import (
    JoinedColumn,
    Part,
    SpanValues,
    Where,
    part_of_array,
    part_of_values,
)
from shoal.pipeline.sample_columns.kept_parts import KeptParts
from shoal.reading.checks.checked_reads import fetched_records, parse_again, parse_unit, read_unit, span_of
from shoal.reading.checks.damaged_samples import read_sample
from shoal.reading.remote.request_stats import RequestStats
from shoal.reading.schedule.units import UnitRead, extent_of
from shoal.stats.counters import Counters

_READ_BYTES = 4 << 20  # a span of extents read at once; a larger extent is read alone
_SPAN_DECODED_BYTES = 16 << 20
_SPARSE_BYTES = 128 << 10  # of an average local sample; larger samples are read without members of no column
_DECODED_BYTES = 256 << 20  # under way at a time, but always two spans
_MOST_THREADS = 8
_REMOTE_THREADS = 16  # they wait for responses, not for the processor


class ScannedColumns(NamedTuple):
    """Columns by name: arrays of shape (num_samples,), the texts of codes, and the sources of the values.

    A source has the requested path (``asked``), the full ``path`` of the values and, if values were missing, their
    number ``num_missing`` and the value ``missing`` in their place.
    """

    arrays: dict[str, NDArray[Any]]
    texts: dict[str, list[str]]
    sources: dict[str, dict[str, Any]]


def scan_columns(
    opened: Opened,
    columns: Sequence[Column],
    *,
    missing: Mapping[str, Any] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> ScannedColumns:
    """Read columns from all samples; ``missing`` has the values, by column, for samples without one.

    ``progress`` is called in this thread with bytes done and bytes in total. Memory: 8 bytes a sample and column, each
    distinct text once, and up to 256 MiB of decoded samples (two spans, if they are larger). The machine keeps finished
    shards of a large dataset until the scan ends, so that a scan that was killed, or refused for missing values, can
    continue.

    Raises
    ------
    UsageError
        No sample has a column, some lack a column without a value in ``missing``, or its values differ in kind.
    ShardError
        A sample is damaged; the error names the shard and the byte.
    StorageError
        Bytes could not be read.
    """
    index = opened.index
    defaults = dict(missing or {})
    where = partial(_sample_name, index)
    joined = [JoinedColumn(column, index.num_samples, where, defaults.get(column.name)) for column in columns]
    sources = [""] * len(joined)
    spans = _SpanReader(opened, columns, frozenset(defaults))
    kept = KeptParts(opened, columns)
    for first_sample, values in spans.in_order(kept, progress):
        for number, (column, part, source) in enumerate(zip(joined, values.parts, values.sources, strict=True)):
            column.add(part, first_sample)
            if source:
                check_source(column.column, sources[number], source, where(first_sample))
                sources[number] = source
    arrays: dict[str, NDArray[Any]] = {}
    texts: dict[str, list[str]] = {}
    about: dict[str, dict[str, Any]] = {}
    for column, source in zip(joined, sources, strict=True):
        array, words, missed = column.finished()
        name = column.column.name
        arrays[name] = array
        about[name] = {"asked": column.column.path, "path": source}
        if words is not None:
            texts[name] = words
        if len(missed):
            stored = array[missed[0]].item()
            about[name] |= {"num_missing": len(missed), "missing": stored if words is None else words[stored]}
    kept.clear()
    return ScannedColumns(arrays, texts, about)


def scanned_parts(opened: Opened, column: Column) -> Iterator[Part]:
    """Yield the values of a column in consecutive samples, part after part, without keeping them.

    Memory: up to 256 MiB of decoded samples (two spans, if they are larger). Raises the errors of `scan_columns`; but
    parts may differ in kind, and some samples may have no value.
    """
    kept = KeptParts(opened, [column])
    for _, values in _SpanReader(opened, [column], frozenset()).in_order(kept, None):
        yield values.parts[0]
    kept.clear()


def _sample_name(index: Index, sample_id: int) -> str:
    shard = index.shard_names[int(index.extent_shard[extent_of(index, sample_id)])]
    return f"sample {sample_id} ({shard})"


class _Span(NamedTuple):
    """Extents of a shard; ``answer`` is the reading of their values, or the kept values of a whole shard."""

    shard: int
    first_extent: int
    end_extent: int
    first_sample: int
    decoded_bytes: int
    answer: Future[SpanValues] | list[tuple[int, SpanValues]]
    is_last: bool = False


class _SpanReader:
    """Reader of the values of columns, span by span; samples may lack the columns ``have_defaults``."""

    def __init__(self, opened: Opened, columns: Sequence[Column], have_defaults: frozenset[str]) -> None:
        self._columns, self._have_defaults = tuple(columns), have_defaults
        self._fields = _fields_of(opened, columns)
        self._opened, self._wanted = opened, wanted_members(columns)
        if self._fields is not None:
            self._opened = replace(opened, format=opened.format.projected(self._fields))

    def in_order(
        self, kept: KeptParts, progress: Callable[[int, int], None] | None
    ) -> Iterator[tuple[int, SpanValues]]:
        """Yield the first sample and the values of all spans in order, while threads read ahead.

        ``kept`` replaces the reading of finished shards, and gets newly finished ones.
        """
        index, store = self._opened.index, self._opened.store
        num_threads = min(_MOST_THREADS, os.cpu_count() or 1) if store.reads_ahead else _REMOTE_THREADS
        under_way: deque[_Span] = deque()
        of_shard: list[tuple[int, SpanValues]] = []
        held_bytes = done_bytes = 0
        new_bytes = own_bytes(index)
        total_bytes = int(new_bytes.sum())

        def oldest() -> list[tuple[int, SpanValues]]:
            nonlocal held_bytes, done_bytes
            span = under_way.popleft()
            if isinstance(span.answer, Future):
                values = [(span.first_sample, span.answer.result())]
                if kept.keeps:
                    of_shard.extend(values)
                if span.is_last:
                    kept.put(span.shard, of_shard)
                    of_shard.clear()
            else:
                values = span.answer
            held_bytes -= span.decoded_bytes
            done_bytes += int(new_bytes[span.first_extent : span.end_extent].sum())
            if progress is not None:
                progress(done_bytes, total_bytes)
            return values

        with ThreadPoolExecutor(num_threads, thread_name_prefix="shoal-columns") as threads:
            try:
                for span in self._spans(kept, threads):
                    under_way.append(span)
                    held_bytes += span.decoded_bytes
                    while len(under_way) >= 3 * num_threads or (len(under_way) > 2 and held_bytes > _DECODED_BYTES):
                        yield from oldest()
                while under_way:
                    yield from oldest()
            finally:
                for span in under_way:
                    if isinstance(span.answer, Future):
                        span.answer.cancel()

    def _spans(self, kept: KeptParts, threads: ThreadPoolExecutor) -> Iterator[_Span]:
        """Yield the spans of all shards while threads begin to read them; a kept shard is one span."""
        index = self._opened.index
        first_extent = index.shard_first_extent.tolist()
        for shard in range(index.num_shards):
            first, end = first_extent[shard], first_extent[shard + 1]
            if (known := kept.get(shard)) is not None:
                yield _Span(shard, first, end, known[0][0] if known else 0, 0, known)
                continue
            for after, read in _reads(index, shard, first, end):
                decoded_bytes = int(index.extent_decoded_bytes[read.unit : after].sum())
                answer = threads.submit(self._values, read)
                yield _Span(shard, read.unit, after, read.first_sample, decoded_bytes, answer, after == end)

    def _values(self, read: UnitRead) -> SpanValues:
        """Read and parse a span, and return the values of all columns in it."""

        def where(row: int) -> str:
            return _sample_name(self._opened.index, read.first_sample + row)

        samples = self._sparse(read)
        parts, fields = dict[str, Part](), list[str]()
        if samples is None:
            records = self._records(read)
            parts, fields = self._gathered(records, where)
            samples = map(records.sample, range(read.num_samples))
        left = [column for column in self._columns if column.name not in parts]
        sources = {name: column.path for column in self._columns if (name := column.name) in parts}
        example: Sample = {}
        if left:
            lookup = ColumnLookup(left, where)
            for sample in samples:
                lookup.add(sample)
            example, fields = lookup.example, list(lookup.example)
            for column, values, source in zip(left, lookup.values, lookup.sources, strict=True):
                parts[column.name], sources[column.name] = part_of_values(values, column, where), source
        for column in self._columns:
            if not parts[column.name].kind and read.first_sample == 0 and column.name not in self._have_defaults:
                refuse_unknown(column, fields, example)
        names = [column.name for column in self._columns]
        return SpanValues([parts[name] for name in names], [sources[name] for name in names])

    def _sparse(self, read: UnitRead) -> Iterator[Sample] | None:
        """Return the samples of a span with only the members of the columns, if the samples are large; else None."""
        opened = self._opened
        is_large = read.num_bytes >= _SPARSE_BYTES * read.num_samples and opened.index.sample_bytes is not None
        if not (is_large and opened.store.reads_ahead and opened.format.skips_fields):
            return None
        return self._wanted_members(read)

    def _wanted_members(self, read: UnitRead) -> Iterator[Sample]:
        opened = self._opened
        opened.check.check(read.shard)
        reader, whole = opened.store.reader(opened.paths[read.shard]), span_of(opened.index, read)
        for begin, end in pairwise(whole.sample_starts or ()):
            span = whole._replace(first_byte=read.first_byte + begin, num_samples=1, sample_starts=None)
            yield opened.format.read_wanted(reader, read.first_byte + end, span, self._wanted)
        reader.confirm()

    def _gathered(self, records: Records, where: Where) -> tuple[dict[str, Part], list[str]]:
        """Return the parts of columns of numbers or texts in a table, and the names of all fields of the table."""
        columns = records.columns() if isinstance(records, ColumnRecords) else None
        if columns is None:
            return {}, []
        kinds, arrays, parts = dict(columns.kinds), columns.by_name(), dict[str, Part]()
        for column in self._columns:
            is_length = column.path not in kinds and column.path.endswith(LENGTH)
            field = _column_at(column.path.removesuffix(LENGTH) if is_length else column.path, kinds, arrays)
            if field is None:
                continue
            values = field_lengths(*field) if is_length else field_values(*field)
            if values is not None:
                parts[column.name] = part_of_array(values.values, values.missing, values.words, column, where)
            elif not is_length and (cells := cells_as_list(*field)) is not None:
                parts[column.name] = part_of_values(cells, column, where)
        return parts, list(kinds)

    def _records(self, read: UnitRead) -> Records:
        opened, stats = self._opened, RequestStats(Counters())
        if not opened.format.needs_bytes:
            return fetched_records(opened, [read], stats)[0]
        if self._fields is not None and opened.format.reads_fields:
            opened.check.check(read.shard, stats)
            whole = partial(opened.store.read_range, opened.paths[read.shard])
            return opened.format.read_fields(whole, read.end_byte, span_of(opened.index, read))
        data = read_unit(opened, read, stats=stats, verify=True)
        return parse_unit(opened, read, data) if opened.store.reads_ahead else parse_again(opened, read, data, stats)


def _column_at(path: str, kinds: Mapping[str, Kind], arrays: Mapping[str, Any]) -> tuple[Kind, Any] | None:
    """Return a column of a table, or a column inside a column of structs; None if the path leads nowhere."""
    if path in kinds:
        return kinds[path], arrays[path]
    for cut in (at for at, letter in enumerate(path) if letter == "."):
        if path[:cut] in kinds:
            inside = inner_column(arrays[path[:cut]], path[cut + 1 :])
            return None if inside is None else (Kind("cells", arrow=inside.type), inside)
    return None


def _reads(index: Index, shard: int, first_extent: int, end_extent: int) -> Iterator[tuple[int, UnitRead]]:
    """Yield reads of consecutive extents of a shard, each with the number of the next extent."""
    ends, at = index.extent_end_byte[first_extent:end_extent], first_extent
    decoded = np.concatenate([[0], np.cumsum(index.extent_decoded_bytes[first_extent:end_extent])])
    while at < end_extent:
        begin = int(index.extent_first_byte[at])
        after = int(np.searchsorted(ends, begin + _READ_BYTES, side="right"))
        limit = int(decoded[at - first_extent]) + _SPAN_DECODED_BYTES
        after = min(after, int(np.searchsorted(decoded, limit, side="right")) - 1)
        after = max(at + 1, first_extent + after)
        first, end = index.extent_first_sample[[at, after]].tolist()
        yield after, UnitRead(at, shard, begin, int(ends[after - 1 - first_extent]), first, end - first)
        at = after


def _fields_of(opened: Opened, columns: Sequence[Column]) -> list[str] | None:
    """Return the fields that a columnar format must decode for these columns; None for all fields."""
    if not opened.format.has_columns or any(column.path == TOTAL_BYTES for column in columns):
        return None
    heads = opened.index.shard_heads
    first = min(heads, default=-1)
    schema = opened.format.schema(heads[first]) if heads else None
    if schema is not None:
        names = {*schema.names, *partition_fields(opened.index.shard_names[first])}
    else:
        names = set(read_sample(opened, 0))
    fields: dict[str, None] = {}
    for column in columns:
        paths = [column.path, column.path.removesuffix(LENGTH)]
        paths += [path[:at] for path in paths for at, letter in enumerate(path) if letter == "."]
        known = [path for path in paths if path in names]
        if not known:
            return None
        fields |= dict.fromkeys(known)
    return list(fields)
