"""Rows of Arrow tables as samples, from Parquet and Arrow shards and from parts in scratch space."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any
from urllib.parse import unquote

import numpy as np
from numpy.typing import NDArray

from shoal.errors import ShardError
from shoal.formats.field_columns import Columns
from shoal.formats.shard_format import Sample, Spilled, SpillSpace
from shoal.formats.tables.arrow_columns import constant_column, joined, stored_column
from shoal.formats.tables.arrow_types import arrow_library, types_inside
from shoal.formats.tables.arrow_values import getter_of
from shoal.formats.tables.extension_types import shaped_column

OTHER_FILE = "the shard is damaged, or not the one that was indexed: copy it again, or index it again"
_WITHOUT_VALUES = ("month_interval", "day_time_interval")
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
_PART_BYTES = 64 << 10
_SCHEMAS = 8  # a part is at least this many times as large as the schema that it repeats


def partition_fields(shard: str) -> dict[str, str | None]:
    """Return the fields in the directories of a shard, named ``column=value`` as by Hive and Spark.

    Values are text; the directory of rows without a value gives None.

    >>> partition_fields("year=2024/kind=a%20b/part-0.parquet")
    {'year': '2024', 'kind': 'a b'}
    """
    pairs = (part.partition("=") for part in shard.split("/")[:-1])
    return {
        unquote(name): None if value == _NO_VALUE else unquote(value) for name, sign, value in pairs if sign and name
    }


def check_column_names(names: Sequence[str], shard: str) -> None:
    """Raise `ShardError` if two columns have one name: a dict would keep only the last of them."""
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        msg = f"two columns have the name {twice[0]!r}, but a sample has one value for a name"
        hint = "write the shard again with other names (pyarrow: table.rename_columns)"
        raise ShardError(msg, shard=shard, hint=hint)


class TableRecords:
    """The rows of a table by number.

    Values are Python's, as pyarrow converts them, but lists of numbers without nulls are arrays, shape (length,), that
    own their memory. ``getter_of`` replaces this conversion, ``constants`` are additional fields of all rows, and the
    rows begin at ``byte`` of the shard. Raises `ShardError` if two columns have one name, or pyarrow has no values of
    the type of a column.
    """

    __slots__ = ("_arrays", "_byte", "_constants", "_crcs", "_getter_of", "_getters", "_num_rows", "_shard")

    def __init__(
        self,
        table: Any,
        crcs: Sequence[int],
        *,
        shard: str,
        byte: int | None = None,
        constants: Mapping[str, str | None] = MappingProxyType({}),
        getter_of: Callable[[Any], Callable[[int], Any]] = getter_of,
    ) -> None:
        check_column_names(table.column_names, shard)
        for field in table.schema:
            if any(str(kind) in _WITHOUT_VALUES for kind in types_inside(field.type)):
                msg = f"column {field.name!r} is of the type {field.type}, whose values pyarrow cannot give"
                hint = "leave it out with columns(), or write the shard again with month_day_nano_interval"
                raise ShardError(msg, shard=shard, hint=hint)
        self._byte, self._getter_of, self._shard = byte, getter_of, shard
        fields = {field.name: (field, column) for field, column in _fields_of(table)}
        self._arrays = self._converted(fields, lambda pair: shaped_column(pair[0], joined(pair[1])))
        self._num_rows, self._crcs = table.num_rows, crcs
        self._constants = {name: value for name, value in constants.items() if name not in self._arrays}
        self._getters: list[tuple[str, Callable[[int], Any]]] | None = None

    def __len__(self) -> int:
        return int(self._num_rows)

    def layout_crcs(self) -> NDArray[np.uint32]:
        """Return the CRC of each piece as in the scan; shape (num_pieces,)."""
        return np.array(self._crcs, dtype=np.uint32)

    def columns(self) -> Columns | None:
        """Return all columns; None if a column is too large for one array, or ``getter_of`` was replaced.

        Raises `ShardError` if a value is damaged.
        """
        chunked = arrow_library("Arrow").ChunkedArray
        if self._getter_of is not getter_of or any(isinstance(array, chunked) for array in self._arrays.values()):
            return None
        stored = self._converted(self._arrays, stored_column)
        stored |= {name: constant_column(value, self._num_rows) for name, value in self._constants.items()}
        kinds = tuple((name, kind) for name, (kind, _) in stored.items())
        return Columns(kinds, tuple(values for _, values in stored.values()))

    def sample(self, number: int) -> Sample:
        """Return the values of row ``number`` by column; about 1 us for a number or a short text.

        Raises `ShardError` if a value is damaged (text that is not UTF-8).
        """
        sample: Sample = {}
        if self._getters is None:
            self._getters = list(self._converted(self._arrays, self._getter_of).items())
        for name, get in self._getters:
            try:
                sample[name] = get(number)
            except (ValueError, OverflowError) as error:
                msg = f"row {number} of this piece, column {name!r}: {error}"
                raise ShardError(msg, shard=self._shard, byte=self._byte, hint=OTHER_FILE) from None
        return {**sample, **self._constants} if self._constants else sample

    def _converted(self, columns: Mapping[str, Any], convert: Callable[[Any], Any]) -> dict[str, Any]:
        converted = {}
        for name, column in columns.items():
            try:
                converted[name] = convert(column)
            except ValueError as error:  # Arrow's errors about values are ValueErrors, too
                msg = f"column {name!r}: {error}"
                raise ShardError(msg, shard=self._shard, byte=self._byte, hint=OTHER_FILE) from None
        return converted


def rows_of_part(num_rows: int, decoded_bytes: int, schema: Any) -> int:
    """Return the number of rows per spilled part: as many as 64 KiB hold, or more if the schema is large."""
    part_bytes = max(_PART_BYTES, _SCHEMAS * int(schema.remove_metadata().serialize().size))
    return max(1, min(num_rows, part_bytes * num_rows // max(1, decoded_bytes)))


def spilled_rows(batches: Iterable[Any], num_rows: int, space: SpillSpace) -> Spilled:
    """Append record batches to ``space`` as Arrow IPC streams of ``num_rows`` rows, the parts."""
    pa = arrow_library("Arrow")
    borders, num_samples = [0], 0
    for table in _regrouped(pa, batches, num_rows):
        # Without dictionaries, which every part would repeat.
        columns = [shaped_column(field, joined(column)) for field, column in _fields_of(table)]
        plain = pa.table(columns, names=table.column_names)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, plain.schema) as writer:
            writer.write_table(plain)
        part = sink.getvalue()
        space.append(memoryview(part))
        borders.append(borders[-1] + part.size)
        num_samples += plain.num_rows
    return Spilled(np.array(borders, dtype=np.int64), num_samples, num_rows)


def table_of_part(data: bytes) -> Any:
    """Return the rows of a spilled part."""
    with arrow_library("Arrow").ipc.open_stream(data) as reader:
        return reader.read_all()


def _regrouped(pa: Any, batches: Iterable[Any], num_rows: int) -> Iterator[Any]:
    """Yield the rows as tables of ``num_rows``; the last may have fewer."""
    waiting: list[Any] = []
    num_waiting = 0
    for batch in batches:
        first = 0
        while first < batch.num_rows:
            waiting.append(batch.slice(first, num_rows - num_waiting))
            first, num_waiting = first + len(waiting[-1]), num_waiting + len(waiting[-1])
            if num_waiting == num_rows:
                yield pa.Table.from_batches(waiting)
                waiting, num_waiting = [], 0
    if waiting:
        yield pa.Table.from_batches(waiting)


def _fields_of(table: Any) -> Iterator[tuple[Any, Any]]:
    return zip(table.schema, table.columns, strict=True)
