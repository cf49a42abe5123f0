"""Rows of Arrow tables as samples: what Parquet and Arrow shards share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any
from urllib.parse import unquote

import numpy as np
from numpy.typing import NDArray

from shoal.errors import ShardError, UsageError
from shoal.shards.protocol import Sample

__all__ = ["TableRecords", "arrow_library", "partition_fields"]

_HINT = "the shard is damaged, or not the one that was indexed: copy it again, or index it again"


def arrow_library(what: str) -> Any:
    """pyarrow, or an error that says what needs it.

    Raises
    ------
    UsageError
        It is not installed.
    """
    try:
        import pyarrow as pa  # noqa: PLC0415  # optional, and slow to import
    except ImportError:
        msg = f"{what} shards need pyarrow, which is not installed"
        raise UsageError(msg, hint="pip install 'shoal[parquet]'") from None
    return pa


def partition_fields(shard: str) -> dict[str, str]:
    """What the directories of a shard say of all its rows, as Hive and Spark write them: ``column=value``.

    >>> partition_fields("year=2024/kind=a%20b/part-0.parquet")
    {'year': '2024', 'kind': 'a b'}
    """
    pairs = (part.partition("=") for part in shard.split("/")[:-1])
    return {unquote(name): unquote(value) for name, sign, value in pairs if sign and name}


class TableRecords:
    """The rows of a table, handed out by number.

    Values are Python's, as pyarrow makes them, but for lists of numbers without gaps: those are arrays, shape
    (length,), of their own memory. ``constants`` are fields that all rows have besides.
    """

    __slots__ = ("_columns", "_constants", "_crcs", "_num_rows", "_shard", "_table")

    def __init__(self, table: Any, crcs: Sequence[int], *, shard: str, constants: dict[str, str]) -> None:
        self._columns: list[tuple[str, Callable[[int], Any]]] = [
            (name, _getter(column)) for name, column in zip(table.column_names, table.columns, strict=True)
        ]
        self._table = table
        self._num_rows, self._crcs, self._shard = table.num_rows, list(crcs), shard
        self._constants = {name: value for name, value in constants.items() if name not in table.column_names}

    def __len__(self) -> int:
        return int(self._num_rows)

    def layout_crcs(self) -> NDArray[np.uint32]:
        """The CRC of each piece, as the scan gives them; shape (num_pieces,)."""
        return np.array(self._crcs, dtype=np.uint32)

    def columns(self) -> dict[str, NDArray[Any]] | None:
        """The columns as arrays, where all are numbers, or lists of as many numbers, without gaps; else None."""
        if self._constants:
            return None
        found = {
            name: _array(column) for name, column in zip(self._table.column_names, self._table.columns, strict=True)
        }
        return (
            None
            if any(array is None for array in found.values())
            else {k: v for k, v in found.items() if v is not None}
        )

    def sample(self, number: int) -> Sample:
        """Row ``number``: its values by column; about 1 us for a number or a short text.

        Raises
        ------
        ShardError
            Where a value is damaged (text that is not UTF-8).
        """
        sample: Sample = {}
        for name, get in self._columns:
            try:
                sample[name] = get(number)
            except (ValueError, OverflowError) as error:
                msg = f"row {number} of these, column {name!r}: {error}"
                raise ShardError(msg, shard=self._shard, hint=_HINT) from None
        return {**sample, **self._constants} if self._constants else sample


def _getter(column: Any) -> Callable[[int], Any]:
    """What gives one value of a column."""
    pa = arrow_library("Arrow")
    joined = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    if isinstance(joined, pa.ChunkedArray):  # larger than one array of its type can be
        return lambda row: joined[row].as_py()
    kind = joined.type
    if pa.types.is_dictionary(kind):
        joined = joined.dictionary_decode()
        kind = joined.type
    if _is_list(pa, kind) and _is_number(pa, kind.value_type) and not joined.null_count:
        values = joined.flatten() if pa.types.is_fixed_size_list(kind) else joined.values
        if not values.null_count:
            return _list_getter(pa, joined, values)
    return lambda row: joined[row].as_py()


def _array(column: Any) -> NDArray[Any] | None:
    """A column as one array: shape (rows,) of numbers, or (rows, width) of lists of equal length; None else."""
    pa = arrow_library("Arrow")
    if column.null_count:
        return None
    joined = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    if isinstance(joined, pa.ChunkedArray):
        return None
    if pa.types.is_uint64(joined.type):
        return None  # stacked Python integers are int64 where they fit
    if _is_number(pa, joined.type):
        wide = np.float64 if pa.types.is_floating(joined.type) else np.int64  # as Python's numbers are stacked
        numbers: NDArray[Any] = joined.to_numpy(zero_copy_only=False).astype(wide)
        return numbers
    if not (_is_list(pa, joined.type) and _is_number(pa, joined.type.value_type)):
        return None
    values = joined.flatten()
    if values.null_count or not len(joined) or len(values) % len(joined):
        return None
    width = len(values) // len(joined)
    if not pa.types.is_fixed_size_list(joined.type) and (np.diff(joined.offsets.to_numpy()) != width).any():
        return None
    rows: NDArray[Any] = values.to_numpy(zero_copy_only=False).reshape(len(joined), width)
    return rows


def _list_getter(pa: Any, lists: Any, values: Any) -> Callable[[int], NDArray[Any]]:
    numbers = values.to_numpy(zero_copy_only=False)
    if pa.types.is_fixed_size_list(lists.type):
        width = lists.type.list_size
        return lambda row: numbers[row * width : (row + 1) * width].copy()
    borders = lists.offsets.to_numpy()
    return lambda row: numbers[borders[row] : borders[row + 1]].copy()


def _is_list(pa: Any, kind: Any) -> bool:
    tests: Iterable[Callable[[Any], bool]] = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(test(kind) for test in tests)


def _is_number(pa: Any, kind: Any) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))
