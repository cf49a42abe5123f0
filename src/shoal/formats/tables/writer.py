"""Writers of Parquet and Arrow shards, row group by row group, through pyarrow.

Only whole row groups can be read, so row groups are small: many small chunks shuffle well. The same version of pyarrow
writes the same bytes for the same rows.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from zlib import crc32

import numpy as np

from shoal.errors import UsageError
from shoal.formats.shard_format import Sample
from shoal.formats.tables.arrow import Arrow
from shoal.formats.tables.arrow_types import arrow_library
from shoal.formats.tables.parquet import Parquet
from shoal.formats.tables.rows_to_columns import RowRefusedError, own_row, table_of_rows
from shoal.formats.writing.encoder import EncodedRecord, WrittenShard
from shoal.formats.writing.joined_checksums import joined_crcs
from shoal.index.shard_scan import Buffer, ShardScan

GROUP_BYTES = 1 << 20
_CONTINUATION = b"\xff\xff\xff\xff"  # before the length of the head of a message of Arrow
_END = _CONTINUATION + bytes(4)
_KEPT_BYTES = 64 << 10


class ParquetEncoder:
    """The format of columns in row groups.

    ``schema`` is a pyarrow schema; without ``schema``, the first row group of each shard decides. ``group_bytes`` is
    the size of a row group in memory, ``compression`` the name of a Parquet codec.
    """

    name: str = "parquet"
    suffix: str = ".parquet"

    def __init__(self, *, schema: Any = None, group_bytes: int = GROUP_BYTES, compression: str = "zstd") -> None:
        self.schema, self.group_bytes, self.compression = schema, group_bytes, compression

    def record(self, sample: Sample) -> EncodedRecord:
        """Encode a sample as a row."""
        return _row(sample)

    def begin(self) -> TableShard:
        """Begin a new shard."""
        return TableShard(self.schema, self.group_bytes, partial(_parquet_writer, self.compression), Parquet())


class ArrowEncoder:
    """The format of record batches, as a stream (which Hugging Face ``datasets`` maps); options as for Parquet."""

    name: str = "arrow"
    suffix: str = ".arrow"

    def __init__(self, *, schema: Any = None, group_bytes: int = GROUP_BYTES) -> None:
        self.schema, self.group_bytes = schema, group_bytes

    def record(self, sample: Sample) -> EncodedRecord:
        """Encode a sample as a row."""
        return _row(sample)

    def begin(self) -> TableShard:
        """Begin a new shard."""
        return TableShard(self.schema, self.group_bytes, _ArrowWriter, Arrow())


def _row(sample: Sample) -> EncodedRecord:
    row, num_bytes = own_row(sample)
    return EncodedRecord((), num_bytes, 0, row)


class TableShard:
    """An unfinished shard of row groups; the rows of one group are in memory."""

    def __init__(
        self, schema: Any, group_bytes: int, writer: Callable[[_Sink, Any], Any], shard_format: Parquet | Arrow
    ) -> None:
        self._schema, self._group_bytes = schema, group_bytes
        self._make_writer, self._format = writer, shard_format
        self._writer: Any = None
        self._sink = _Sink()
        self._rows: list[Sample] = []
        self._refused: list[tuple[int, RowRefusedError]] | None = None
        self.num_samples = 0
        self.held_bytes = 0  # of the buffered rows, approximately

    @property
    def num_bytes(self) -> int:
        """Bytes written, plus the approximate size of the buffered rows."""
        return self._sink.position + self.held_bytes

    def add(self, record: EncodedRecord) -> Sequence[Buffer]:
        """Add a row; return a full row group. Raises `UsageError` if the rows of a group do not fit the schema."""
        self._rows.append(record.row or {})
        self.held_bytes += record.num_bytes
        self.num_samples += 1
        if self.held_bytes >= self._group_bytes:
            self._write_rows()
        return self._sink.drain()

    def finish(self) -> Sequence[Buffer]:
        """End the shard; return its last bytes."""
        if self._rows:
            self._write_rows()
        if self._writer is None:
            self._begin(self._schema if self._schema is not None else arrow_library("Arrow").schema([]))
        self._writer.close()
        return self._sink.drain()

    def written(self) -> WrittenShard:
        """Return the scan of the shard and its checksums; the sink has kept the bytes that a scan reads."""
        sink = self._sink
        scan = self._format.scan(sink.read, sink.position, shard="")
        return WrittenShard(scan, sink.position, piece_crcs=sink.crcs(scan), frame_crc=sink.frame_crc(scan))

    def leave_out(self) -> None:
        """Leave out rows that do not fit, and keep them for `refused`; by default the first such row is an error."""
        self._refused = []

    def refused(self) -> list[tuple[int, RowRefusedError]]:
        """Return the number and the error of each row left out since the last call.

        The number counts the accepted rows before it in the shard.
        """
        refused, self._refused = self._refused, None if self._refused is None else []
        return refused or []

    def _write_rows(self) -> None:
        rows, self._rows, self.held_bytes = self._rows, [], 0
        table = None
        while rows and table is None:
            try:
                table = table_of_rows(rows, self._schema, format_name=self._format.name)
            except RowRefusedError as error:
                if self._refused is None:
                    raise
                self.num_samples -= 1
                self._refused.append((self.num_samples - len(rows) + 1 + error.number, error))
                del rows[error.number]
        if table is None:
            return
        self._schema = table.schema
        if self._writer is None:
            self._begin(table.schema)
        self._sink.cut()
        self._writer.write_table(table, table.num_rows)  # as one row group
        self._sink.cut()

    def _begin(self, schema: Any) -> None:
        pa = arrow_library(self._format.name)
        try:
            self._writer = self._make_writer(self._sink, schema)
        except pa.ArrowException as error:
            msg = f"{self._format.name} cannot hold columns of these types: {error}"
            raise UsageError(msg, hint="give values that it can hold, or options={'schema': ...}") from None


def _parquet_writer(compression: str, sink: _Sink, schema: Any) -> Any:
    import pyarrow.parquet as pq  # noqa: PLC0415  # optional, and slow to import

    return pq.ParquetWriter(sink, schema, compression=compression)


class _ArrowWriter:
    """A writer of an Arrow stream: pyarrow's own writer holds the schema back until the first batch."""

    def __init__(self, sink: _Sink, schema: Any) -> None:
        pa = arrow_library("Arrow")
        for field in schema:
            if pa.types.is_dictionary(field.type):
                msg = f"the column {field.name!r} is a dictionary, but shoal does not write dictionaries"
                raise UsageError(msg, hint="give the type of its values")
        self._sink = sink
        sink.write(schema.serialize())

    def write_table(self, table: Any, num_rows: int) -> None:
        for batch in table.combine_chunks().to_batches(num_rows):
            self._sink.write(batch.serialize())

    def close(self) -> None:
        self._sink.write(_END)


class _Sink(io.RawIOBase):
    """The file that pyarrow writes to. Keeps the bytes that a scan reads, and the CRC of each span between cuts.

    A scan reads the schema and the head of each batch (Arrow), or the footer (Parquet). So the sink keeps the first 64
    KiB of each span, or a larger message head, and the whole last span.
    """

    def __init__(self) -> None:
        self.position = 0
        self._waiting: list[Buffer] = []
        self._spans: list[list[Any]] = [[0, 0, bytearray()]]  # first byte, CRC, beginning

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        copy, span = bytes(data), self._spans[-1]
        self._waiting.append(copy)
        self.position += len(copy)
        span[1] = crc32(copy, span[1])
        span[2] += copy
        return len(copy)

    def cut(self) -> None:
        """End the current span."""
        last = self._spans[-1]
        if self.position > last[0]:
            head_bytes = int.from_bytes(last[2][4:8], "little") if last[2].startswith(_CONTINUATION) else 0
            del last[2][max(_KEPT_BYTES, 8 + head_bytes) :]
            self._spans.append([self.position, 0, bytearray()])

    def drain(self) -> list[Buffer]:
        """Return the bytes written since the last call."""
        waiting, self._waiting = self._waiting, []
        return waiting

    def read(self, first_byte: int, end_byte: int, /) -> bytes:  # type: ignore[override]  # as a scan reads
        """Return bytes of the shard, with zeros where none were kept; no scan reads the zeros."""
        data = bytearray(end_byte - first_byte)
        for begin, _, kept in self._spans:
            first, end = max(begin, first_byte), min(begin + len(kept), end_byte)
            if first < end:
                data[first - first_byte : end - first_byte] = kept[first - begin : end - begin]
        return bytes(data)

    def crcs(self, scan: ShardScan) -> np.ndarray[Any, np.dtype[np.uint32]]:
        """Return the CRC of each piece; pieces are spans."""
        crcs = {begin: crc for begin, crc, _ in self._spans}
        return np.array([crcs[begin] for begin in scan.sample_starts[:-1].tolist()], dtype=np.uint32)

    def frame_crc(self, scan: ShardScan) -> int | None:
        """Return the CRC of all bytes outside of pieces; None if pieces do not end with spans."""
        begins = [begin for begin, _, _ in self._spans]
        if int(scan.sample_starts[-1]) not in begins:
            return None
        pieces = set(scan.sample_starts[:-1].tolist())
        spans = zip(self._spans, [*begins[1:], self.position], strict=True)
        frame = [(crc, end - begin) for (begin, crc, _), end in spans if begin not in pieces]
        crcs, sizes = (np.array(column) for column in zip(*frame, strict=True))
        return int(joined_crcs(crcs.astype(np.uint32), sizes, np.array([0, len(sizes)]))[0])
